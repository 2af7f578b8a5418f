#!/usr/bin/env bash
# Prepares a corpus: the name by which it is called (iwslt14.sh, wmt14.sh, multi30k.sh, text.sh, lm.sh) says which.
set -euo pipefail

# shellcheck source=scripts/python.sh
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/python.sh"
exec_module data_prep "$(basename "$0" .sh)" "$@"
