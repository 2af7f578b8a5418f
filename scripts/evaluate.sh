#!/usr/bin/env bash
# Decodes a test set with a checkpoint and scores it: `powernorm evaluate` with the checkout's Python; see --help.
set -euo pipefail

# shellcheck source=scripts/python.sh
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
exec_module powernorm_fairseq evaluate "$@"
