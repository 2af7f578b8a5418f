"""The benchmark of data preparation, on very little text."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "benchmarks" / "preparation.py")


@pytest.mark.slow
def test_made_up_text_gives_a_table_and_json(tmp_path: Path) -> None:
    pytest.importorskip("fairseq")
    report = tmp_path / "report.json"
    command = [sys.executable, SCRIPT, "--pairs", "200", "--bpe-tokens", "50", "--workers", "2", "--json", str(report)]
    done = subprocess.run(command, stdout=subprocess.PIPE, cwd=str(tmp_path), check=True)
    text = done.stdout.decode()
    for part in ("plain |", "ours, 1 worker", "ours, 2 workers", "learn BPE", "binarise", "plain way, CPU time"):
        assert part in text
    facts = json.loads(report.read_text())
    assert facts["pairs"] == 200
    assert [(run["kind"], run["workers"]) for run in facts["runs"]] == [("plain", 1), ("ours", 1), ("ours", 2)]
    for run in facts["runs"]:
        assert set(run["seconds"]) == {"tok", "codes", "bpe", "bin"} and run["cpu_seconds"] > 0
        assert run["peak_bytes"] > 0 or sys.platform != "linux"


def test_text_of_the_user_may_be_compressed(tmp_path: Path) -> None:
    from tests.data_prep.corpora import write_gz

    write_gz(tmp_path / "a.gz", "Ein kleines Haus.\nEin großes Haus.\n".encode() * 20)
    command = [sys.executable, SCRIPT, "--text", "a.gz", "--no-plain", "--workers", "1", "--bpe-tokens", "5"]
    done = subprocess.run(command, stdout=subprocess.PIPE, cwd=str(tmp_path), check=True)
    assert b"ours, 1 worker |" in done.stdout


def test_help() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--help"], stdout=subprocess.PIPE, check=True)
    assert b"--text" in done.stdout and b"--json" in done.stdout
