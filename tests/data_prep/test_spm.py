"""The sentencepiece alternative, with sentencepiece itself."""

from pathlib import Path

import pytest

from data_prep.errors import DataPrepError
from data_prep.spm import apply_model, train_model

pytest.importorskip("sentencepiece")
COUNTS = {"ein": 9, "kleiner": 5, "kleines": 4, "haus": 7, "&apos;s": 3, "\u00e4pfel": 2, ".": 9, "hausboot": 2}


def segment(model: bytes, text: str, folder: Path) -> str:
    path = folder / "codes"
    path.write_bytes(model)
    return apply_model([text.encode("utf-8")], str(path), str(hash(model))).decode("utf-8")


def test_removing_the_pieces_gives_back_the_text(tmp_path: Path) -> None:
    text = "ein kleines hausboot &apos;s \u2026 \uff21 ungesehen .\n\nein \u65e5 haus\n"
    pieces = segment(train_model(COUNTS, 45), text, tmp_path)
    assert pieces != text
    restored = [line.replace(" ", "").replace("\u2581", " ").strip() for line in pieces.split("\n")]
    assert restored == text.split("\n")


def test_order_of_counting_does_not_matter() -> None:
    backwards = dict(reversed(list(COUNTS.items())))
    assert train_model(COUNTS, 45) == train_model(backwards, 45)


def test_too_many_pieces_is_an_error() -> None:
    with pytest.raises(DataPrepError, match="could not learn 100000 pieces"):
        train_model(COUNTS, 100_000)
