"""The demo at a small size: stopped, taken up again, finished, and finished at once when repeated."""

import signal
import subprocess
import sys
import time
from pathlib import Path

DEMO = Path(__file__).resolve().parents[3] / "scripts" / "demo.py"
SMALL = ["--pairs", "300", "--bpe-tokens", "100", "--", "--keep-last-epochs", "2", "--warmup-updates", "10"]


def start(folder, *flags, epochs=3):
    command = [sys.executable, str(DEMO), "--dir", str(folder), *flags, *SMALL, "--max-epoch", str(epochs)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes, start_new_session=True, preexec_fn=_hear_interrupts)


def _hear_interrupts():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests that run in the background of a shell inherit a deaf ear


def test_stop_resume_finish_repeat(tmp_path):
    first = start(tmp_path)
    deadline = time.monotonic() + 240
    while not any(tmp_path.glob("demo/*/checkpoints/checkpoint_last.pt")):
        assert first.poll() is None and time.monotonic() < deadline, first.communicate()[1]
        time.sleep(0.1)
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=100)
    assert first.returncode == 130 and "the same command goes on from here" in said, said

    second = start(tmp_path)
    table, said = second.communicate(timeout=400)
    assert second.returncode == 0, said
    logs = []
    for norm in ("ln", "pn"):
        run = tmp_path / "demo" / f"{norm}-seed1"
        assert len((run / "hyp.txt").read_text().splitlines()) == 400
        logs.append((run / "checkpoints" / "train.log").read_text())
    assert any("Loaded checkpoint" in log for log in logs)  # whichever had saved one went on from there
    assert "| LN " in table and "| PN " in table and "too small to rank norms" in table and "Where to go next" in table
    assert "<svg" in (tmp_path / "demo" / "table1.html").read_text()

    third = start(tmp_path)
    repeated, said = third.communicate(timeout=120)
    assert third.returncode == 0 and "ln-seed1: " not in said
    assert repeated.split("Finished")[0] == table.split("Finished")[0]

    other = start(tmp_path, epochs=4)
    _, said = other.communicate(timeout=60)
    assert other.returncode == 1 and "--max-epoch 3" in said.splitlines()[-1] and "Traceback" not in said


def test_unknown_norm_is_one_sentence(tmp_path):
    process = start(tmp_path / "new", "--norms", "ln,pnorm")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and "demo: --norms pnorm is not known; choose from bn, brn" in said
    assert not (tmp_path / "new").exists()
