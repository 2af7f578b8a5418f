# Which Python runs this project; sourced by the other shell scripts.
# shellcheck shell=bash

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

# Runs a module of the checkout in place of this shell, with PYTHON if that is set, else with the Python of the
# checkout's .venv, else with python3 from PATH.
exec_module() {
    local python="python3"
    if [[ -x "$root/.venv/bin/python" ]]; then
        python="$root/.venv/bin/python"
    fi
    export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
    exec "${PYTHON:-$python}" -m "$@"
}
