"""The sentencepiece alternative, with sentencepiece itself."""

from pathlib import Path

import pytest

from data_prep.errors import DataPrepError
from data_prep.spm import apply_model, count_words, train_model
from powernorm_fairseq.scoring import remove_bpe

pytest.importorskip("sentencepiece")
COUNTS = {"ein": 9, "kleiner": 5, "kleines": 4, "haus": 7, "&apos;s": 3, "\u00e4pfel": 2, ".": 9, "hausboot": 2}


def segment(model: bytes, text: str, folder: Path) -> str:
    path = folder / "codes"
    path.write_bytes(model)
    return apply_model([text.encode("utf-8")], str(path), str(hash(model))).decode("utf-8")


def test_removing_the_pieces_gives_back_the_text(tmp_path: Path) -> None:
    text = "ein kleines hausboot &apos;s \u2026 \uff21 ungesehen .\n\nein \u65e5 haus | <0xE2>\n"
    pieces = segment(train_model(COUNTS, 300), text, tmp_path)
    assert pieces != text
    assert [remove_bpe(line, "sentencepiece") for line in pieces.split("\n")] == text.split("\n")


def test_every_character_survives_fairseqs_splitting_at_white_space(tmp_path: Path) -> None:
    model = train_model(count_words(["ein haus \u2581x a\u00a0b a\u3000c\n".encode()] * 5), 281)
    codes = [*range(1, 0x3100), 0x2581, 0xFEFF, 0xFFFD, 0x1F600, 0x10FFFD, 0x10FFFF]
    lines = [f"a{chr(code)}b \u2581{chr(code)}" for code in codes if code not in (0x0A, 0x20)]
    pieces = segment(model, "\n".join(lines) + "\n", tmp_path).split("\n")[:-1]
    assert [remove_bpe(" ".join(line.split()), "sentencepiece") for line in pieces] == lines


def test_order_of_counting_does_not_matter() -> None:
    backwards = dict(reversed(list(COUNTS.items())))
    assert train_model(COUNTS, 300) == train_model(backwards, 300)


def test_too_many_pieces_is_an_error() -> None:
    with pytest.raises(DataPrepError, match="could not learn 100000 pieces"):
        train_model(COUNTS, 100_000)
