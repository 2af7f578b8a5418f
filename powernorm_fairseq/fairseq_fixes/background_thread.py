"""A training that stops within an epoch sometimes aborts at its very end, after its checkpoint is safe.

A thread of fairseq's fills a buffer of batches. It is still at work when the interpreter ends, is torn out of torch's
code, and takes the process with it (SIGABRT). Mended by ending the thread first.
"""

import atexit
import queue
import time
import weakref
from typing import Any, Iterator

from powernorm_fairseq.around import around

PATIENCE = 30.0  # seconds, for a batch that takes long to load
_threads: "weakref.WeakSet[Any]" = weakref.WeakSet()


def install() -> None:
    """Makes the threads end before the interpreter does."""
    from fairseq.data import iterators

    @around(iterators.BackgroundConsumer, "__init__")
    def init(fairseq_init: Any, self: Any, queue: Any, source: Any, *args: Any, **more: Any) -> None:
        fairseq_init(self, queue, _until_asked(self, source), *args, **more)
        self.asked_to_end = False
        _threads.add(self)

    atexit.register(_end_all)


def _until_asked(thread: Any, source: Any) -> Iterator[Any]:
    """What ``source`` gives, until the thread is asked to end."""
    for item in source:
        if thread.asked_to_end:
            return
        yield item


def _end_all() -> None:
    """Asks the threads to end and waits for them; one that waits for room in its buffer gets it."""
    threads = [thread for thread in _threads if thread.is_alive()]
    for thread in threads:
        thread.asked_to_end = True
    limit = time.monotonic() + PATIENCE
    while any(thread.is_alive() for thread in threads) and time.monotonic() < limit:
        for thread in threads:
            try:
                thread._queue.get_nowait()
            except queue.Empty:
                thread.join(0.01)
