"""Joint subwords by sentencepiece: the alternative to ``bpe``.

The model is trained on word counts and not on the text, so that memory grows with the vocabulary only. It is a BPE
model without any normalisation of its own, because the text has been normalised by its recipe and removing the
subwords must give back exactly the tokenised text.
"""

import functools
import io
from typing import TYPE_CHECKING, Dict, List

from data_prep.errors import DataPrepError

if TYPE_CHECKING:
    import sentencepiece


def train_model(counts: Dict[str, int], vocab_size: int) -> bytes:
    """Returns a sentencepiece model, as the contents of its file.

    Args:
        counts: word -> how often it occurs in the training text of both languages.
        vocab_size: number of pieces, the model's three special ones included.
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


def apply_model(lines: List[bytes], path: str, digest: str) -> bytes:
    """Segments a chunk of lines.

    Args:
        lines: tokenised lines.
        path: model file.
        digest: stands for its contents.
    """
    text = b"".join(lines).decode("utf-8")
    pieces = _load(path, digest).encode(text.split("\n"), out_type=str)
    return "\n".join([" ".join(line) for line in pieces]).encode("utf-8")
