"""Work spread over processes, with results in order and memory that does not grow with the input.

Files are read as bytes and cut at line feeds only, as Perl does; a chunk is some thousand lines. At most a few chunks
per worker are under way at a time. Each result depends on its own chunk alone, so the number of workers changes the
speed and nothing else.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional, TypeVar

from data_prep.errors import DataPrepError

if TYPE_CHECKING:
    from tqdm import tqdm

#: A chunk ends after this many lines or, where lines are long, this many bytes.
CHUNK_LINES = 4000
CHUNK_BYTES = 1 << 20
#: Words that a cache remembers before it starts afresh: bounds a worker at about 100 MB.
CACHE_WORDS = 200_000

_CHUNKS_PER_WORKER = 3

Task = TypeVar("Task")
Result = TypeVar("Result")


class WordCache(dict):
    """Remembers what ``make`` returned for each word; emptied when full."""

    def __init__(self, make: Callable[[str], Any]):
        super().__init__()
        self._make = make

    def __missing__(self, word: str) -> Any:
        if len(self) >= CACHE_WORDS:
            self.clear()
        result = self[word] = self._make(word)
        return result


def progress_bar(title: str, unit: str, total: Optional[int] = None, done: int = 0) -> "tqdm":
    """Returns a bar on standard error, a context manager to be moved with ``update``; silent without a terminal."""
    from tqdm import tqdm

    return tqdm(desc=title, unit=unit, unit_scale=True, total=total, initial=done, disable=None)


def default_workers() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _begin_worker(parent: int, lock: Optional[int]) -> None:
    """Ends this worker when its parent is gone: a killed parent cannot tell its workers to stop."""
    if lock is not None:
        os.close(lock)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Holds SIGINT back. Workers that start meanwhile never get it: Ctrl-C reaches all, and the parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WorkerPool:
    """Processes that apply functions to chunks; with one worker the work is done in this process.

    Args:
        workers: number of processes; ``None`` means all cores. Default: ``None``
        lock: file descriptor that workers close: a lock that they inherited would outlive the run it belongs to.
    Example: ``with WorkerPool(4) as pool: results = list(pool.map(len, chunks))``
    """

    def __init__(self, workers: Optional[int] = None, lock: Optional[int] = None):
        self.workers = default_workers() if workers is None else workers
        self._lock = lock if multiprocessing.get_start_method() == "fork" else None
        if self.workers < 1:
            raise DataPrepError(f"workers={self.workers} makes no sense; give 1 or more")
        self._executor: Optional[ProcessPoolExecutor] = None

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._executor is not None:
            # never Future.cancel: an executor with a killed worker may hang on cancelled futures (Python 3.8 to 3.11)
            cancel = {"cancel_futures": True} if sys.version_info >= (3, 9) else {}
            with _without_ctrl_c():  # once is enough
                self._executor.shutdown(wait=True, **cancel)
            self._executor = None

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Yields ``function(task)`` for each task, in order; only a few tasks are taken ahead.

        The function must be importable by name, for the sake of the other processes.
        """
        if self.workers == 1:
            yield from map(function, tasks)
            return
        if self._executor is None:
            self._executor = ProcessPoolExecutor(
                self.workers, initializer=_begin_worker, initargs=(os.getpid(), self._lock)
            )
        pending: Deque = deque()
        try:
            for task in tasks:
                with _without_ctrl_c():
                    pending.append(self._executor.submit(function, task))
                if len(pending) > _CHUNKS_PER_WORKER * self.workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            raise DataPrepError(
                "a worker process was killed, perhaps for want of memory; try fewer --workers"
            ) from None

    def count(self, function: Callable[[List[bytes]], Dict[str, int]], *paths: Path) -> "Counter[str]":
        """Adds up what a function counts in each chunk of texts; words come in the order of their first occurrence."""
        counts: "Counter[str]" = Counter()
        for path in paths:
            with open(str(path), "rb") as stream:
                for part in self.map(function, read_chunks(stream)):
                    counts.update(part)
        return counts


def read_chunks(lines: Iterable[Task], size_of: Callable[[Any], float] = len) -> Iterator[List[Task]]:
    """Groups lines, or whatever else has a size in bytes, into chunks."""
    chunk: List[Task] = []
    size = 0.0
    for line in lines:
        chunk.append(line)
        size += size_of(line)
        if len(chunk) >= CHUNK_LINES or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0.0
    if chunk:
        yield chunk
