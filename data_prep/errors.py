"""The one exception of data preparation, and how a command line reports it."""

import sys
from typing import Callable, List, Optional


class DataPrepError(Exception):
    """Something the user can understand and mend; the message is one sentence naming the file and line concerned."""


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
        print("error: interrupted; run the same command again to continue", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader of our output went away (head, less): not our failure, and nothing more can be written
        sys.stderr.close()
        return 141
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"error: {error}", file=sys.stderr)
    return 1
