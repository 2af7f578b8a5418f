"""Fixtures for tests that run fairseq for real, on a toy corpus made here; the option and the figures of the faults."""

import os
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

WORDS = [f"w{number}" for number in range(40)]
# fairseq imports scikit-learn and scipy for the scores of tasks that are not ours. Without them a program of fairseq
# starts in 2.7 s of processor time, and with them in 3.8, so the programs that tests start get stand-ins.
os.environ["PYTHONPATH"] = str(Path(__file__).parent / "light")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="fault tests: hundreds of kills")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    sums: "Counter[str]" = Counter()
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        if report.when == "call":
            for name, number in report.user_properties:
                if name.startswith("faults: "):
                    sums[name[len("faults: ") :]] += number
    if sums:
        terminalreporter.section("faults")
        for name, number in sorted(sums.items()):
            terminalreporter.write_line(f"{number:6d}  {name}")


def write_toy_corpus(folder: Path) -> None:
    """Sentences of random words; the translation is the sentence backwards."""
    generator = random.Random(1)
    for split, size in (("train", 200), ("valid", 30), ("test", 30)):
        sentences = [[generator.choice(WORDS) for _ in range(generator.randint(1, 12))] for _ in range(size)]
        (folder / f"{split}.de").write_text("".join(" ".join(words) + "\n" for words in sentences))
        (folder / f"{split}.en").write_text("".join(" ".join(reversed(words)) + "\n" for words in sentences))


@pytest.fixture(scope="session")
def toy_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a binarised corpus, joined dictionary."""
    folder = tmp_path_factory.mktemp("toy")
    write_toy_corpus(folder)
    preprocess(folder, "", "-s", "de", "-t", "en", "--joined-dictionary")
    return folder / "bin"


@pytest.fixture(scope="session")
def toy_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the English side of the corpus, binarised for language modelling."""
    folder = tmp_path_factory.mktemp("toy_text")
    write_toy_corpus(folder)
    preprocess(folder, ".en", "--only-source")
    return folder / "bin"


def preprocess(folder: Path, ending: str, *flags: str) -> None:
    """fairseq-preprocess in this process."""
    from fairseq_cli import preprocess

    argv = ["fairseq-preprocess", *flags, "--destdir", str(folder / "bin")]
    for split in ("train", "valid", "test"):
        argv += [f"--{split}pref", str(folder / (split + ending))]
    before, sys.argv = sys.argv, argv
    try:
        preprocess.cli_main()
    finally:
        sys.argv = before
