#!/usr/bin/env bash
# Builds the source archive and, from the archive, the wheel with the C++ operators; both go to dist/.
# The wheel fits the Python that builds it, the kind of machine, and torch from the version that it is built with.
set -euo pipefail

python=${1?"usage: scripts/wheel.sh PYTHON    (a Python with torch >= 2.10, setuptools and wheel)"}
python=$(command -v "$python")
case $python in /*) ;; *) python=$PWD/$python ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rm -rf dist
"$python" -W ignore -c 'from setuptools import build_meta; build_meta.build_sdist("dist")' >/dev/null
"$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --no-index \
  --wheel-dir dist dist/*.tar.gz
"$python" - dist/*.whl <<'EOF'
import sys, zipfile

archive = zipfile.ZipFile(sys.argv[1])
for name in archive.namelist():
    if "/kernels/_rows" in name and name.endswith(".txt"):
        sys.exit("wheel: the C++ operators are not in it: " + archive.read(name).decode().strip())
EOF
ls dist/*
