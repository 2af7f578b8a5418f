"""What a release has beside code: one version, a linted container, hooks that exist, a guide that is right."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

TOP = Path(__file__).resolve().parents[1]
HADOLINT = Path(sys.executable).parent / "hadolint"


def read(name: str) -> str:
    return (TOP / name).read_text(encoding="utf-8")


def test_the_version_is_the_same_everywhere():
    version = re.search(r'^version = "(.*)"$', read("pyproject.toml"), re.MULTILINE).group(1)
    citation = yaml.safe_load(read("CITATION.cff"))
    heading = re.search(r"^## (\S+), (\S+)$", read("CHANGELOG.md"), re.MULTILINE)
    assert heading.groups() == (version, str(citation["date-released"])) and citation["version"] == version


def test_hooks_before_a_commit_are_what_make_lint_runs():
    (local,) = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    lint = read("Makefile").split("\nlint:")[1].split("\n\n")[0]
    for hook in local["hooks"]:
        assert hook["language"] == "system" and hook["entry"].split(" --")[0] in lint


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint is not installed")
def test_containerfile_is_linted(tmp_path):
    assert subprocess.run([str(HADOLINT), str(TOP / "Containerfile")]).returncode == 0
    (tmp_path / "Containerfile").write_text(read("Containerfile").replace("# hadolint ignore=DL3008\n", ""))
    assert subprocess.run([str(HADOLINT), str(tmp_path / "Containerfile")]).returncode != 0  # so it does look


def test_containers_have_pythons_that_the_set_up_takes():
    stages = re.findall(r"^FROM \S*python:([0-9.]+)\S* AS (\w+)$(.*?)^CMD", read("Containerfile"), re.M | re.S)
    modern, classic = re.findall(r"versions='([0-9. ]+)'", read("scripts/setup.sh"))
    for (python, stage, steps), (known, name, call) in zip(
        stages, ((modern, "modern", "setup.sh\n"), (classic, "classic", "setup.sh --classic\n"))
    ):
        assert python in known.split() and stage == name and call in steps
    assert len(stages) == 2


def test_what_the_guide_names_exists():
    guide = read("CONTRIBUTING.md")
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", guide)) <= targets
    paths = [word for word in re.findall(r"`([\w./-]+)`", guide) if "/" in word and "NAME" not in word]
    missing = [path for path in paths if not (TOP / path).exists() and not (TOP / "powernorm_fairseq" / path).exists()]
    assert len(paths) > 5 and not missing
