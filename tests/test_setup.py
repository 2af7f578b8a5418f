"""Set-up on a machine that lacks something, interrupted set-ups, and the Makefile's targets."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[1]

# Stands for Python: answers what set-up asks, makes a pretended environment and notes each call of pip in calls.txt.
# FAKE_* set the answers; a pip call that contains FAKE_FAIL fails.
FAKE_PYTHON = """#!/usr/bin/env bash
case "$*" in
  *version_info*) printf '%s\\n' "$FAKE_VERSION" "$0" "$FAKE_VERSION fake" "$FAKE_INCLUDE" "$FAKE_COMPILER" ;;
  "-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  "-m pip install"*)
    echo "$*" >>calls.txt
    if [[ -n "$FAKE_FAIL" && "$*" == *"$FAKE_FAIL"* ]]; then echo "$FAKE_WORDS" && exit 1; fi
    ;;
esac
"""

KERNELS = "powernorm_fairseq/norms/kernels"
NOT_SOURCE = shutil.ignore_patterns("*.so", "__pycache__")


class Checkout:
    """A bare copy of the project with a pretended Python, to run set-up in without touching the real environment."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "scripts").mkdir()
        shutil.copy(str(TOP / "scripts/setup.sh"), str(folder / "scripts/setup.sh"))
        shutil.copy(str(TOP / "pyproject.toml"), str(folder / "pyproject.toml"))
        shutil.copytree(str(TOP / KERNELS), str(folder / KERNELS), ignore=NOT_SOURCE)
        self.python = folder / "fake-python"
        self.python.write_text(FAKE_PYTHON)
        self.python.chmod(0o755)
        (folder / "Python.h").touch()

    def setup(self, *args: str, **settings: str) -> subprocess.CompletedProcess:
        own = {name: value for name, value in os.environ.items() if name != "CXX" and not name.startswith("PIP_")}
        answers = dict(FAKE_VERSION="3.11", FAKE_INCLUDE=str(self.folder), FAKE_COMPILER="bash")
        return subprocess.run(
            ["bash", "scripts/setup.sh", *(args or ("--python", str(self.python)))],
            cwd=str(self.folder),
            env={**own, **answers, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
        )

    def refusal(self, *args: str, **settings: str) -> str:
        """The one sentence of a set-up that must fail before it makes anything."""
        result = self.setup(*args, **settings)
        assert result.returncode == 1
        assert not (self.folder / ".venv").exists()
        (sentence,) = result.stderr.splitlines()
        return sentence

    def pip_calls(self) -> list:
        calls = self.folder / "calls.txt"
        return calls.read_text().splitlines() if calls.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_unsupported_python_is_refused_and_supported_ones_are_named(checkout):
    sentence = checkout.refusal(FAKE_VERSION="3.7")
    assert sentence.startswith("set-up: Python 3.7 (")
    assert "one of Python 3.11, 3.12, 3.13 with PYTHON=" in sentence


def test_python_that_does_not_run_is_named(checkout):
    assert "no-such-python, does not run" in checkout.refusal("--python", "no-such-python")


def test_classic_setup_without_an_old_python_is_refused(checkout):
    tools = checkout.folder / "tools"  # a PATH without any Python
    tools.mkdir()
    for tool in ("bash", "dirname", "cat"):
        (tools / tool).symlink_to(shutil.which(tool))
    sentence = checkout.refusal("--classic", PATH=str(tools), PYENV_ROOT=str(checkout.folder))
    assert sentence.startswith("set-up: no Python 3.10, 3.9, 3.8 was found")
    assert "PYTHON_CLASSIC=" in sentence


def test_missing_compiler_is_named(checkout):
    assert checkout.refusal(FAKE_COMPILER="no-such-g++ -pthread").startswith("set-up: no C++ compiler (no-such-g++)")


def test_compiler_is_taken_from_cxx(checkout):
    assert checkout.refusal(CXX="no-such-clang++").startswith("set-up: no C++ compiler (no-such-clang++)")


def test_missing_headers_are_named(checkout):
    sentence = checkout.refusal(FAKE_INCLUDE="/no-such-folder")
    assert "Python.h" in sentence and "python3.11-dev" in sentence


def test_unreachable_package_index_is_named(checkout):
    closed = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "no_proxy": "*"}
    classic = ["--classic"] if sys.version_info < (3, 11) else []
    result = checkout.setup(*classic, "--python", sys.executable, CXX="bash", **closed)
    assert result.returncode == 1
    assert "1/5" in result.stderr and "2/5" not in result.stderr
    assert "set-up: the package index cannot be reached" in result.stderr.splitlines()[-1]


def test_other_pip_failures_show_the_end_of_the_log(checkout):
    result = checkout.setup(FAKE_FAIL="torch", FAKE_WORDS="error: out of cheese")
    assert result.returncode == 1
    assert "error: out of cheese" in result.stderr
    assert "pip failed" in result.stderr.splitlines()[-1]


def test_fairseq_is_built_with_the_torch_of_the_environment(checkout):
    assert checkout.setup().returncode == 0
    tools, torch, fairseq, plugin = checkout.pip_calls()
    assert torch.endswith(" torch")
    assert "--no-build-isolation fairseq-fixed" in fairseq
    assert "--no-build-isolation --editable" in plugin
    assert "torch==2.13.0" in (checkout.folder / ".venv/constraints.txt").read_text().splitlines()


def test_finished_setup_is_left_alone(checkout):
    checkout.setup()
    calls = checkout.pip_calls()
    result = checkout.setup()
    assert (result.returncode, result.stderr) == (0, "")
    assert checkout.pip_calls() == calls


@pytest.mark.parametrize("file", ["pyproject.toml", KERNELS + "/passes.cpp"])
def test_changed_sources_are_set_up_again(checkout, file):
    checkout.setup()
    with (checkout.folder / file).open("a") as changed:
        changed.write("\n# changed\n")
    assert ".venv is ready" in checkout.setup().stderr


def test_interrupted_setup_is_resumed(checkout):
    checkout.setup(FAKE_FAIL="fairseq")
    assert not (checkout.folder / ".venv/stamp").exists()
    half_installed = checkout.folder / ".venv/lib/python3.11/site-packages/half-1.0.dist-info"
    half_installed.mkdir(parents=True)
    assert ".venv is ready" in checkout.setup().stderr
    assert not half_installed.exists()


def test_make_lists_its_targets():
    listing = subprocess.check_output(["make", "--no-print-directory"], cwd=str(TOP), universal_newlines=True)
    targets = {line.split()[1] for line in listing.splitlines()}
    assert {"setup", "demo", "test", "lint", "test-slow", "test-classic", "wheel", "clean"} <= targets


def test_ci_runs_the_tests():
    assert os.access(str(TOP / ".ci/run"), os.X_OK)
    assert "make test" in (TOP / ".ci/run").read_text()


def test_every_folder_of_tests_is_collected():
    """By both stacks' pytest: an old one leaves out a folder that is named before one inside of it."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-m", ""]
    listing = subprocess.run(command, cwd=str(TOP), stdout=subprocess.PIPE, universal_newlines=True).stdout
    collected = {line.split("::")[0] for line in listing.splitlines() if "::" in line}
    files = {str(path.relative_to(TOP)) for path in (TOP / "tests").rglob("test_*.py")}
    assert collected == files
