"""Text for language models, on archives made here: results, counts, faults, second runs."""

import gzip
import json
import logging
import subprocess
import zipfile
from pathlib import Path
from typing import Dict

import pytest

from data_prep.corpora import main
from data_prep.errors import DataPrepError
from data_prep.extract import extract
from data_prep.lm import LMPipeline, Options
from data_prep.recipes import LM_RECIPES, lm_text, ptb, wikitext2, wikitext103
from tests.data_prep.corpora import snapshot, write_tgz
from tests.data_prep.http_server import FaultyServer

ROOT = Path(__file__).resolve().parents[2]
PTB_TEXT = {
    "train": " aer banknote <unk> N the market \n the market <unk> rose\n the N market\n",
    "valid": " the market \n",
    "test": " <unk> market unheard \n",
}
WIKITEXT = {
    "train": " \n = Title = \n \n The @-@ text of <unk> 3 @,@ 000 \u3000 words . \n",
    "valid": " = A = \n \n",
    "test": " \n The text \n",
}


def write_ptb(folder: Path) -> Path:
    files = {f"./simple-examples/data/ptb.{split}.txt": text for split, text in PTB_TEXT.items()}
    write_tgz(folder / "simple-examples.tgz", {**files, "./simple-examples/README": "not wanted\n"})
    return folder


def write_zip(path: Path, files: Dict[str, str]) -> None:
    with zipfile.ZipFile(str(path), "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, text in files.items():
            bundle.writestr(name, text)


def write_wikitext103(folder: Path) -> Path:
    write_zip(
        folder / "wikitext-103-v1.zip",
        {"wikitext-103/": "", **{f"wikitext-103/wiki.{split}.tokens": text for split, text in WIKITEXT.items()}},
    )
    return folder


def write_text(folder: Path) -> Dict[str, tuple]:
    (folder / "a.txt").write_text("Mr. Smith's dog (old) runs.\n\nThe dog's house\n", encoding="utf-8")
    (folder / "b.txt.gz").write_bytes(gzip.compress("The dog runs & runs\n".encode()))
    (folder / "c.txt").write_text("The cat's dog\n", encoding="utf-8")
    return {
        "train": (folder / "a.txt", folder / "b.txt.gz"),
        "valid": (folder / "c.txt",),
        "test": (folder / "c.txt",),
    }


def facts(out: Path) -> dict:
    return json.loads((out / "manifest.json").read_text())["stages"]


def binarised(out: Path, split: str) -> list:
    """The words that fairseq reads from the result."""
    from fairseq.data import Dictionary, data_utils

    dictionary = Dictionary.load(str(out / "bin" / "dict.txt"))
    lines = data_utils.load_indexed_dataset(str(out / "bin" / split), dictionary)
    return [[dictionary[index] for index in line] for line in lines]


def test_ptb_over_http(tmp_path, caplog):
    data = (write_ptb(tmp_path) / "simple-examples.tgz").read_bytes()
    out = tmp_path / "out"
    with FaultyServer({"simple-examples.tgz": data}) as server, caplog.at_level(logging.WARNING):
        server.drop_after = [len(data) // 2]  # and it goes on where the connection broke off
        assert main(["lm", "ptb", "--out", str(out), "--mirror", server.url, "--workers", "1", "--until", "tok"]) == 0
    assert len(server.requests) == 2
    lines = (out / "tok/train.txt").read_text().split("\n")
    assert lines == ["aer banknote <unk> N the market", "the market <unk> rose", "the N market", ""]
    assert facts(out)["tok"]["tokens"] == {"train": 13 + 3, "valid": 3, "test": 4}  # the end of a line is a token
    assert "train has 16 tokens; the published archive gives 929589" in caplog.text
    assert not (out / "raw").exists()


def test_ptb_to_binarised_words(tmp_path, caplog):
    out = tmp_path / "out"
    with caplog.at_level(logging.WARNING):
        LMPipeline(ptb(), Options(out=out, source=write_ptb(tmp_path), workers=1)).run()
    assert facts(out)["bin"]["unknown"] == {"train": 2, "valid": 0, "test": 2} and facts(out)["bin"]["words"] == 6
    assert binarised(out, "test") == [["<unk>", "market", "<unk>", "</s>"]]  # fairseq's own <unk>
    assert "<unk>" not in (out / "bin/dict.txt").read_text()
    assert "the dictionary has 7 words; the published one has 9999" in caplog.text
    assert not (out / "bin/preprocess.log").exists()


def test_wikitext103_keeps_empty_lines_and_counts_their_ends(tmp_path):
    out = tmp_path / "out"
    LMPipeline(wikitext103(), Options(out=out, source=write_wikitext103(tmp_path), workers=1, until="tok")).run()
    assert (out / "tok/train.txt").read_text() == "\n= Title =\n\nThe @-@ text of <unk> 3 @,@ 000 words .\n"
    assert facts(out)["tok"]["tokens"] == {"train": 17, "valid": 5, "test": 4}
    assert facts(out)["tok"]["lines"] == {"train": 4, "valid": 2, "test": 2}


def test_published_counts():
    assert ptb().expected == {"train": 929_589, "valid": 73_760, "test": 82_430}
    assert wikitext103().expected == {"train": 103_227_021, "valid": 217_646, "test": 245_569}


@pytest.mark.slow  # the end of test_ptb_to_binarised_words with other settings, twice
def test_any_text_tokenised_lower_cased_with_rare_words_unknown(tmp_path):
    texts = write_text(tmp_path)
    out = tmp_path / "out"
    options = {"tokenize": "en", "lowercase": True, "min_count": 2, "workers": 1}
    LMPipeline(lm_text(texts), Options(out=out, **options)).run()
    lines = (out / "tok/train.txt").read_text().split("\n")
    assert lines == ["mr. smith 's dog ( old ) runs .", "", "the dog 's house", "the dog runs & runs", ""]
    assert binarised(out, "test") == [["the", "<unk>", "'s", "dog", "</s>"]]
    assert [line.count("runs") for line in binarised(out, "train")] == [1, 0, 0, 2]
    before = snapshot(out)
    LMPipeline(lm_text(texts), Options(out=out, **options)).run()  # nothing is left to do
    assert snapshot(out) == before
    with pytest.raises(DataPrepError, match="max_words was None and is 6.*--overwrite to redo bin"):
        LMPipeline(lm_text(texts), Options(out=out, max_words=6, **options)).run()
    LMPipeline(lm_text(texts), Options(out=out, max_words=6, overwrite=True, **options)).run()
    assert binarised(out, "test") == [["<unk>", "<unk>", "<unk>", "dog", "</s>"]]  # fairseq counts its own four words
    texts["valid"][0].write_text("other\n")
    with pytest.raises(DataPrepError, match="was made otherwise"):
        LMPipeline(lm_text(texts), Options(out=out, max_words=6, **options)).run()


def test_a_name_may_have_braces(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / (split + " {x}.txt")).write_text("the dog\n")
    flags = [word for split in ("train", "valid", "test") for word in ("--" + split, f"{tmp_path}/{split} {{x}}.txt")]
    assert main(["lm", "text", *flags, "--out", str(tmp_path / "out"), "--workers", "1", "--until", "tok"]) == 0
    assert (tmp_path / "out/tok/train.txt").read_text() == "the dog\n"


def test_text_is_tokenised_and_lower_cased_if_asked(tmp_path):
    texts = write_text(tmp_path)
    LMPipeline(lm_text(texts), Options(out=tmp_path / "as it is", workers=1, until="tok")).run()
    assert (tmp_path / "as it is/tok/test.txt").read_text() == "The cat's dog\n"
    LMPipeline(lm_text(texts), Options(out=tmp_path / "lower", lowercase=True, workers=1, until="tok")).run()
    assert (tmp_path / "lower/tok/test.txt").read_text() == "the cat's dog\n"
    LMPipeline(lm_text(texts), Options(out=tmp_path / "tokens", tokenize="en", workers=1, until="tok")).run()
    assert (tmp_path / "tokens/tok/test.txt").read_text() == "The cat 's dog\n"


@pytest.mark.parametrize("settings, words", [({"min_count": 3}, {"the"}), ({"max_words": 6}, {"the", "cat"})])
def test_limits_of_the_vocabulary(tmp_path, settings, words):
    for split, text in (("train", "the the the cat cat dog\n"), ("valid", "the dog\n"), ("test", "cow\n")):
        (tmp_path / split).write_text(text)
    texts = {split: (tmp_path / split,) for split in ("train", "valid", "test")}
    LMPipeline(lm_text(texts), Options(out=tmp_path / "out", workers=1, **settings)).run()
    dictionary = [line.split(" ") for line in (tmp_path / "out/bin/dict.txt").read_text().splitlines()]
    assert {word for word, count in dictionary if count != "0"} == words
    assert facts(tmp_path / "out")["bin"]["unknown"] == {"train": 6 - sum(map("the the the cat cat dog".split().count,
                                                         words)), "valid": 1, "test": 1}  # fmt: skip


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_bare_files_do_without_their_archive(tmp_path, ending):
    for split, text in (("train", " a b <unk> \n \n"), ("valid", " a \n"), ("test", " b c\n")):
        path = tmp_path / f"wiki.{split}.tokens{ending}"
        path.write_bytes(gzip.compress(text.encode()) if ending else text.encode())
    LMPipeline(wikitext2(), Options(out=tmp_path / "out", source=tmp_path, workers=1)).run()
    assert (tmp_path / "out/tok/train.txt").read_text() == "a b <unk>\n\n"
    assert facts(tmp_path / "out")["tok"]["tokens"] == {"train": 5, "valid": 2, "test": 3}
    (tmp_path / f"wiki.test.tokens{ending}").unlink()
    with pytest.raises(DataPrepError, match="has neither wikitext-2-v1.zip nor wiki.test.tokens"):
        LMPipeline(wikitext2(), Options(out=tmp_path / "other", source=tmp_path, workers=1))


def test_subwords(tmp_path):
    texts = write_text(tmp_path)
    LMPipeline(lm_text(texts), Options(out=tmp_path / "bpe", bpe_tokens=5, workers=1, until="bpe")).run()
    pieces = (tmp_path / "bpe/bpe/train.txt").read_text()
    assert "@@ " in pieces
    assert pieces.replace("@@ ", "") == (tmp_path / "bpe/tok/train.txt").read_text()
    assert facts(tmp_path / "bpe")["bpe"]["tokens"]["train"] == len(pieces.split()) + 4


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"min_count": 0}, "min_count=0 makes no sense"),
        ({"max_words": 0}, "max_words=0 makes no sense"),
        ({"bpe_tokens": 0}, "bpe_tokens=0 makes no sense"),
        ({"until": "bpe"}, "until='bpe' is not known; choose from tok, bin"),
    ],
)
def test_bad_settings_are_refused(tmp_path, settings, message):
    with pytest.raises(DataPrepError, match=message):
        LMPipeline(lm_text(write_text(tmp_path)), Options(out=tmp_path / "out", **settings))


def test_bad_input_is_found_before_anything_is_written(tmp_path):
    for content, message in ((b"a\n\xff\n", "line 2 is not valid UTF-8"), (b"", "there is no text in it")):
        texts = write_text(tmp_path)
        texts["valid"][0].write_bytes(content)
        with pytest.raises(DataPrepError, match="c.txt: .*" + message):
            LMPipeline(lm_text(texts), Options(out=tmp_path / "out", workers=1)).run()
        assert not (tmp_path / "out").exists()
    texts = {**write_text(tmp_path), "test": (tmp_path / "none.txt",)}
    with pytest.raises(DataPrepError, match="none.txt: no such file"):
        LMPipeline(lm_text(texts), Options(out=tmp_path / "out")).run()
    (tmp_path / "u.txt").write_text("a <unk>\n")
    texts = {split: (tmp_path / "u.txt",) for split in texts}
    with pytest.raises(DataPrepError, match="has the word <unk>, which has no subwords"):
        LMPipeline(lm_text(texts), Options(out=tmp_path / "out", bpe_tokens=3, workers=1)).run()


def test_damaged_hostile_and_incomplete_archives(tmp_path):
    archive = write_wikitext103(tmp_path) / "wikitext-103-v1.zip"
    whole = archive.read_bytes()
    options = Options(out=tmp_path / "out", source=tmp_path, workers=1)
    archive.write_bytes(whole[:-30])
    with pytest.raises(DataPrepError, match="wikitext-103-v1.zip is damaged or incomplete"):
        LMPipeline(wikitext103(), options).run()
    flipped = bytearray(whole)
    flipped[whole.index(b"wiki.train.tokens") + 25] ^= 255
    archive.write_bytes(flipped)
    with pytest.raises(DataPrepError, match="damaged or incomplete"):
        LMPipeline(wikitext103(), options).run()
    write_zip(archive, {"../../escape": "x", "wikitext-103/wiki.train.tokens": "x\n"})
    with pytest.raises(DataPrepError, match="refusing to unpack '../../escape'"):
        LMPipeline(wikitext103(), options).run()
    write_zip(archive, {"wikitext-103/wiki.train.tokens": "x\n"})
    with pytest.raises(DataPrepError, match="wiki.test.tokens, wikitext-103/wiki.valid.tokens is not in"):
        LMPipeline(wikitext103(), options).run()
    assert not (tmp_path / "out").exists()
    with pytest.raises(DataPrepError, match="no such file"):
        extract(tmp_path / "none.zip", tmp_path, ["x"])


def test_command_line(tmp_path, capsys):
    done = subprocess.run([str(ROOT / "data_prep/prepare.sh"), "lm", "--help"], stdout=subprocess.PIPE, check=True)
    help_text = done.stdout.decode()
    assert all(name in help_text for name in LM_RECIPES)
    for recipe in LM_RECIPES.values():
        for count in recipe().expected.values():
            assert f"{count:,}" in help_text
    for corpus, flags in (("ptb", ("--from", "--mirror")), ("text", ("--tokenize", "--min-count", "--bpe-tokens"))):
        command = [str(ROOT / "data_prep/prepare.sh"), "lm", corpus, "--help"]
        shown = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode()
        assert all(flag in shown for flag in flags)
    texts = write_text(tmp_path)
    arguments = [word for split in texts for word in ("--" + split, *map(str, texts[split]))]
    assert main(["lm", "text", *arguments, "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    assert capsys.readouterr().out.split("\n")[-3:] == [f"write {tmp_path}/out/tok", f"write {tmp_path}/out/bin", ""]
    assert main(["lm", "ptb", "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("fetch http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz\n")
    assert not (tmp_path / "out").exists()
