"""What the programs of this project say: one sentence for a failure, lines of progress on stderr."""

import functools
import pickle
import sys
from typing import Callable, Optional, Sequence, Tuple, Type

Program = Callable[[Sequence[str]], int]


class UserError(ValueError):
    """A failure that one sentence explains: the setting or the file, what came, and what is allowed."""


def say(program: str, text: object) -> None:
    """A line of progress, after the program's name."""
    try:
        print(f"{program}: {text}", file=sys.stderr, flush=True)
    except OSError:  # the terminal is gone; the work is not
        pass


def program(name: str, *more: Type[Exception]) -> Callable[[Program], Callable[..., int]]:
    """Makes a function from arguments to the exit status a program: without arguments it takes the command line's.

    A failure becomes a sentence and exit status 1, Ctrl-C one and 130.

    Args:
        name: before the sentence.
        more: exceptions whose text is such a sentence, besides UserError and those of files.
    """
    expected: Tuple[Type[Exception], ...] = (UserError, OSError, pickle.UnpicklingError, *more)

    def decorate(function: Program) -> Callable[..., int]:
        @functools.wraps(function)
        def main(argv: Optional[Sequence[str]] = None) -> int:
            try:
                return function(sys.argv[1:] if argv is None else list(argv))
            except expected as error:
                say(name, error)
                return 1
            except KeyboardInterrupt:
                say(name, "stopped; the same command goes on from here")
                return 130

        return main

    return decorate
