#!/usr/bin/env bash
# Prepares a corpus, as `python -m data_prep` does, with the Python of the checkout; --help lists the corpora.
set -euo pipefail

# shellcheck source=scripts/python.sh
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/python.sh"
exec_module data_prep "$@"
