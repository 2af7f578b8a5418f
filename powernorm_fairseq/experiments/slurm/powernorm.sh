#!/usr/bin/env bash
# The command line `powernorm` in a job, with the Python that PYTHON names; a hook of run.sh may have set it.
set -euo pipefail

trap '' USR1 TERM  # until Python listens, a signal that would end it is ignored
exec "${PYTHON:-python3}" -m powernorm_fairseq "$@"
