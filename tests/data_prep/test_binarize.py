"""fairseq's files against those of fairseq-preprocess itself."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep import binarize
from data_prep.parallel import WorkerPool
from tests.data_prep.corpora import snapshot

pytest.importorskip("fairseq")

ODD = ["<unk>", "<s>", "</s>", "<pad>", "madeupword0001", "a\u00a0b", "c\u2028d", "e\x1cf", "\u3000", "ü@@", "#"]


def write_text(folder: Path, words: int, lines: int) -> None:
    """Writes train, valid and test in two languages; blanks are where they should not be."""
    generator = random.Random(words)
    vocabulary = [f"w{number}" for number in range(words)] + ODD
    for split, count in (("train", lines), ("valid", 9), ("test", 7)):
        for lang in ("de", "en"):
            if split == "train":
                generator.shuffle(vocabulary)
            text = "".join(
                generator.choice(["", " ", "  "])
                + " ".join(
                    [*generator.choices(vocabulary, k=generator.randint(0, 9)), vocabulary[number % len(vocabulary)]]
                    if generator.random() < 0.95
                    else []
                )
                + generator.choice(["\n", " \n"])
                for number in range(count)
            )
            (folder / f"{split}.{lang}").write_text(text + ("new word" if split == "test" else ""), encoding="utf-8")


def preprocess(folder: Path, *flags: str, workers: int = 1) -> None:
    """The real program; where it starts no processes, within this one, which has loaded fairseq already."""
    arguments = ["--destdir", str(folder / "theirs"), "--workers", str(workers), *flags]
    ending = ".de" if "--only-source" in flags else ""
    for split in ("train", "valid", "test"):
        arguments += [f"--{split}pref", str(folder / (split + ending))]
    if workers > 1:
        command = [sys.executable, "-m", "fairseq_cli.preprocess", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    else:
        from fairseq.options import get_preprocessing_parser
        from fairseq_cli import preprocess as program

        program.main(get_preprocessing_parser().parse_args(arguments))
        for handler in list(program.logger.handlers):  # its preprocess.log
            program.logger.removeHandler(handler)
            handler.close()
    (folder / "theirs" / "preprocess.log").unlink()


@pytest.mark.parametrize("workers", [1, 3])
def test_a_pair_is_binarised_as_fairseq_does(tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_prep.parallel.CHUNK_LINES", 13)
    write_text(tmp_path, 50, 90)
    preprocess(tmp_path, "--source-lang", "de", "--target-lang", "en", "--joined-dictionary", workers=workers)
    (tmp_path / "ours").mkdir()
    with WorkerPool(workers) as pool:
        counts = pool.count(binarize.count_tokens, tmp_path / "train.de", tmp_path / "train.en")
        for lang in ("de", "en"):
            dictionary = tmp_path / "ours" / f"dict.{lang}.txt"
            binarize.write_dictionary(dictionary, binarize.make_dictionary(counts))
            for split in ("train", "valid", "test"):
                stem = tmp_path / "ours" / f"{split}.de-en.{lang}"
                facts = binarize.binarize(tmp_path / f"{split}.{lang}", dictionary, stem, pool)
    assert facts.lines == 8 and facts.unknown >= 2
    assert snapshot(tmp_path / "ours") == snapshot(tmp_path / "theirs")


@pytest.mark.parametrize(
    ("words", "threshold", "limit"),
    [(40, 0, -1), (40, 20, -1), (40, 0, 23), (40, 12, 30), (40, 0, 3), (70_000, 0, -1)],
    ids=["all words", "frequent ones", "23 words", "both limits", "no word at all", "numbers of four bytes"],
)
def test_text_is_binarised_as_fairseq_does(tmp_path: Path, words: int, threshold: int, limit: int) -> None:
    write_text(tmp_path, words, 200 if words < 1000 else 70_500)
    flags = ["--thresholdsrc", str(threshold), "--nwordssrc", str(limit)]
    preprocess(tmp_path, "--only-source", *flags)
    (tmp_path / "ours").mkdir()
    dictionary = tmp_path / "ours" / "dict.txt"
    with WorkerPool(1) as pool:
        counts = pool.count(binarize.count_tokens, tmp_path / "train.de")
        binarize.write_dictionary(dictionary, binarize.make_dictionary(counts, threshold, limit))
        for split in ("train", "valid", "test"):
            binarize.binarize(tmp_path / f"{split}.de", dictionary, tmp_path / "ours" / split, pool)
    assert snapshot(tmp_path / "ours") == snapshot(tmp_path / "theirs")


def test_a_carriage_return_does_not_end_a_line(tmp_path: Path) -> None:
    """fairseq-preprocess would make two sentences of it, and the languages would fall out of step."""
    (tmp_path / "text").write_bytes(b"a\rb\nc\n")
    binarize.write_dictionary(tmp_path / "dict.txt", binarize.make_dictionary({"a": 1, "b": 1}))
    with WorkerPool(1) as pool:
        assert binarize.binarize(tmp_path / "text", tmp_path / "dict.txt", tmp_path / "x", pool) == (2, 5, 1)
