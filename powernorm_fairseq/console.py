"""What the programs of this project say: one sentence for a failure, lines of progress on stderr."""

import pickle
import sys
from typing import Callable, Optional, Sequence, Tuple, Type

Arguments = Optional[Sequence[str]]


class UserError(ValueError):
    """A failure that one sentence explains: the setting or the file, what came, and what is allowed."""


def say(program: str, text: object) -> None:
    """A line of progress, after the program's name."""
    try:
        print("{}: {}".format(program, text), file=sys.stderr, flush=True)
    except OSError:  # the terminal is gone; the work is not
        pass


def run_main(
    program: str, function: Callable[[Sequence[str]], int], argv: Arguments, *more: Type[Exception]
) -> int:
    """Runs a program; a failure becomes a sentence and exit status 1, Ctrl-C one and 130.

    Args:
        program: its name, before the sentence.
        function: from arguments to the exit status.
        argv: arguments; None for those of the command line.
        more: exceptions whose text is such a sentence, besides UserError and those of files.
    """
    expected: Tuple[Type[Exception], ...] = (UserError, OSError, pickle.UnpicklingError, *more)
    try:
        return function(sys.argv[1:] if argv is None else list(argv))
    except expected as error:
        say(program, error)
        return 1
    except KeyboardInterrupt:
        say(program, "stopped; the same command goes on from here")
        return 130
