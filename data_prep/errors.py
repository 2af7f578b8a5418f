"""The one exception of data preparation, and how a command line reports it."""

import errno
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Callable, List, Optional


class DataPrepError(Exception):
    """Something the user can understand and mend; the message is one sentence naming the file and line concerned."""


def explain_full_disk(error: OSError, path: Path, needed: Optional[int] = None) -> None:
    """Raises a sentence about a full disk if that is what happened; otherwise does nothing.

    Args:
        error: from writing.
        path: the file that was being written.
        needed: its size in bytes, where that is known.
    """
    if error.errno not in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
        return
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(str(folder)).free
    size = f"it needs {needed:,} bytes and " if needed is not None else ""
    where = os.path.abspath(str(folder))
    raise DataPrepError(f"no space left for {path}: {size}{free:,} bytes are free in {where}") from None


def run_main(main: Callable[[Optional[List[str]]], int], argv: Optional[List[str]] = None) -> int:
    """Runs a ``main`` function; an error becomes one sentence on standard error and exit status 1.

    Args:
        main: takes the argument list and returns the exit status.
        argv: arguments; ``None`` means ``sys.argv[1:]``.
    Returns: the exit status.
    """
    try:
        return main(argv)
    except DataPrepError as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # once is enough
        print("error: interrupted; run the same command again to continue", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader of our output went away (head, less): not our failure, and nothing more can be written
        sys.stderr.close()
        return 141
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"error: {error}", file=sys.stderr)
    return 1
