"""Runs what is missing of a table on this machine, several trainings side by side.

A run is taken by a lock on its folder. What another command has taken, or a train.sh that was started by hand, is left
to it: the runs that are free come first, and then this command waits for the others and takes up what they leave.
"""

import functools
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import Any, Dict, Generator, Iterator, List, Optional, Sequence, Tuple

from powernorm_fairseq import console
from powernorm_fairseq.console import UserError
from powernorm_fairseq.experiments import checks, ranks
from powernorm_fairseq.experiments.corpora import CORPORA
from powernorm_fairseq.experiments.tables.run import Run

POLL = 0.5  # seconds
PAUSE = 60.0  # seconds between plain lines about the same run
POWERNORM = (sys.executable, "-m", "powernorm_fairseq")
OUTPUT = "output.log"  # of the step that is being done; gone when it ended well
say = functools.partial(console.say, "reproduce")


class Worker:
    """A run that this command has taken, and the program that does its current step.

    Args:
        run: which.
        with_scores: whether the test set is to be scored.
        env: of the programs.
        held: the lock.
    """

    def __init__(self, run: Run, with_scores: bool, env: Dict[str, str], held: Any) -> None:
        self.run, self.env, self.step = run, env, ""
        self.process: Optional["subprocess.Popen[bytes]"] = None
        self.work = self._work(with_scores, held)

    def _work(self, with_scores: bool, held: Any) -> Generator[None, None, None]:
        """Does one step after the other and hands over while a program runs. Raises if a step failed."""
        run, file = self.run, self.run.folder / OUTPUT
        scoring = "averaging, decoding and scoring"
        steps = (
            ("training", lambda: run.trained, ["train", *run.train_words()]),
            (scoring, lambda: run.scored or not with_scores, ["score-runs", *run.score_words()]),
        )
        try:
            for step, done, words in steps:
                if done():
                    continue
                self.step = step
                with open(str(file), "wb") as output:
                    self.process = subprocess.Popen(
                        [*POWERNORM, *words],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        env=self.env,
                        start_new_session=True,  # Ctrl-C is for this command, which then asks
                        preexec_fn=lambda: ranks.end_with_parent(signal.SIGTERM),  # a training then saves
                    )
                while self.process.poll() is None:
                    yield
                if self.process.returncode == ranks.STOPPED:
                    raise UserError("its training was stopped by someone else")
                if self.process.returncode != 0 or not done():
                    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
                    ours = [line for line in lines if line.startswith(("train: ", "score: ", "evaluate", "average_"))]
                    raise UserError(f"{step} failed: {(ours or lines or ['no output'])[-1].strip()} (see {file})")
                file.unlink()
            run.collect()
        finally:
            self.end(signal.SIGKILL)
            held.close()

    @property
    def runs(self) -> bool:
        """Whether a program is at work."""
        return self.process is not None and self.process.poll() is None

    def end(self, how: int) -> None:
        """By SIGTERM a training saves and ends; anything else just ends, and a training's processes with it."""
        if self.runs and how == signal.SIGTERM and self.step == "training":
            self.process.send_signal(how)
        elif self.runs:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def environments(jobs: int, dataset: str, gpus: int) -> List[Dict[str, str]]:
    """The environment of each of the trainings side by side: cores and GPUs divided among them."""
    each = max(1, gpus // jobs) if CORPORA[dataset].processes > 1 else 1
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = allowed if len(allowed) >= gpus > 0 and allowed[0] else [str(number) for number in range(gpus)]
    result = []
    for index in range(jobs):
        env = {"OMP_NUM_THREADS": str(max(1, ranks.count_cores() // jobs)), **os.environ}
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
        KeyboardInterrupt: a signal came, and all programs have ended.
    """
    display = Display()
    waiting = [(run, scores) for run, scores in runs if not run.done(scores)]
    free, workers = list(envs), []  # type: List[Dict[str, str]], List[Worker]
    failures: Dict[str, str] = {}
    if not train:
        failures = {run.name: f"its training is {run.state()}" for run, _ in waiting if not run.trained}
        waiting = [(run, scores) for run, scores in waiting if run.trained]
    try:
        while waiting or workers:
            if signals:
                _stop(workers, signals, display)
                raise KeyboardInterrupt
            elsewhere = []
            for run, scores in list(waiting) if free else []:
                held = None if run.done(scores) else take(run)
                if held is None and not run.done(scores):
                    elsewhere.append(run)
                    continue
                waiting.remove((run, scores))  # taken, or done by another command
                if held is not None:
                    workers.append(Worker(run, scores, free.pop(0), held))
                if not free:
                    break
            for worker in list(workers):
                try:
                    next(worker.work)
                    continue
                except StopIteration:
                    display.note(f"{worker.run.name}: finished")
                except (UserError, OSError, KeyError, ValueError) as error:
                    failures[worker.run.name] = str(error)
                    display.note(f"{worker.run.name}: {error}")
                workers.remove(worker)
                free.append(worker.env)
            lines = [_describe(worker) for worker in workers]
            display.show(lines + [run.describe() + " (started by another command)" for run in elsewhere])
            if waiting or workers:
                time.sleep(POLL)
    finally:
        display.clear()
        for worker in workers:
            worker.work.close()
    return failures


def _describe(worker: Worker) -> str:
    return worker.run.describe() if worker.step == "training" else f"{worker.run.name}: {worker.step}"


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


def _stop(workers: Sequence[Worker], signals: List[int], display: "Display") -> None:
    """Asks all programs to end and waits for them; at a second signal, returns, and what still runs is killed."""
    if any(worker.step == "training" for worker in workers):
        display.note("stopping: trainings save after this update; again to stop at once")
    asked, start = 0.0, len(signals)
    while any(worker.runs for worker in workers) and len(signals) == start:
        if time.monotonic() - asked > 2:  # again and again: a training that is starting does not listen yet
            asked = time.monotonic()
            for worker in workers:
                worker.end(signal.SIGTERM)
        time.sleep(0.1)


def default_jobs(dataset: str, gpus: int) -> int:
    """Trainings side by side: one for each GPU, or one where a training wants all of them, or where there are none."""
    return 1 if CORPORA[dataset].processes > 1 else max(1, gpus)


class Display:
    """Shows on stderr one line for each run that is being worked on: in place on a terminal, otherwise now and then."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self.shown: List[str] = []
        self.last: Dict[str, float] = {}

    def show(self, lines: Sequence[str]) -> None:
        """Replaces the lines shown before, or on no terminal adds those whose run has been silent for a while."""
        if self.terminal and list(lines) != self.shown:
            self.clear()
            sys.stderr.write("".join(line + "\n" for line in lines))
            sys.stderr.flush()
            self.shown = list(lines)
        for line in () if self.terminal else lines:
            name = line.split(":")[0]
            if time.monotonic() - self.last.get(name, -PAUSE) >= PAUSE:
                self.last[name] = time.monotonic()
                say(line)

    def clear(self) -> None:
        """Takes back what stands on the terminal, so that other lines can be written."""
        if self.shown:
            sys.stderr.write(f"\x1b[{len(self.shown)}A\x1b[J")
            self.shown = []

    def note(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        say(text)
