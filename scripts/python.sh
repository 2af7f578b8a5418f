# Which Python runs this project; sourced by the other shell scripts.
# shellcheck shell=bash

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

# Runs Python in place of this shell: PYTHON if it is set, else that of the checkout's .venv, else python3 from PATH.
exec_python() {
    local python="python3"
    if [[ -x "$root/.venv/bin/python" ]]; then
        python="$root/.venv/bin/python"
    fi
    exec "${PYTHON:-$python}" "$@"
}

# The same for a module of the checkout and its arguments.
exec_module() {
    export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
    exec_python -m "$@"
}

# Prints the usage of the script that calls it, and ends it, if one of the arguments before -- asks for help.
answer_help() {
    local argument
    for argument in "$@"; do
        case $argument in
        -h | --help)
            usage
            exit 0
            ;;
        --) return ;;
        esac
    done
}
