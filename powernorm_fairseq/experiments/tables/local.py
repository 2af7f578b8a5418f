"""Runs what is missing of a table on this machine, several trainings side by side.

A run is taken by a lock on its folder. What another command has taken, or a train.sh that was started by hand, is left
to it: the runs that are free come first, and then this command waits for the others and takes up what they leave.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import IO, Any, Dict, Iterator, List, Optional, Sequence, Tuple

from powernorm_fairseq.console import UserError
from powernorm_fairseq.experiments import checks, ranks
from powernorm_fairseq.experiments.corpora import CORPORA
from powernorm_fairseq.experiments.tables.progress import Display, describe
from powernorm_fairseq.experiments.tables.run import Run

POLL = 0.5  # seconds
POWERNORM = (sys.executable, "-m", "powernorm_fairseq")
OUTPUT = "output.log"  # of the step that is being done; gone when it ended well


class Stopped(KeyboardInterrupt):
    """The user stopped everything, and it has stopped."""


class Worker:
    """A run that this command has taken, and the program that does its current step.

    Args:
        run: which.
        with_scores: whether the test set is to be scored.
        env: of the programs.
        held: the lock.
    """

    def __init__(self, run: Run, with_scores: bool, env: Dict[str, str], held: Any) -> None:
        self.run = run
        self.with_scores = with_scores
        self.env = env
        self.held = held
        self.step = ""
        self.process: Optional["subprocess.Popen[bytes]"] = None
        self.output: Optional[IO[bytes]] = None

    def advance(self) -> bool:
        """Starts the next step when the one before has ended; returns whether all is done. Raises if a step failed."""
        if self.process is not None:
            if self.process.poll() is None:
                return False
            self._check()
        command = self._next()
        if command is None:
            self.run.collect()
            self.release()
            return True
        self.output = open(str(self.run.folder / OUTPUT), "wb")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=self.output,
            env=self.env,
            start_new_session=True,  # Ctrl-C is for this command, which then asks
            preexec_fn=_stop_with_parent,
        )
        return False

    def _next(self) -> Optional[List[str]]:
        if not self.run.trained:
            self.step = "training"
            return [*POWERNORM, "train", *self.run.train_words()]
        if self.with_scores and not self.run.scored:
            self.step = "averaging, decoding and scoring"
            return [*POWERNORM, "score-runs", *self.run.score_words()]
        return None

    def _check(self) -> None:
        """Raises if the step did not do what it should have done."""
        status, step = self.process.returncode, self.step
        self.process = None
        self.output.close()
        file = self.run.folder / OUTPUT
        if status == 0 and (self.run.trained if step == "training" else self.run.scored):
            file.unlink()
            return
        if status == ranks.STOPPED:
            raise UserError("its training was stopped by someone else")
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        sentences = [line for line in lines if line.startswith(("train: ", "score: ", "evaluate", "average_"))]
        raise UserError(f"{step} failed: {(sentences or lines or ['no output'])[-1].strip()} (see {file})")

    def ask_to_stop(self) -> None:
        """Training saves and ends; anything else just ends."""
        if self.process is not None and self.process.poll() is None:
            if self.step == "training":
                self.process.send_signal(signal.SIGTERM)
            else:
                os.killpg(self.process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Ends at once what still runs; training goes on from its last checkpoint."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # the processes of a training go with it

    def release(self) -> None:
        """Gives the run back."""
        if self.process is not None:
            self.process.wait()
            self.process = None
        if self.output is not None:
            self.output.close()
        self.held.close()


def _stop_with_parent() -> None:
    """In a new process: if this command is killed, training saves and ends, too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def environments(jobs: int, dataset: str, gpus: int) -> List[Dict[str, str]]:
    """The environment of each of the trainings side by side: cores and GPUs divided among them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    each = max(1, gpus // jobs) if CORPORA[dataset].processes > 1 else 1
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = allowed if len(allowed) >= gpus > 0 and allowed[0] else [str(number) for number in range(gpus)]
    result = []
    for index in range(jobs):
        env = {"OMP_NUM_THREADS": str(max(1, cores // jobs)), **os.environ}
        if gpus:
            chosen = [names[(index * each + number) % gpus] for number in range(each)]
            env["CUDA_VISIBLE_DEVICES"] = ",".join(chosen)
        result.append(env)
    return result


def take(run: Run) -> Optional[Any]:
    """The lock of a run, or None if it is someone else's."""
    run.folder.mkdir(parents=True, exist_ok=True)
    try:
        held = checks.lock(run.folder)
    except UserError:
        return None
    if run.trains_elsewhere:
        held.close()
        return None
    return held


def run_all(
    runs: Sequence[Tuple[Run, bool]], envs: Sequence[Dict[str, str]], signals: List[int], train: bool = True
) -> Dict[str, str]:
    """Does what is missing.

    Args:
        runs: each with whether its test set is to be scored.
        envs: one for each run at a time.
        signals: SIGINT and SIGTERM that came, from :func:`noting_signals`.
        train: False leaves out what has no finished training.

    Returns:
        Name -> why it failed, for those that did.

    Raises:
        Stopped: a signal came, and all programs have ended.
    """
    display = Display()
    waiting = [(run, scores) for run, scores in runs if not run.done(scores)]
    workers: List[Tuple[int, Worker]] = []  # with the number of their environment
    failures: Dict[str, str] = {}
    if not train:
        failures = {run.name: f"its training is {run.state()}" for run, _ in waiting if not run.trained}
        waiting = [(run, scores) for run, scores in waiting if run.trained]
    try:
        while waiting or workers:
            if signals:
                _stop([worker for _, worker in workers], signals, display)
                raise Stopped
            elsewhere = _start(waiting, workers, envs)
            for slot, worker in list(workers):
                try:
                    if worker.advance():
                        display.note(f"{worker.run.name}: finished")
                        workers.remove((slot, worker))
                except (UserError, OSError, KeyError, ValueError) as error:
                    failures[worker.run.name] = str(error)
                    display.note(f"{worker.run.name}: {error}")
                    worker.release()
                    workers.remove((slot, worker))
            lines = [describe(worker.run, worker.step) for _, worker in workers]
            lines += [describe(run, "training") + " (started by another command)" for run in elsewhere]
            display.show(lines)
            if waiting or workers:
                time.sleep(POLL)
    finally:
        display.clear()
        for _, worker in workers:
            worker.kill()
            worker.release()
    return failures


def _start(
    waiting: List[Tuple[Run, bool]], workers: List[Tuple[int, Worker]], envs: Sequence[Dict[str, str]]
) -> List[Run]:
    """Fills free places with runs that can be had; returns those that are someone else's."""
    elsewhere = []
    for run, scores in list(waiting):
        free = [slot for slot in range(len(envs)) if slot not in [taken for taken, _ in workers]]
        if not free:
            break
        if run.done(scores):  # by another command
            waiting.remove((run, scores))
            continue
        held = take(run)
        if held is None:
            elsewhere.append(run)
            continue
        waiting.remove((run, scores))
        workers.append((free[0], Worker(run, scores, dict(envs[free[0]]), held)))
    return elsewhere


@contextmanager
def noting_signals() -> Iterator[List[int]]:
    """Inside, SIGINT and SIGTERM do no more than append their number to a list."""
    noted: List[int] = []
    before = {
        number: signal.signal(number, lambda received, frame: noted.append(received))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(workers: Sequence[Worker], signals: List[int], display: Display) -> None:
    """Asks all programs to end and waits for them; at a second signal, ends them at once."""
    if any(worker.step == "training" for worker in workers):
        display.note("stopping: trainings save after this update; again to stop at once")
    asked, start = 0.0, len(signals)
    while any(worker.process is not None and worker.process.poll() is None for worker in workers):
        if len(signals) > start:
            return  # what still runs is killed
        if time.monotonic() - asked > 2:  # again and again: a training that is starting does not listen yet
            asked = time.monotonic()
            for worker in workers:
                worker.ask_to_stop()
        time.sleep(0.1)


def default_jobs(dataset: str, gpus: int) -> int:
    """Trainings side by side: one for each GPU, or one where a training wants all of them, or where there are none."""
    return 1 if CORPORA[dataset].processes > 1 else max(1, gpus)
