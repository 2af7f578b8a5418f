"""Joint subwords by sentencepiece on plain text: the alternative to ``bpe``.

The model is trained on word counts and not on the text, so that memory grows with the vocabulary only. It is a BPE
model without any normalisation of its own, and what it has no piece for is written as bytes (``<0xE2>``): removing the
subwords gives back every character. White space other than blanks is always written as bytes: fairseq splits at it.
"""

import functools
import io
from collections import Counter
from typing import TYPE_CHECKING, Dict, List, Sequence

from data_prep.errors import DataPrepError

if TYPE_CHECKING:
    import sentencepiece

#: What sentencepiece writes for a blank; the same character in a text is written as bytes.
_BLANK = "\u2581"
_BLANK_BYTES = [f"<0x{byte:02X}>" for byte in _BLANK.encode("utf-8")]


def count_words(lines: List[bytes]) -> Dict[str, int]:
    """Counts the words of a chunk of plain lines; white space never becomes part of a piece."""
    return Counter(b"".join(lines).decode("utf-8").replace(_BLANK, " ").split())


def train_model(counts: Dict[str, int], vocab_size: int) -> bytes:
    """Returns a sentencepiece model, as the contents of its file.

    Args:
        counts: word -> how often it occurs in the training text of both languages.
        vocab_size: number of pieces, the model's three special ones and 256 bytes included.
    Raises: DataPrepError if the words do not allow that many pieces.
    """
    import sentencepiece

    # most frequent first, equals in order of their letters: the same whatever the order of counting was
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    model = io.BytesIO()
    try:
        # no files: their paths would become part of the model
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in ordered),
            input_format="tsv",
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            character_coverage=1.0,
            byte_fallback=True,
            normalization_rule_name="identity",
            num_threads=1,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise DataPrepError(f"sentencepiece could not learn {vocab_size} pieces: {reason}") from None
    return model.getvalue()


@functools.lru_cache(maxsize=1)
def _load(path: str, digest: str) -> "sentencepiece.SentencePieceProcessor":
    """Returns the processor of this process for a model; the digest tells its contents from earlier ones."""
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=path)


def _encode(processor: "sentencepiece.SentencePieceProcessor", line: str) -> List[str]:
    """Encodes a line with sentencepiece's sign for a blank; a character that it does not know holds its place."""
    holder = next(char for char in map(chr, range(0x10FFFD, 0x100000, -1)) if char not in line)
    pieces = " ".join(processor.encode(line.replace(_BLANK, holder), out_type=str))
    held = " ".join(f"<0x{byte:02X}>" for byte in holder.encode("utf-8"))
    return pieces.replace(held, " ".join(_BLANK_BYTES)).split(" ")


def apply_model(lines: Sequence[bytes], path: str, digest: str) -> bytes:
    """Segments a chunk of plain lines by a model, whose digest stands for its contents."""
    processor = _load(path, digest)
    text = b"".join(lines).decode("utf-8").split("\n")
    pieces = processor.encode([line if _BLANK not in line else "" for line in text], out_type=str)
    for number, line in enumerate(text):
        if _BLANK in line:
            pieces[number] = _encode(processor, line)
    return "\n".join([" ".join(line) for line in pieces]).encode("utf-8")
