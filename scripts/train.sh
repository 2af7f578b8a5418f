#!/usr/bin/env bash
# Trains a model by one of the project's recipes: `powernorm train` with the checkout's Python; see --help.
set -euo pipefail

# shellcheck source=scripts/python.sh
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
trap '' USR1 TERM  # until Python listens, a signal that would end it is ignored
exec_module powernorm_fairseq train "$@"
