"""fairseq's binary data written directly: the files of ``fairseq-preprocess``, byte for byte, in less time.

Words are what white space separates, as fairseq's ``tokenize_line`` has it; lines end at line feeds only. The tests
compare dictionary, ``.bin`` and ``.idx`` with those of the real program.
"""

import functools
import itertools
import struct
from array import array
from collections import Counter
from pathlib import Path
from typing import BinaryIO, Dict, Iterable, List, Mapping, NamedTuple, Tuple

from data_prep.download import file_sha256
from data_prep.manifest import writing
from data_prep.parallel import WorkerPool, read_chunks

#: The first words of every dictionary, in this order; a text may contain them as words.
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
_EOS, _UNKNOWN = SPECIAL.index("</s>"), SPECIAL.index("<unk>")
_MAGIC = b"MMIDIDX\x00\x00"
#: Dictionaries are filled up to a multiple of this with made-up words.
_PADDING = 8


class Counts(NamedTuple):
    """Of one binarised text: its lines, its tokens (ends of lines included), and how many are unknown."""

    lines: int
    tokens: int
    unknown: int


def count_tokens(lines: List[bytes]) -> Dict[str, int]:
    """Counts the words of a chunk of lines."""
    return Counter(b"".join(lines).decode("utf-8").split())


def make_dictionary(counts: Mapping[str, int], threshold: int = 0, num_words: int = -1) -> List[Tuple[str, int]]:
    """Returns the words of a dictionary and their counts, the special ones left out.

    Args:
        counts: word -> how often training has it.
        threshold: rarer words are left out.
        num_words: most words, the four special ones counted; no limit if it is not positive.
    """
    known = sorted((word, count) for word, count in counts.items() if word not in SPECIAL)
    known.sort(key=lambda item: -item[1])  # stable: of equals the first in order of code points
    if num_words > 0:
        known = known[: max(num_words - len(SPECIAL), 0)]
    known = [item for item in known if item[1] >= threshold]
    words = {word for word, _ in known}
    number = 0
    while (len(known) + len(SPECIAL)) % _PADDING:
        filler = f"madeupword{number:04d}"
        if filler not in words:
            known.append((filler, 0))
        number += 1
    return known


def write_dictionary(path: Path, words: Iterable[Tuple[str, int]]) -> None:
    """Writes a dictionary as fairseq does."""
    with writing([path]) as (stream,):
        stream.write("".join([f"{word} {count}\n" for word, count in words]).encode("utf-8"))


class _Index(dict):
    """Word -> its number; what it does not have is the unknown word."""

    def __missing__(self, word: str) -> int:
        return _UNKNOWN


@functools.lru_cache(maxsize=2)
def _load(path: str, digest: str) -> Tuple[_Index, str]:
    """The numbers of this process for a dictionary, and the type of array that holds them."""
    text = Path(path).read_text(encoding="utf-8")
    words = [line.rpartition(" ")[0] for line in text.split("\n")[:-1]]
    index = _Index((word, number) for number, word in enumerate([*SPECIAL, *words]))
    return index, "H" if len(index) < 65500 else "I"


def binarize_chunk(lines: List[bytes], path: str, digest: str) -> Tuple[array, array]:
    """Returns the numbers of the words of a chunk of lines by a dictionary, and the lengths of the lines."""
    index, kind = _load(path, digest)
    number = index.__getitem__
    numbers, lengths = array(kind), array("i")
    text = b"".join(lines).decode("utf-8").split("\n")
    for line in text if text[-1] else text[:-1]:
        ids = list(map(number, line.split()))
        ids.append(_EOS)
        numbers.fromlist(ids)
        lengths.append(len(ids))
    return numbers, lengths


def binarize(text: Path, dictionary: Path, stem: Path, pool: WorkerPool) -> Counts:
    """Writes ``STEM.bin`` and ``STEM.idx``.

    Args:
        text: words separated by white space.
        dictionary: as ``write_dictionary`` writes it.
        stem: path without ending.
        pool: does the work.
    """
    digest = file_sha256(dictionary)
    work = functools.partial(binarize_chunk, path=str(dictionary), digest=digest)
    lengths = array("i")
    unknown = 0
    paths = [stem.with_name(stem.name + end) for end in (".bin", ".idx")]
    with writing(paths) as (data, index), open(str(text), "rb") as stream:
        for numbers, own in pool.map(work, read_chunks(stream)):
            numbers.tofile(data)
            lengths.extend(own)
            unknown += numbers.count(_UNKNOWN)
        _write_index(index, lengths, _load(str(dictionary), digest)[1])
    return Counts(len(lengths), sum(lengths), unknown)


def _write_index(stream: BinaryIO, lengths: array, kind: str) -> None:
    """Writes an index of fairseq's mmap format: where each line begins and how long it is."""
    code, width = {"H": (8, 2), "I": (9, 4)}[kind]  # numpy's uint16 and uint32
    stream.write(_MAGIC + struct.pack("<QBQ", 1, code, len(lengths)))
    lengths.tofile(stream)
    ends = itertools.accumulate(lengths)
    pointers = array("q", [0] if lengths else [])
    pointers.extend(end * width for end in itertools.islice(ends, max(len(lengths) - 1, 0)))
    pointers.tofile(stream)
