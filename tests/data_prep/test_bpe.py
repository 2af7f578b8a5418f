"""BPE against subword-nmt itself."""

import io
import random
from pathlib import Path
from typing import List

import pytest

from data_prep.bpe import BPE, Settings, apply_codes, count_pieces, count_words, learn_codes
from data_prep.errors import DataPrepError

subword_learn = pytest.importorskip("subword_nmt.learn_bpe")
subword_apply = pytest.importorskip("subword_nmt.apply_bpe")


def random_text(seed: int, alphabet: str, lines: int) -> List[str]:
    generator = random.Random(seed)
    words = [
        "".join(generator.choice(alphabet) for _ in range(generator.choice([1, 2, 3, 5, 8, 13]))) for _ in range(150)
    ]
    return [" ".join(generator.choice(words) for _ in range(generator.randint(1, 15))) for _ in range(lines)]


def codes_of_subword_nmt(lines: List[str], merges: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(subword_learn, "tqdm", lambda steps: steps)
    out = io.StringIO()
    subword_learn.learn_bpe(io.StringIO("".join(line + "\n" for line in lines)), out, merges)
    return out.getvalue()


def codes_of_ours(lines: List[str], merges: int) -> str:
    return learn_codes(count_words([(line + "\n").encode("utf-8") for line in lines]), merges)


@pytest.mark.parametrize("alphabet", ["ab", "aaab", "abcdefghij", "a\\.*+\u00e4\u65e5", "xyz&;#0123456789"])
@pytest.mark.parametrize("merges", [1, 30, 1000])
def test_codes_are_those_of_subword_nmt(alphabet: str, merges: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(4):
        lines = random_text(seed, alphabet, 60)
        assert codes_of_ours(lines, merges) == codes_of_subword_nmt(lines, merges, monkeypatch)


@pytest.mark.parametrize("alphabet", ["ab", "abcdefghij", "a\\.*+\u00e4\u65e5"])
def test_segments_are_those_of_subword_nmt(alphabet: str) -> None:
    lines = random_text(7, alphabet, 100)
    codes = codes_of_ours(lines, 200)
    ours, theirs = BPE(codes), subword_apply.BPE(io.StringIO(codes))
    unseen = random_text(8, alphabet + "\u00fcq", 100)
    odd = ["", " ", "  a  b ", " ab", "ab ", "ab  ba", "a"]
    for line in lines + unseen + odd:
        assert ours.segment(line) == theirs.process_line(line)


def test_learning_stops_where_no_pair_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["ab cd ab"]
    codes = codes_of_ours(lines, 1000)
    assert codes == "#version: 0.2\na b</w>\n"
    assert codes == codes_of_subword_nmt(lines, 1000, monkeypatch)


def test_order_of_counting_does_not_matter() -> None:
    lines = random_text(9, "abcd", 80)
    assert codes_of_ours(lines, 100) == codes_of_ours(lines[::-1], 100)


def test_words_are_counted_between_blanks() -> None:
    assert count_words([b"a  b\n", b"b a\r\n", b"\n", "\u00e4\u00a0b".encode()]) == {"a": 2, "b": 2, "\u00e4\u00a0b": 1}


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_prep.parallel.CACHE_WORDS", 10)
    bpe = BPE("#version: 0.2\na b</w>\n")
    for number in range(100):
        assert bpe.segment(f"ab {number % 10}") == f"ab {number % 10}"
    assert len(bpe) <= 10


def test_nothing_to_merge_is_an_error() -> None:
    with pytest.raises(DataPrepError, match="nothing to merge"):
        learn_codes({"a": 3}, 10)


@pytest.mark.parametrize("codes", ["a b\n", "#version: 0.2\nabc\n", "", "#version: 0.1\na b\n"])
def test_other_files_are_not_codes(codes: str) -> None:
    with pytest.raises(DataPrepError, match="codes"):
        BPE(codes)


def test_a_vocabulary_threshold_and_glossaries_are_subword_nmts(tmp_path: Path) -> None:
    lines = random_text(3, "abc", 80)
    counts = count_words([(line + "\n").encode("utf-8") for line in lines])
    codes = codes_of_ours(lines, 60)
    vocabulary = count_pieces(counts, codes)
    segmented = [subword_apply.BPE(io.StringIO(codes)).process_line(line) for line in lines]
    expected = subword_learn.get_vocabulary(io.StringIO("\n".join(segmented) + "\n"))
    written = "".join(f"{word} {count}\n" for word, count in sorted(expected.items(), key=lambda x: x[1], reverse=True))
    assert vocabulary == written  # as subword-nmt learn-joint-bpe-and-vocab writes it
    (tmp_path / "codes").write_text(codes)
    (tmp_path / "vocab").write_text(vocabulary)
    data = [(line + "\n").encode("utf-8") for line in lines]
    plain = apply_codes(data, str(tmp_path / "codes"), "1")
    for settings in (
        Settings(vocabulary=str(tmp_path / "vocab"), threshold=60),
        Settings(glossaries=("a[bc]*",)),
        Settings(str(tmp_path / "vocab"), 60, ("a[bc]*", "bb")),
    ):
        kept = subword_apply.read_vocabulary(io.StringIO(vocabulary), 60) if settings.vocabulary else None
        theirs = subword_apply.BPE(io.StringIO(codes), vocab=kept, glossaries=list(settings.glossaries))
        ours = apply_codes(data, str(tmp_path / "codes"), "1", settings)
        assert ours.decode("utf-8") == "".join(theirs.process_line(line) + "\n" for line in lines)
        assert ours != plain


def test_dropout_leaves_out_merges_and_can_be_repeated(tmp_path: Path) -> None:
    lines = random_text(3, "abc", 80)
    codes = codes_of_ours(lines, 60)
    (tmp_path / "codes").write_text(codes)
    data = [(line + "\n").encode("utf-8") for line in lines]
    plain, some, again, more = (
        apply_codes(data, str(tmp_path / "codes"), "1", Settings(dropout=dropout)).decode("utf-8")
        for dropout in (0.0, 0.1, 0.1, 0.5)
    )
    assert some == again
    assert plain.count("@@") < some.count("@@") < more.count("@@")
    assert some.replace("@@ ", "") == plain.replace("@@ ", "")
