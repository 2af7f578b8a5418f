"""The demo at a small size: stopped, taken up again, finished, and finished at once when repeated."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

DEMO = Path(__file__).resolve().parents[3] / "scripts" / "demo.py"
SMALL = "--pairs 300 --epochs 2 --average 2 --bpe-tokens 100 --warmup-updates 10".split()


def start(folder, *flags):
    command = [sys.executable, str(DEMO), "--dir", str(folder), *SMALL, *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes, start_new_session=True, preexec_fn=_hear_interrupts)


def _hear_interrupts():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests that run in the background of a shell inherit a deaf ear


def test_stop_resume_finish_repeat(tmp_path):
    first = start(tmp_path)
    deadline = time.monotonic() + 240
    while not any(tmp_path.glob("*/checkpoint_last.pt")):
        assert first.poll() is None and time.monotonic() < deadline, first.communicate()[1]
        time.sleep(0.2)
    os.killpg(first.pid, signal.SIGINT)  # as ctrl-C does
    _, said = first.communicate(timeout=60)
    assert first.returncode == 130 and "the same command goes on from here" in said

    second = start(tmp_path)
    table, said = second.communicate(timeout=400)
    assert second.returncode == 0, said
    assert "training ended" in said
    for norm in ("ln", "pn"):
        assert f"| {norm} | " in table
        assert len((tmp_path / norm / "test" / "hyp.txt").read_text().splitlines()) == 400
    logs = [(tmp_path / norm / "train.log").read_text() for norm in ("ln", "pn")]
    assert any("Loaded checkpoint" in log for log in logs)  # whichever had saved one went on from there
    assert table.startswith("\n" + (tmp_path / "results.md").read_text())
    assert "Where to go next" in table

    third = start(tmp_path)
    repeated, said = third.communicate(timeout=120)
    assert third.returncode == 0 and "2/3 training: done before" in said
    assert repeated.split("finished")[0] == table.split("finished")[0]

    other = start(tmp_path, "--epochs", "3")
    _, said = other.communicate(timeout=60)
    assert other.returncode == 1 and "holds a demo with other settings" in said and "Traceback" not in said


def test_unknown_norm_is_one_sentence(tmp_path):
    process = start(tmp_path / "new", "--norms", "ln,pnorm")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and "demo: --norms pnorm is not known; choose from ln, rms" in said
    assert not (tmp_path / "new").exists()
