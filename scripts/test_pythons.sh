#!/usr/bin/env bash
# Runs the tests with every Python that is supported and found here, each in an environment of its own.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: scripts/test_pythons.sh [pytest arguments]

Sets up .venv-3.11, .venv-3.12 and .venv-3.13 (.venv-classic with Python 3.8 to 3.10 as well), runs the tests in each and
prints the result of each in a line. A Python that is not found on PATH or in pyenv is left out and named. The status is
0 if no test failed. PYTHONS names the versions (default: "3.11 3.12 3.13 classic").
USAGE
}

# Prints a Python of a version, from PATH or pyenv; fails if there is none.
find_python() {
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        if "$candidate" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' "$1" 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

main() {
    local version python venv log failed=0 results=()
    if [[ "${1:-}" == "--help" ]]; then
        usage
        return
    fi
    cd "$(dirname "${BASH_SOURCE[0]}")/.."
    for version in ${PYTHONS:-3.11 3.12 3.13 classic}; do
        venv=.venv-$version
        log=$venv.tests.log
        if [[ "$version" == classic ]]; then
            scripts/setup.sh --classic || { failed=1 && results+=("$version: set-up failed") && continue; }
        elif python="$(find_python "$version")"; then
            scripts/setup.sh --venv "$venv" --python "$python" ||
                { failed=1 && results+=("$version: set-up failed") && continue; }
        else
            results+=("$version: not found, left out")
            continue
        fi
        if PATH="$PWD/$venv/bin:$PATH" OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest "$@" >"$log" 2>&1; then
            results+=("$version: $(tail -n 1 "$log")")
        else
            failed=1
            results+=("$version: FAILED, $(tail -n 1 "$log") (see $log)")
        fi
    done
    printf '%s\n' "${results[@]}"
    return "$failed"
}

main "$@"
