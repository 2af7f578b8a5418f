"""A table of four trainings on a private Slurm while everything goes wrong: every run ends as if nothing had happened.

``CHAOS_MINUTES`` (20) says for how long; the figures are printed at the end.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("fairseq")

from tests.experiments.slurm.cluster import Cluster, why_not
from tests.faults.training import checkpoint, differences

ROOT = Path(__file__).resolve().parents[3]
NORMS = ("ln", "pn", "bn", "pnv")
MINUTES = float(os.environ.get("CHAOS_MINUTES", "20"))
FLAGS = (
    "--encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 "
    "--encoder-layers 1 --decoder-layers 1 --num-workers 0 --max-tokens 100 --log-interval 100 --warmup-updates 20 "
    f"--keep-last-epochs 2 --max-epoch {max(20, int(MINUTES * 60))} --cpu"
).split()
CLOCK = ["--time", "4", "--warning", "90"]  # stretches of a few minutes
LOOK = 180  # seconds after which the owner looks again
PATIENCE = 60 * 15  # seconds after the chaos in which all has to end


class Chaos:
    """Does harm to the cluster and its jobs, of a kind at a time, and counts it."""

    def __init__(self, cluster, disk, seed):
        self.cluster = cluster
        self.disk = disk
        self.random = random.Random(seed)
        self.done = Counter()
        self.kinds = [self.kill_process, self.kill_process, self.kill_starter, self.kill_step, self.kill_slurmd,
                      self.kill_controller, self.fill_disk, self.warn]  # fmt: skip

    def strike(self):
        kind = self.random.choice(self.kinds)
        if kind():
            self.done[kind.__name__.replace("_", " ")] += 1

    def _victims(self, pattern):
        found = subprocess.run(["pgrep", "-f", pattern], stdout=subprocess.PIPE).stdout.split()
        return [int(pid) for pid in found if str(self.disk).encode() in _command(int(pid))]

    def kill_process(self):
        """Of a training."""
        return self._kill(self._victims("fairseq-train"))

    def kill_starter(self):
        """The starter that watches it."""
        return self._kill(self._victims("powernorm_fairseq train"))

    def _kill(self, victims):
        if not victims:
            return False
        try:
            os.kill(self.random.choice(victims), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def _running(self):
        return [job for job, state in self.cluster.states().items() if state == "RUNNING"]

    def kill_step(self):
        jobs = self._running()
        return bool(jobs) and not self.cluster.call("scancel", "--signal=KILL", f"{self.random.choice(jobs)}.0")

    def warn(self):
        """As a time limit does."""
        jobs = self._running()
        return bool(jobs) and not self.cluster.call("scancel", "--batch", "--signal=USR1", self.random.choice(jobs))

    def kill_slurmd(self):
        return self._kill_daemon("slurmd")

    def kill_controller(self):
        return self._kill_daemon("slurmctld")

    def _kill_daemon(self, name):
        """It comes back after some seconds, as a service does."""
        process = self.random.choice([each for each in self.cluster.processes if each.args[0] == name])
        self.cluster.processes.remove(process)
        process.kill()
        process.wait()
        time.sleep(self.random.uniform(1, 10))
        self.cluster._start(*process.args)
        return True

    def fill_disk(self):
        """For some seconds nothing can be written."""
        file = self.disk / "filler"
        with open(str(file), "wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(1 << 16))
            except OSError:
                pass
        time.sleep(self.random.uniform(2, 15))
        file.unlink()
        return True


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def small_disk():
    """A disk of its own, that can be full without harm to others."""
    folder = Path(tempfile.mkdtemp(prefix="disk-"))
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", str(folder)]).returncode != 0:
        pytest.skip("no disk can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
    folder.rmdir()


@pytest.fixture
def private_cluster():
    if why_not() is not None:
        pytest.skip(why_not())
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    started = Cluster(folder)
    try:
        started.start()
        yield started
    finally:
        started.stop()
        shutil.rmtree(str(folder))


def command(data, folder, *more):
    own = ["table1", "--dataset", "demo", "--norms", ",".join(NORMS), "--data", data, "--dir", folder, *more]
    return [sys.executable, str(ROOT / "scripts" / "reproduce.py"), *map(str, own), "--", *FLAGS]


def states(folder):
    found = {}
    for norm in NORMS:
        file = folder / "demo" / f"{norm}-seed1" / "checkpoints" / "status.json"
        try:
            found[norm] = json.loads(file.read_text())["state"]
        except (OSError, ValueError):
            found[norm] = "none"
    return found


@pytest.mark.slow
def test_a_table_survives_everything(private_cluster, small_disk, toy_data, tmp_path, capsys):
    env = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(command(toy_data, tmp_path / "calm", "--jobs", 2), env=env, **quiet)
    assert set(states(tmp_path / "calm").values()) == {"finished"}

    tries = {"POWERNORM_REQUEUES": "999", "POWERNORM_RETRIES": "999", "POWERNORM_IDLE_RETRIES": "999"}
    saving = {"POWERNORM_SAVE_MINUTES": "0.1", "POWERNORM_HANG_MINUTES": "1"}
    env = {**private_cluster.env, **env, "PATH": private_cluster.env["PATH"], **tries, **saving}
    launch = command(toy_data, small_disk, "--launcher", "slurm", *CLOCK)
    chaos, begin, submitted, next_look = Chaos(private_cluster, small_disk, seed=1), time.monotonic(), 0, 0.0
    try:
        while set(states(small_disk).values()) != {"finished"}:
            passed = time.monotonic() - begin
            assert passed < 60 * MINUTES + PATIENCE, (states(small_disk), chaos.done, private_cluster.states())
            if time.monotonic() > next_look:
                # Slurm takes a machine out of service that has a job it should not have; its owner puts it back.
                for name in private_cluster.machines:
                    private_cluster.call("scontrol", "update", f"NodeName={name}", "State=RESUME")
                # Slurm loses jobs when its controller is killed; the owner's command submits those again, and no other.
                subprocess.run(launch, env=env, **quiet)
                submitted += 1
                next_look = time.monotonic() + LOOK
            if passed < 60 * MINUTES:
                chaos.strike()
            time.sleep(chaos.random.uniform(2, 15))
        different = {}
        for norm in NORMS:
            ours, theirs = (
                checkpoint(folder / "demo" / f"{norm}-seed1" / "checkpoints" / "checkpoint_last.pt")
                for folder in (small_disk, tmp_path / "calm")
            )
            different[norm] = differences(ours, theirs)
    finally:
        starts = [_count(small_disk, norm, "train.log", "train: 20") for norm in NORMS]
        failures = [_count(small_disk, norm, "failures", "") for norm in NORMS]
        with capsys.disabled():
            print(f"\nchaos: {(time.monotonic() - begin) / 60:.1f} minutes, the table submitted {submitted} times")
            print(f"chaos: {dict(chaos.done)}")
            print(f"chaos: starts {dict(zip(NORMS, starts))}, failures {dict(zip(NORMS, failures))}")
            print(f"chaos: {states(small_disk)}")
    assert not any(different.values()), {norm: lines[:5] for norm, lines in different.items()}


def _count(folder, norm, name, start):
    file = folder / "demo" / f"{norm}-seed1" / "checkpoints" / name
    return sum(line.startswith(start) for line in file.read_text(errors="replace").splitlines()) if file.exists() else 0
