"""The demo's corpus: fixed by its seed, written whole or not at all."""

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List

import pytest

from data_prep import demo_grammar as grammar
from data_prep.demo_draw_clauses import Composer

SCRIPT = Path(grammar.__file__)


def digest(pairs) -> str:
    return hashlib.sha256("".join("%s\t%s\n" % pair for pair in pairs).encode("utf-8")).hexdigest()


FIRST_1000 = "d2d96d54b88c3abfc5ee6aab0ad0745afcf205b908cfe8146266d6d0add50926"


def test_the_corpus_of_a_seed_never_changes() -> None:
    """After a change on purpose, scores on the demo corpus are new ones: say so when updating the digest."""
    assert digest(grammar.generate(1000, 1)) == FIRST_1000


def test_hash_randomisation_does_not_matter() -> None:
    code = "import demo_grammar as g; print(*['\\t'.join(p) for p in g.generate(200, 1)], sep='\\n')"
    texts = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONIOENCODING": "utf-8"}
        texts.append(
            subprocess.run(
                [sys.executable, "-c", code],
                cwd=str(SCRIPT.parent),
                env=environment,
                check=True,
                stdout=subprocess.PIPE,
            ).stdout.decode("utf-8")
        )
    assert texts[0] == texts[1]
    assert texts[0].splitlines() == ["\t".join(pair) for pair in grammar.generate(200, 1)]


def test_draws_use_nothing_but_random() -> None:
    class OnlyRandom:
        def __init__(self) -> None:
            self.random = random.Random(1).random

    composer = Composer(OnlyRandom())
    assert [grammar.sentence(composer) for _ in range(50)][0] == next(grammar.generate(1, 1))


def test_seeds_differ() -> None:
    assert digest(grammar.generate(50, 1)) != digest(grammar.generate(50, 2))


def test_a_longer_run_starts_with_the_shorter_one() -> None:
    assert list(grammar.generate(300, 4))[:100] == list(grammar.generate(100, 4))


def test_no_sentence_of_either_language_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = iter([("a", "x"), ("b", "x"), ("a", "y"), ("a", "x"), ("c", "z")])
    monkeypatch.setattr(grammar, "sentence", lambda composer: next(draws))
    assert list(grammar.generate(2, 3)) == [("a", "x"), ("c", "z")]


def test_negative_numbers_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="num_pairs=-1"):
        grammar.generate(-1, 1)


SIZES = {"train": 300, "valid": 20, "test": 30}


def read(folder: Path) -> Dict[str, List[str]]:
    return {path.name: path.read_text(encoding="utf-8").splitlines() for path in sorted(folder.glob("*.[de][en]"))}


def test_write_corpus_writes_every_split_in_both_languages(tmp_path: Path) -> None:
    assert grammar.write_corpus(tmp_path / "new" / "folder", SIZES, seed=2)
    files = read(tmp_path / "new" / "folder")
    expected = {"%s.%s" % (split, language): size for split, size in SIZES.items() for language in ("de", "en")}
    assert {name: len(lines) for name, lines in files.items()} == expected
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == sorted([*expected, "corpus.json"])
    pairs = {pair for split in SIZES for pair in zip(files[split + ".de"], files[split + ".en"])}
    assert pairs == set(grammar.generate(350, 2))
    raw = (tmp_path / "new" / "folder" / "test.de").read_bytes()
    assert raw.endswith(b"\n") and b"\r" not in raw and "ü".encode("utf-8") in raw


def test_splits_share_no_sentence(tmp_path: Path) -> None:
    grammar.write_corpus(tmp_path, SIZES)
    files = read(tmp_path)
    for language in ("de", "en"):
        sentences = [line for split in SIZES for line in files["%s.%s" % (split, language)]]
        assert len(sentences) == len(set(sentences)) == sum(SIZES.values())


def test_a_larger_train_split_leaves_the_others_alone(tmp_path: Path) -> None:
    grammar.write_corpus(tmp_path / "small", SIZES)
    grammar.write_corpus(tmp_path / "large", {**SIZES, "train": 500})
    small, large = read(tmp_path / "small"), read(tmp_path / "large")
    assert large["train.de"][:300] == small["train.de"] and len(large["train.de"]) == 500
    assert all(large[name] == small[name] for name in small if not name.startswith("train"))


def test_test_split_uses_known_words_in_new_sentences(tmp_path: Path) -> None:
    grammar.write_corpus(tmp_path, {"train": 5000, "test": 300})
    files = read(tmp_path)
    for language, unseen_share in (("de", 0.03), ("en", 0.01)):
        known = {word for line in files["train." + language] for word in line.split()}
        tokens = [word for line in files["test." + language] for word in line.split()]
        assert sum(word not in known for word in tokens) <= unseen_share * len(tokens)


def test_an_existing_corpus_is_left_alone(tmp_path: Path) -> None:
    grammar.write_corpus(tmp_path, SIZES)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert not grammar.write_corpus(tmp_path, SIZES)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("changed", [{"seed": 9}, {"sizes": {**SIZES, "train": 310}}])
def test_another_corpus_is_replaced_only_if_asked(tmp_path: Path, changed: Dict[str, object]) -> None:
    grammar.write_corpus(tmp_path, SIZES)
    before = read(tmp_path)
    settings = {"sizes": SIZES, **changed}
    with pytest.raises(FileExistsError, match="holds another corpus"):
        grammar.write_corpus(tmp_path, **settings)
    assert read(tmp_path) == before
    assert not list(tmp_path.glob("*.partial"))
    assert grammar.write_corpus(tmp_path, **settings, overwrite=True)
    assert not grammar.write_corpus(tmp_path, **settings)
    assert read(tmp_path) != before


def test_a_damaged_corpus_is_noticed(tmp_path: Path) -> None:
    grammar.write_corpus(tmp_path, SIZES)
    intact = read(tmp_path)
    (tmp_path / "valid.en").write_text("something else\n", encoding="utf-8")
    with pytest.raises(FileExistsError, match="valid.en"):
        grammar.write_corpus(tmp_path, SIZES)
    (tmp_path / "valid.en").unlink()
    assert grammar.write_corpus(tmp_path, SIZES)
    assert read(tmp_path) == intact


def test_a_corpus_of_another_grammar_is_not_taken_for_this_one(tmp_path: Path) -> None:
    grammar.write_corpus(tmp_path, SIZES)
    stamp = json.loads((tmp_path / "corpus.json").read_text(encoding="utf-8"))
    (tmp_path / "corpus.json").write_text(json.dumps({**stamp, "grammar": "older"}), encoding="utf-8")
    assert grammar.write_corpus(tmp_path, SIZES)


def test_an_error_halfway_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = grammar.generate

    def interrupted(num_pairs: int, seed: int):
        for index, pair in enumerate(generate(num_pairs, seed)):
            if index == 250:
                raise KeyboardInterrupt
            yield pair

    monkeypatch.setattr(grammar, "generate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        grammar.write_corpus(tmp_path, SIZES)
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_between_the_renames_is_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, calls = os.replace, []

    def interrupted(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 3:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(grammar.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        grammar.write_corpus(tmp_path, SIZES)
    assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.undo()
    assert grammar.write_corpus(tmp_path, SIZES)
    assert {name: len(lines) for name, lines in read(tmp_path).items()}["train.de"] == 300
    assert not grammar.write_corpus(tmp_path, SIZES)


def test_a_killed_run_is_simply_run_again(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--train", "1000000"]
    process = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 30
        while not list(tmp_path.glob("train.de*")) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    assert [path.name for path in tmp_path.glob("train.*")] and not (tmp_path / "train.de").exists()
    assert not (tmp_path / "corpus.json").exists()
    assert grammar.write_corpus(tmp_path, SIZES)
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("sizes", [{"train": -1}, {"../train": 3}])
def test_bad_sizes_are_refused(tmp_path: Path, sizes: Dict[str, int]) -> None:
    with pytest.raises(ValueError, match="sizes="):
        grammar.write_corpus(tmp_path / "out", sizes)
    assert not (tmp_path / "out").exists()


# The command line


def test_command_line_writes_and_then_finishes_at_once(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    argv = ["--out", str(tmp_path), "--train", "40", "--valid", "5", "--test", "6", "--seed", "3"]
    assert grammar.main(argv) == 0
    output = capsys.readouterr().out
    assert "train: 40 pairs" in output and "test: 6 pairs" in output and output.endswith("written\n")
    assert grammar.main(argv) == 0
    assert "already complete" in capsys.readouterr().out
    assert len(read(tmp_path)["test.en"]) == 6


def test_command_line_reports_what_is_in_the_way(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    argv = ["--out", str(tmp_path), "--train", "40", "--valid", "5", "--test", "6"]
    assert grammar.main(argv) == 0
    assert grammar.main([*argv, "--seed", "8"]) == 1
    assert "holds another corpus" in capsys.readouterr().err
    assert grammar.main([*argv, "--seed", "8", "--overwrite"]) == 0


def test_script_runs_by_its_path_from_anywhere(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT)]
    usage = subprocess.run([*command, "--help"], cwd=str(tmp_path), check=True, stdout=subprocess.PIPE).stdout.decode()
    assert "--train" in usage and "20000" in usage
    subprocess.run(
        [*command, "--out", "corpus", "--train", "10", "--valid", "2", "--test", "2"],
        cwd=str(tmp_path),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    assert len(read(tmp_path / "corpus")["train.de"]) == 10
