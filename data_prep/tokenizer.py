#!/usr/bin/env python3
"""The Moses tokeniser without Perl: standard input to standard output, all cores, any length of text.

With ``--normalize`` and ``--lowercase`` it is a whole pipe of scripts: normalize-punctuation.perl, tokenizer.perl,
lowercase.perl, in this order. The functions for use from Python are in ``data_prep.moses`` and
``data_prep.normalize``; ``tokenize_lines`` here combines them.
"""

import argparse
import functools
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Iterable, List, Optional, Tuple

if __package__ in (None, ""):  # run as a script: the first entry is this folder, whose modules are not top-level ones
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from data_prep.errors import DataPrepError, run_main
from data_prep.moses import get_tokenizer
from data_prep.normalize import lowercase, normalize_punctuation, remove_non_printing
from data_prep.parallel import WorkerPool, read_chunks

_WHITE_SPACE = re.compile("[^\\S\x1c-\x1f]*").fullmatch  # Perl's: without U+001C to U+001F


@dataclass(frozen=True)
class Steps:
    """What happens to the lines of a text, in this order.

    Attributes:
        lower_first: lower-case the raw text.
        normalize: normalise punctuation.
        printing: replace characters that do not print.
        tokenize: tokenise as Moses does; otherwise the text stays plain, but for runs of blanks.
        aggressive: split at hyphens when tokenising.
        clean: fewest and most tokens and greatest ratio of a pair that stays; ``None`` keeps all.
        lower_last: lower-case the tokens.
    """

    lower_first: bool = False
    normalize: bool = False
    printing: bool = False
    tokenize: bool = True
    aggressive: bool = False
    clean: Optional[Tuple[int, int, float]] = None
    lower_last: bool = False


def prepare_text(text: str, lang: str, steps: Steps, escape: bool = True) -> List[str]:
    """Does the steps that need one language only, up to the tokens.

    Args:
        text: lines separated, and unless it is the end of a file also ended, by line feeds.
        lang: language code.
        steps: what to do.
        escape: XML escapes. Default: ``True``
    Returns: tokenised lines, without line feeds.
    """
    ended = text.endswith("\n")
    if ended:
        text = text[:-1]
    if steps.lower_first:
        text = lowercase(text)
    if steps.normalize:
        text = normalize_punctuation(text, lang, ended)
    if steps.printing:
        text = remove_non_printing(text)
    if not steps.tokenize:
        return [" ".join(filter(None, line.split(" "))) for line in text.split("\n")]
    tokens = get_tokenizer(lang, steps.aggressive, escape).tokenize
    return [tokens(line) for line in text.split("\n")]


def tokenize_lines(lines: Iterable[str], lang: str = "en", escape: bool = True, **steps: Any) -> List[str]:
    """Tokenises lines that have no line feed, with further :class:`Steps` before it.

    Example: ``tokenize_lines(["Das ist usw."], "de")`` gives ``["Das ist usw ."]``
    """
    lines = list(lines)
    return prepare_text("\n".join(lines) + "\n", lang, Steps(**steps), escape) if lines else []


def _tokenize_chunk(task: Tuple[int, List[bytes]], options: argparse.Namespace) -> bytes:
    """Does one chunk: the number of its first line, and its lines."""
    start, lines = task
    data = b"".join(lines)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = start + data.count(b"\n", 0, error.start)
        raise DataPrepError(f"line {line} of the input is not valid UTF-8") from None
    steps = Steps(aggressive=options.aggressive, normalize=options.normalize)
    result = "\n".join(prepare_text(text, options.lang, steps, not options.no_escape))
    if options.lowercase:
        result = lowercase(result)
    # the script prints a line of white space as it finds it, also without a line feed at the end of the file
    ended = text.endswith("\n") or not _WHITE_SPACE(text.rpartition("\n")[2])
    return (result + "\n" if ended else result).encode("utf-8")


def tokenize_stream(source: BinaryIO, target: BinaryIO, options: argparse.Namespace) -> None:
    """Tokenises UTF-8 text chunk by chunk, with options as from ``build_parser``."""

    def numbered() -> Iterable[Tuple[int, List[bytes]]]:
        start = 1
        for chunk in read_chunks(source):
            yield start, chunk
            start += len(chunk)

    # loaded once here, before the workers split off
    get_tokenizer(options.lang, options.aggressive, not options.no_escape)
    with WorkerPool(options.workers) as pool:
        for result in pool.map(functools.partial(_tokenize_chunk, options=options), numbered()):
            target.write(result)
    target.flush()


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description="Tokenise standard input as Moses tokenizer.perl does; the result goes to standard output.",
    )
    parser.add_argument("-l", "--lang", default="en", metavar="LANG", help="language code (default: %(default)s)")
    parser.add_argument("-a", "--aggressive", action="store_true", help="split hyphenated words: a-b becomes a @-@ b")
    parser.add_argument("--lowercase", action="store_true", help="lower-case the tokens, as lowercase.perl does")
    parser.add_argument(
        "--normalize", action="store_true", help="normalise punctuation first, as normalize-punctuation.perl does"
    )
    parser.add_argument("--no-escape", action="store_true", help="leave & | < > ' \" [ ] as they are")
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: all cores)")
    return parser


def main(argv: Optional[List[str]] = None) -> int:
    """Runs the command line; returns the exit status."""
    tokenize_stream(sys.stdin.buffer, sys.stdout.buffer, build_parser().parse_args(argv))
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
