"""Whole recipes, on archives made here: results, faults, interruptions."""

import gzip
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import List

import pytest

from data_prep.corpora import main
from data_prep.errors import DataPrepError
from data_prep.pairs import clean_pair
from data_prep.pipeline import Options, Pipeline
from data_prep.recipes import iwslt14, multi30k, wmt14
from data_prep.tokenizer import Steps, prepare_text
from powernorm_fairseq.scoring import remove_bpe
from tests.data_prep.corpora import (
    read_gz,
    sentences,
    snapshot,
    write_gz,
    write_iwslt14,
    write_multi30k,
    write_tgz,
    write_wmt14,
)
from tests.data_prep.http_server import FaultyServer

ROOT = Path(__file__).resolve().parents[2]
PREPARE = ROOT / "data_prep/prepare.sh"


def prepare(recipe, out: Path, source: Path, **settings: object) -> Path:
    settings.setdefault("until", "bpe")
    settings.setdefault("workers", 1)
    settings.setdefault("bpe_tokens", 60)
    Pipeline(recipe, Options(out=out, source=source, **settings)).run()
    return out


def lines(path: Path) -> List[str]:
    return path.read_bytes().decode("utf-8").split("\n")[:-1]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archives")
    write_iwslt14(folder)
    write_wmt14(folder)
    write_wmt14(folder, "v9")
    write_multi30k(folder)
    return folder


def test_iwslt14_splits_cleans_and_lower_cases(archives: Path, tmp_path: Path) -> None:
    out = prepare(iwslt14(), tmp_path / "out", archives)
    train, valid, test = (lines(out / f"tok/{name}.de") for name in ("train", "valid", "test"))
    facts = json.loads((out / "manifest.json").read_text())["stages"]["tok"]
    assert facts["raw_pairs"] == {"train": 306, "test": 25}
    kept = len(train) + len(valid)
    assert len(valid) == kept // 23
    assert facts["pairs"] == {"train": len(train), "valid": len(valid), "test": 25}
    assert [line.split()[0] for line in test[::5]] == [
        "ted.dev2010", "tedx.dev2012", "ted.tst2010", "ted.tst2011", "ted.tst2012",
    ]  # fmt: skip
    assert test[0].startswith("ted.dev2010 it &apos; s &amp; amp ; ")
    assert "ein titel" in train and "ted : was ?" in train
    assert "it ’ s nbsp" in train
    assert not any("kurz" in line for line in train)  # its partner is 40 tokens long
    assert all(line == line.lower() for line in train + valid + test)
    for name in ("train", "valid", "test"):
        assert len(lines(out / f"tok/{name}.en")) == len(lines(out / f"tok/{name}.de"))
    assert not (out / "raw").exists()


def test_wmt14_keeps_order_and_treats_test_otherwise(archives: Path, tmp_path: Path) -> None:
    out = prepare(wmt14(), tmp_path / "out", archives)
    english, german = lines(out / "tok/train.en"), lines(out / "tok/train.de")
    assert len(english) == len(german) < 3 * 156
    assert "zero 5.000" in english and "Null &apos; x &quot;" in german
    assert "CR mitten" in german and "&quot; Er sagt &quot; ." in german
    assert not any("empty" in line for line in english)
    assert any("well @-@ known" in line for line in english)
    assert lines(out / "tok/test.en")[0] == "it &apos;s – „ so “"
    assert lines(out / "tok/test.de")[0] == "es ist &apos; s – „ so “"
    assert len(lines(out / "tok/valid.de")) == 12 and len(lines(out / "tok/test.de")) == 13
    assert not any("„" in line for line in lines(out / "tok/valid.de"))


@pytest.mark.parametrize("recipe", ["fairseq", "fairseq-icml17"])
def test_wmt14_as_fairseqs_script_prepares_it(recipe: str, archives: Path, tmp_path: Path) -> None:
    """Step by step: tokenise, every 100th line is valid, learn on uncleaned text, apply, clean."""
    learn_bpe, apply_bpe = (pytest.importorskip(f"subword_nmt.{name}_bpe") for name in ("learn", "apply"))
    commentary = "v9" if recipe == "fairseq-icml17" else "v12"
    train = {"en": [], "de": []}
    for archive in ("europarl-v7", "commoncrawl", f"nc-{commentary}"):
        with tarfile.open(str(archives / f"training-parallel-{archive}.tgz")) as tar:
            for member in tar:
                text = tar.extractfile(member).read().decode("utf-8")
                lang = member.name[-2:]
                train[lang] += prepare_text(text, lang, Steps(aggressive=True, normalize=True, printing=True))
    out = prepare(wmt14(recipe), tmp_path / "out", archives, bpe_tokens=90, workers=2)
    for lang, text in train.items():
        assert lines(out / f"tok/valid.{lang}") == text[99::100]
        assert lines(out / f"tok/train.{lang}") == [line for number, line in enumerate(text, 1) if number % 100]
    codes = io.StringIO()
    training = "".join(line + "\n" for lang in ("en", "de") for line in lines(out / f"tok/train.{lang}"))
    learn_bpe.learn_bpe(io.StringIO(training), codes, 90)
    assert (out / "bpe/codes").read_text(encoding="utf-8") == codes.getvalue()
    codes.seek(0)
    bpe = apply_bpe.BPE(codes)
    for split in ("train", "valid", "test"):
        sides = [[bpe.process_line(line) for line in lines(out / f"tok/{split}.{lang}")] for lang in ("en", "de")]
        pairs = list(zip(*sides))
        if split != "test":
            pairs = [pair for pair in (clean_pair(*pair, 1, 250, 1.5) for pair in pairs) if pair]
        assert [lines(out / f"bpe/{split}.{lang}") for lang in ("en", "de")] == [list(side) for side in zip(*pairs)]
    assert len(lines(out / "bpe/train.de")) < len(lines(out / "tok/train.de"))
    options = json.loads((out / "manifest.json").read_text())["options"]
    assert options["clean_bpe"] == [1, 250, 1.5]
    assert wmt14(recipe).bpe_tokens == 40_000


def test_another_number_of_pairs_than_published_is_pointed_out(archives: Path, tmp_path: Path, caplog) -> None:
    prepare(wmt14(), tmp_path / "out", archives, until="tok")
    for name, count in (("europarl-v7", 1920209), ("commoncrawl", 2399123), ("v12", 270769), ("newstest2013", 3000)):
        assert any(name in text and f"the published one has {count}" in text for text in caplog.messages)
    shown = subprocess.run([str(PREPARE), "wmt14", "--help"], stdout=subprocess.PIPE, check=True).stdout
    for count in (b"1,920,209", b"2,399,123", b"270,769", b"201,288", b"3,000", b"3,003"):
        assert count in b" ".join(shown.split())


def test_the_published_references_are_kept(archives: Path, tmp_path: Path) -> None:
    out = prepare(wmt14(), tmp_path / "out", archives, until="tok")
    assert lines(out / "ref/test.de")[0] == "es ist\u2019s \u2013 \u201eso\u201c"
    assert lines(out / "tok/test.de")[0] == "es ist &apos; s \u2013 \u201e so \u201c"
    assert len(lines(out / "ref/valid.en")) == 12 and not (out / "ref/train.en").exists()
    out = prepare(iwslt14(), tmp_path / "iwslt", archives, until="tok")
    assert lines(out / "ref/test.en")[0].startswith("TED.dev2010 it\u2019s &amp; ")
    assert not (out / "ref/valid.en").exists()  # valid is held out of train


def test_multi30k_is_normalised_and_lower_case(archives: Path, tmp_path: Path) -> None:
    out = prepare(multi30k(), tmp_path / "out", archives)
    assert [len(lines(out / f"tok/{name}.en")) for name in ("train", "valid", "test")] == [200, 20, 15]
    text = (out / "tok/train.en").read_text(encoding="utf-8")
    assert "&quot; yes &quot;" in text and "“" not in text and text == text.lower()
    assert len(lines(prepare(multi30k("2017"), tmp_path / "17", archives, until="tok") / "tok/test.de")) == 10


def test_subwords_are_those_of_subword_nmt(archives: Path, tmp_path: Path) -> None:
    apply_bpe = pytest.importorskip("subword_nmt.apply_bpe")
    out = prepare(iwslt14(), tmp_path / "out", archives)
    with open(str(out / "bpe/codes"), encoding="utf-8") as codes:
        bpe = apply_bpe.BPE(codes)
    for name in ("train.de", "train.en", "valid.de", "test.en"):
        assert lines(out / "bpe" / name) == [bpe.process_line(line) for line in lines(out / "tok" / name)]


def test_the_number_of_workers_does_not_matter(archives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_prep.parallel.CHUNK_LINES", 13)
    one = snapshot(prepare(wmt14(), tmp_path / "1", archives, workers=1))
    assert one == snapshot(prepare(wmt14(), tmp_path / "3", archives, workers=3))
    monkeypatch.undo()
    assert one == snapshot(prepare(wmt14(), tmp_path / "whole", archives, workers=1))


def test_sentencepiece_in_place_of_bpe(archives: Path, tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    out = prepare(multi30k(), tmp_path / "out", archives, subwords="sentencepiece", bpe_tokens=340)
    for name in ("train.de", "test.en"):
        joined = [remove_bpe(line, "sentencepiece") for line in lines(out / "bpe" / name)]
        assert joined == lines(out / "tok" / name)
    text = (out / "tok/train.en").read_text(encoding="utf-8")
    assert '"yes"' in text and "&quot;" not in text  # plain text, normalised as the recipe says, not tokens
    assert json.loads((out / "manifest.json").read_text())["options"]["plain"]


def test_binarised_by_fairseq_with_a_joined_dictionary(archives: Path, tmp_path: Path) -> None:
    pytest.importorskip("fairseq")
    out = tmp_path / "out"
    flags = ["--from", str(archives), "--bpe-tokens", "60", "--workers", "2"]
    assert main(["multi30k", "--out", str(out), *flags]) == 0
    names = {path.name for path in (out / "bin").iterdir()}
    assert {"dict.de.txt", "dict.en.txt", "train.de-en.de.bin", "train.de-en.en.idx", "test.de-en.de.bin"} <= names
    assert (out / "bin/dict.de.txt").read_bytes() == (out / "bin/dict.en.txt").read_bytes()
    from fairseq.data import Dictionary, data_utils

    dictionary = Dictionary.load(str(out / "bin/dict.de.txt"))
    data = data_utils.load_indexed_dataset(str(out / "bin/train.de-en.de"), dictionary)
    assert [dictionary.string(data[index]) for index in range(len(data))] == lines(out / "bpe/train.de")
    manifest = json.loads((out / "manifest.json").read_text())
    assert set(manifest["stages"]) == {"tok", "codes", "bpe", "bin"}
    before = {
        path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name != "manifest.json"
    }
    assert main(["multi30k", "--out", str(out), *flags]) == 0
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_manifest_says_what_was_done(archives: Path, tmp_path: Path) -> None:
    import hashlib

    out = prepare(multi30k(), tmp_path / "out", archives)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["versions"]["python"] and manifest["versions"]["sacremoses"]
    assert manifest["options"]["recipe"] == "multi30k" and manifest["options"]["bpe_tokens"] == 60
    digest = hashlib.sha256((archives / "train.de.gz").read_bytes()).hexdigest()
    assert manifest["archives"]["train.de.gz"]["sha256"] == digest
    facts = manifest["stages"]["bpe"]["files"]["bpe/train.de"]
    assert facts["sha256"] == hashlib.sha256((out / "bpe/train.de").read_bytes()).hexdigest()
    assert not list(out.rglob("*.part"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace(b"\n", b"\n\n", 1), "train.de.gz: line 2 is empty"),
        (lambda text: text.replace(b"\n", b"\r\n"), "train.de.gz: line 1 has a carriage return"),
        (lambda text: b"\xef\xbb\xbf" + text, "train.de.gz: line 1 begins with a byte order mark"),
        (lambda text: text + b"mehr\n", "train.de.gz has 201 lines .* line 201 has no counterpart"),
        (
            lambda text: text[: text.rindex(b"\n", 0, -1) + 1],
            "train.en.gz has 200 lines .* line 200 has no counterpart",
        ),
        (lambda text: text.replace("ä".encode(), b"\xe4"), "train.de.gz: line [0-9]+ is not valid UTF-8"),
        (lambda text: b"", "train.de.gz: line 1 is missing"),
        (None, "train.de.gz: no such file"),
    ],
)
def test_faulty_input_is_named_and_nothing_is_written(archives: Path, tmp_path: Path, change, message: str) -> None:
    source = tmp_path / "from"
    shutil.copytree(str(archives), str(source))
    if change is None:
        (source / "train.de.gz").unlink()
    else:
        write_gz(source / "train.de.gz", change(read_gz(source / "train.de.gz")))
    with pytest.raises(DataPrepError, match=message):
        prepare(multi30k(), tmp_path / "out", source)
    assert not (tmp_path / "out").exists()


def test_lenient_takes_what_the_perl_recipe_takes(archives: Path, tmp_path: Path) -> None:
    source = tmp_path / "from"
    shutil.copytree(str(archives), str(source))
    for lang in ("de", "en"):
        write_gz(source / f"val.{lang}.gz", read_gz(source / f"val.{lang}.gz").replace(b"\n", b"\r\n") + b"\n")
    out = prepare(multi30k(), tmp_path / "out", source, lenient=True, until="tok")
    assert lines(out / "tok/valid.de")[-1] == "" and "\r" not in (out / "tok/valid.de").read_text()


@pytest.mark.parametrize("keep", [-1000, -5, 100])
def test_a_truncated_archive_is_an_error_and_nothing_is_written(archives: Path, tmp_path: Path, keep: int) -> None:
    source = tmp_path / "from"
    source.mkdir()
    (source / "de-en.tgz").write_bytes((archives / "de-en.tgz").read_bytes()[:keep])
    with pytest.raises(DataPrepError, match="de-en.tgz is damaged or incomplete"):
        prepare(iwslt14(), tmp_path / "out", source)
    assert not (tmp_path / "out").exists()


def test_bad_text_in_an_archive_leaves_nothing_behind(tmp_path: Path) -> None:
    files = {f"de-en/train.tags.de-en.{lang}": "eins\nzwei\n" for lang in ("de", "en")}
    for name in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"):
        for lang in ("de", "en"):
            files[f"de-en/IWSLT14.{name}.de-en.{lang}.xml"] = '<seg id="1"> a </seg>\n'
    files["de-en/IWSLT14.TED.tst2011.de-en.en.xml"] += '<seg id="2"> </seg>\n'
    write_tgz(tmp_path / "de-en.tgz", files)
    with pytest.raises(DataPrepError, match="tst2011.de-en.en.xml: line 2 is empty"):
        prepare(iwslt14(), tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_file_that_no_archive_has_is_named(archives: Path, tmp_path: Path) -> None:
    source = tmp_path / "from"
    shutil.copytree(str(archives), str(source))
    write_tgz(source / "dev.tgz", {"dev/newstest2013.de": "a\n"})
    with pytest.raises(DataPrepError, match="dev/newstest2013.en is not in .*europarl.* nor .*dev.tgz"):
        prepare(wmt14(), tmp_path / "out", source)
    assert not (tmp_path / "out").exists()


def test_other_options_are_an_error_unless_overwritten(archives: Path, tmp_path: Path) -> None:
    out = prepare(multi30k(), tmp_path / "out", archives)
    before = snapshot(out)
    with pytest.raises(DataPrepError, match="bpe_tokens was 60 and is 50.*--overwrite to redo codes, bpe"):
        prepare(multi30k(), out, archives, bpe_tokens=50)
    with pytest.raises(DataPrepError, match="recipe was multi30k and is iwslt14"):
        prepare(iwslt14(), out, archives)
    assert snapshot(out) == before
    tokens = (out / "tok/train.de").stat().st_mtime_ns
    prepare(multi30k(), out, archives, bpe_tokens=50, overwrite=True)
    assert (out / "tok/train.de").stat().st_mtime_ns == tokens
    assert snapshot(out) == snapshot(prepare(multi30k(), tmp_path / "other", archives, bpe_tokens=50))


def test_results_of_other_options_do_not_stay(archives: Path, tmp_path: Path) -> None:
    out = prepare(multi30k(), tmp_path / "out", archives)
    prepare(multi30k(), out, archives, bpe_tokens=50, overwrite=True, until="codes")
    assert [path.name for path in (out / "bpe").iterdir()] == ["codes"]


def test_a_folder_that_cannot_be_made_is_one_sentence(archives: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataPrepError, match="cannot be made"):
        prepare(multi30k(), tmp_path / "file", archives)


def test_another_archive_is_an_error_unless_overwritten(archives: Path, tmp_path: Path) -> None:
    out = prepare(multi30k(), tmp_path / "out", archives)
    source = tmp_path / "from"
    shutil.copytree(str(archives), str(source))
    write_multi30k(source, train=120)
    with pytest.raises(DataPrepError, match="train.de.gz is another file"):
        prepare(multi30k(), out, source)
    prepare(multi30k(), out, source, overwrite=True)
    assert len(lines(out / "tok/train.de")) == 120


def test_files_of_somebody_else_are_not_overwritten(archives: Path, tmp_path: Path) -> None:
    (tmp_path / "out/tok").mkdir(parents=True)
    with pytest.raises(DataPrepError, match="has tok but no manifest"):
        prepare(multi30k(), tmp_path / "out", archives)


def test_a_changed_result_is_made_again(archives: Path, tmp_path: Path) -> None:
    out = prepare(multi30k(), tmp_path / "out", archives)
    before = snapshot(out)
    (out / "bpe/train.de").write_text("changed\n")
    (out / "tok/test.en").unlink()
    assert snapshot(prepare(multi30k(), out, archives)) == before


def test_archives_may_be_deleted_after_use(archives: Path, tmp_path: Path) -> None:
    source = tmp_path / "from"
    shutil.copytree(str(archives), str(source))
    out = prepare(iwslt14(), tmp_path / "out", source, until="tok")
    (source / "de-en.tgz").unlink()
    prepare(iwslt14(), out, source)
    assert (out / "bpe/train.de").exists()


def test_two_runs_in_one_folder_keep_out_of_each_others_way(archives: Path, tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / "out").mkdir()
    handle = os.open(str(tmp_path / "out"), os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(DataPrepError, match="another run is at work"):
        prepare(multi30k(), tmp_path / "out", archives)
    os.close(handle)


def test_workers_do_not_hold_the_lock_of_a_killed_run(archives: Path, tmp_path: Path) -> None:
    """They live on for a moment, or longer where they are stopped, as here."""
    program = (
        "import sys, os, signal, time; from pathlib import Path; from data_prep import recipes, stages\n"
        "class Run(stages.StagedRun):\n"
        "    stages = ('x',)\n"
        "    def _keys(self): return {'x': 'x'}\n"
        "    def _stage_x(self, key, pool):\n"
        "        print(*set(pool.map(worker, range(9))), flush=True); time.sleep(60)\n"
        "def worker(number): time.sleep(0.1); return os.getpid()\n"
        "Run(recipes.lm_text({}), stages.RunOptions(Path(sys.argv[1]), workers=2, until='x'), {}).run()\n"
    )
    out = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", program, str(out)], cwd=str(ROOT), stdout=subprocess.PIPE)
    workers = [int(word) for word in process.stdout.readline().split()]
    try:
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        with pytest.raises(DataPrepError, match="another run is at work"):
            prepare(multi30k(), out, archives, until="tok")
        process.kill()
        process.wait()
        assert workers and all(Path(f"/proc/{worker}").exists() for worker in workers)
        prepare(multi30k(), out, archives, until="tok")
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)


def test_a_file_system_without_locks_is_no_obstacle(archives, tmp_path: Path, monkeypatch, caplog) -> None:
    fcntl = pytest.importorskip("fcntl")

    def refuse(handle: int, kind: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    prepare(multi30k(), tmp_path / "out", archives, until="tok")
    assert "no locks here" in caplog.text


def test_a_full_disk_names_the_file(archives: Path, tiny_disk: Path) -> None:
    with pytest.raises(DataPrepError, match=r"no space left for .*/tok/train\...\.part: [0-9,]+ bytes are free"):
        prepare(wmt14(), tiny_disk / "out", archives)


def test_archives_are_fetched_resumed_and_used(archives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_prep.download.PAUSE", 0.01)
    with FaultyServer({"iwslt/de-en.tgz": (archives / "de-en.tgz").read_bytes()}) as server:
        server.drop_after = [1000, 2000]
        out = tmp_path / "out"
        options = Options(out=out, mirrors=(server.url + "/iwslt",), until="bpe", bpe_tokens=60, workers=1)
        Pipeline(iwslt14(), options).run()
        assert server.requests == [None, "bytes=1000-", "bytes=3000-"]
    Pipeline(iwslt14(), options).run()  # without the server
    expected = snapshot(prepare(iwslt14(), tmp_path / "offline", archives))
    assert {name: data for name, data in snapshot(out).items() if not name.startswith("archives/")} == expected


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_stopped_where_it_writes_a_second_run_completes_it(
    call: str, archives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each write to the disk: by Ctrl-C, and by a kill, which leaves the folder as it is at that moment."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # waits for the disk
    real, calls, stop = getattr(os, call), [], [-1]

    def stopping(*arguments: object) -> None:
        calls.append(call)
        if len(calls) == stop[0]:
            shutil.copytree(str(tmp_path / "out"), str(tmp_path / "killed"))
            raise KeyboardInterrupt
        real(*arguments)

    expected = snapshot(prepare(multi30k(), tmp_path / "whole", archives, until="bin"))
    monkeypatch.setattr(os, call, stopping)
    prepare(multi30k(), tmp_path / "out", archives, until="bin")
    for number in range(1, len(calls) + 1):
        shutil.rmtree(str(tmp_path / "out"))
        stop[0] = number
        calls.clear()
        with pytest.raises(KeyboardInterrupt):
            prepare(multi30k(), tmp_path / "out", archives, until="bin")
        for name in ("out", "killed"):
            assert snapshot(prepare(multi30k(), tmp_path / name, archives, until="bin")) == expected, (number, name)
        shutil.rmtree(str(tmp_path / "killed"))
    assert number >= 9


def test_killed_at_any_moment_a_second_run_completes_it(tmp_path: Path) -> None:
    source = tmp_path / "from"
    source.mkdir()
    write_multi30k(source, train=6_000)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "data_prep", "multi30k", "--out", str(out), "--from", str(source)]
    command += ["--until", "bpe", "--bpe-tokens", "400", "--workers", "2"]
    start = time.monotonic()
    whole = [str(tmp_path / "whole") if word == str(out) else word for word in command]
    subprocess.run(whole, cwd=str(ROOT), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    duration = time.monotonic() - start
    expected = snapshot(tmp_path / "whole")
    generator = random.Random(5)
    kills = 0
    for _ in range(12):
        process = subprocess.Popen(command, cwd=str(ROOT), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(timeout=duration * (0.1 + 0.6 * generator.random()))
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            assert (out / "manifest.json").exists() is False or snapshot(out) == expected
    assert subprocess.run(command, cwd=str(ROOT), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    assert kills
    assert snapshot(out) == expected


def test_the_perl_recipe_itself_gives_the_same(archives: Path, tmp_path: Path, perl) -> None:
    """Runs the shell pipes of the classic IWSLT14 and WMT14 scripts on the same archives."""
    script = tmp_path / "classic.sh"
    script.write_text(CLASSIC)
    command = ["bash", "-e", str(script), os.environ["MOSES_SCRIPTS"], str(archives), str(tmp_path / "classic")]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C.UTF-8"})
    for name, recipe in (("iwslt14", iwslt14()), ("wmt14", wmt14())):
        out = prepare(recipe, tmp_path / name, archives, until="tok")
        for split in ("train", "valid", "test"):
            for lang in ("de", "en"):
                expected = (tmp_path / "classic" / name / f"{split}.{lang}").read_bytes()
                assert (out / f"tok/{split}.{lang}").read_bytes() == expected, (name, split, lang)


CLASSIC = r"""
scripts=$1 archives=$2 out=$3
tok="perl $scripts/tokenizer/tokenizer.perl -q"
clean="perl $scripts/training/clean-corpus-n.perl"
segments() {
    grep '<seg id' "$1" | sed -e 's/<seg id="[0-9]*">\s*//g' | sed -e 's/\s*<\/seg>\s*//g' | sed -e "s/\’/\'/g"
}
mkdir -p "$out/iwslt14" "$out/wmt14" "$out/raw"
for archive in "$archives"/*.tgz; do tar -xzf "$archive" -C "$out/raw"; done
cd "$out/raw"
for l in de en; do
    grep -v '<url>' "de-en/train.tags.de-en.$l" | grep -v '<talkid>' | grep -v '<keywords>' |
        sed -e 's/<title>//g' -e 's/<\/title>//g' -e 's/<description>//g' -e 's/<\/description>//g' |
        $tok -l $l > "tok.$l"
    for name in TED.dev2010 TEDX.dev2012 TED.tst2010 TED.tst2011 TED.tst2012; do
        segments "de-en/IWSLT14.$name.de-en.$l.xml" | $tok -l $l | perl "$scripts/tokenizer/lowercase.perl"
    done > "../iwslt14/test.$l"
done
$clean -ratio 1.5 tok de en clean 1 175
for l in de en; do
    perl "$scripts/tokenizer/lowercase.perl" < "clean.$l" > "lower.$l"
    awk 'NR % 23 == 0' "lower.$l" > "../iwslt14/valid.$l"
    awk 'NR % 23 != 0' "lower.$l" > "../iwslt14/train.$l"
    for f in training/europarl-v7.de-en commoncrawl.de-en training/news-commentary-v12.de-en; do
        perl "$scripts/tokenizer/normalize-punctuation.perl" $l < $f.$l |
            perl "$scripts/tokenizer/remove-non-printing-char.perl" | $tok -a -l $l
    done > "wmt.$l"
    perl "$scripts/tokenizer/normalize-punctuation.perl" $l < dev/newstest2013.$l |
        perl "$scripts/tokenizer/remove-non-printing-char.perl" | $tok -a -l $l > "../wmt14/valid.$l"
done
$clean wmt en de ../wmt14/train 1 80
segments test-full/newstest2014-deen-src.en.sgm | $tok -a -l en > ../wmt14/test.en
segments test-full/newstest2014-deen-ref.de.sgm | $tok -a -l de > ../wmt14/test.de
"""


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """The peak of tokenising ten times as much is the same but for a few megabytes."""
    if not Path("/proc/self/status").exists():
        pytest.skip("no /proc here to read the peak of a process from")
    program = (  # VmHWM: getrusage's peak begins with that of the process that started this one
        "import re, sys; from pathlib import Path; from data_prep.pipeline import Options, Pipeline\n"
        "from data_prep.recipes import multi30k\n"
        "Pipeline(multi30k(), Options(Path(sys.argv[1]), Path(sys.argv[2]), workers=1, until='tok')).run()\n"
        "print(re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text()).group(1))"
    )
    peaks = []
    pairs = sentences(1, 4000)
    for factor in (2, 20):
        source = tmp_path / str(factor)
        source.mkdir()
        write_multi30k(source)
        for index, lang in enumerate(("de", "en")):
            text = "".join(pair[index] + "\n" for pair in pairs).encode("utf-8")
            write_gz(source / f"train.{lang}.gz", text * factor)
        command = [sys.executable, "-c", program, str(tmp_path / f"out{factor}"), str(source)]
        done = subprocess.run(command, cwd=str(ROOT), stdout=subprocess.PIPE, check=True)
        peaks.append(int(done.stdout))
    assert peaks[1] < peaks[0] + 5_000  # KiB


@pytest.fixture
def own_text(tmp_path: Path) -> List[str]:
    """A corpus of one's own; returns the flags that name it."""
    flags = []
    for index, (split, count) in enumerate((("train", 120), ("valid", 9), ("test", 7))):
        pairs = sentences(60 + index, count)
        flags.append("--" + split)
        for side, lang in enumerate(("de", "en")):
            path = tmp_path / f"My {split}.{lang}{'.gz' if split == 'valid' else ''}"
            text = "".join(pair[side] + "\n" for pair in pairs).encode("utf-8")
            path.write_bytes(gzip.compress(text) if split == "valid" else text)
            flags.append(str(path))
    return flags


def test_any_parallel_text_by_the_shell_script(own_text: List[str], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    out = tmp_path / "out"
    command = [str(PREPARE), "text", *own_text, "--lowercase", "--bpe-tokens", "60", "--out", str(out)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    raw = (tmp_path / "My test.de").read_text(encoding="utf-8")
    assert (out / "ref/test.de").read_text(encoding="utf-8") == raw
    assert lines(out / "tok/test.de") == [line.lower() for line in prepare_text(raw, "de", Steps())]
    assert len(lines(out / "bpe/valid.en")) == 9 and (out / "bin/train.de-en.en.idx").exists()
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["options"]["lowercased"] and "train/0/My train.de" in manifest["archives"]
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.*") if path.name != "manifest.json"}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    (tmp_path / "My train.de").unlink()  # after use, which is fine
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (tmp_path / "My test.de").write_text(raw.replace(" ", "  ", 1), encoding="utf-8")
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert done.returncode == 1 and b"My test.de is another file" in done.stderr


def test_any_parallel_text_by_sentencepiece_and_several_files(own_text: List[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    own_text[1:3] = own_text[1:3] * 2
    flags = ["--recipe", "sentencepiece", "--bpe-tokens", "340", "--max-ratio", "9"]
    assert main(["text", *own_text, *flags, "--out", str(out), "--workers", "1"]) == 0
    assert lines(out / "tok/train.en") == lines(tmp_path / "My train.en") * 2
    assert [remove_bpe(line, "sentencepiece") for line in lines(out / "bpe/test.en")] == lines(out / "ref/test.en")


def test_files_of_one_name_in_two_folders_are_told_apart(tmp_path: Path, caplog) -> None:
    """And text that is in train and test is pointed out."""
    files = []
    for folder, side in (("de", 0), ("en", 1)):
        (tmp_path / folder).mkdir()
        files.append(tmp_path / folder / "text{0}.txt")
        files[-1].write_text("".join(pair[side] + "\n" for pair in sentences(60, 50)), encoding="utf-8")
    flags = [word for split in ("train", "valid", "test") for word in ("--" + split, *map(str, files))]
    flags += ["--source-lang", "de", "--target-lang", "en", "--out", str(tmp_path / "out"), "--until", "tok"]
    assert main(["text", *flags, "--workers", "1"]) == 0
    assert "test/0/text{0}.txt has the same text as train/0/text{0}.txt" in caplog.text
    files[0].write_text(files[0].read_text(encoding="utf-8").replace("Hund", "Katze"), encoding="utf-8")
    with pytest.raises(DataPrepError, match=r"text\{0\}.txt is another file"):
        main(["text", *flags, "--workers", "1"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda flags: flags[:2] + flags[3:], "--train has 1 files"),
        (lambda flags: [flag.replace("test.de", "test.fr") for flag in flags], "do not end with de and en"),
        (lambda flags: [flag.replace("train.en", "train.xx") for flag in flags], "train.xx: no such file|do not end"),
        (lambda flags: [*flags, "--source-lang", "en"], "both languages are en"),
        (lambda flags: [*flags, "--source-lang", "../x"], "'../x' is no code of a language"),
        (lambda flags: [*flags, "--max-length", "0"], "make no sense below 1"),
        (lambda flags: [*flags, "--max-ratio", "nan"], "make no sense below 1"),
    ],
)
def test_text_that_is_not_named_rightly_is_one_sentence(change, message: str, own_text, tmp_path: Path) -> None:
    with pytest.raises(DataPrepError, match=message):
        main(["text", *change(own_text), "--out", str(tmp_path / "out")])


def test_lengths_and_ratios_of_own_text_are_obeyed(own_text: List[str], tmp_path: Path) -> None:
    counts = []
    for flags in ([], ["--max-length", "9"], ["--max-ratio", "1.1"], ["--aggressive", "--max-length", "9"]):
        out = tmp_path / f"out{len(counts)}"
        assert main(["text", *own_text, "--out", str(out), "--until", "tok", "--workers", "1", *flags]) == 0
        counts.append(len(lines(out / "tok/train.de")))
    assert counts[0] > counts[1] > counts[3] and counts[0] > counts[2]


def test_further_settings_of_bpe_reach_the_text(archives: Path, tmp_path: Path) -> None:
    plain = snapshot(prepare(multi30k(), tmp_path / "plain", archives))
    for name, setting in (("vocabulary_threshold", 150), ("glossaries", ("stra.*",)), ("bpe_dropout", 0.3)):
        other = snapshot(prepare(multi30k(), tmp_path / name, archives, **{name: setting}))
        assert other["bpe/train.de"] != plain["bpe/train.de"]
        assert (other["bpe/test.de"] != plain["bpe/test.de"]) == (name != "bpe_dropout")
        assert other["bpe/train.de"].replace(b"@@ ", b"") == plain["tok/train.de"]
        assert ("bpe/vocab.de" in other) == (name == "vocabulary_threshold")
        with pytest.raises(DataPrepError, match=f"{name} was"):
            prepare(multi30k(), tmp_path / "plain", archives, **{name: setting})


@pytest.mark.parametrize("name", ["iwslt14", "wmt14", "multi30k"])
def test_entry_scripts_explain_themselves(name: str, tmp_path: Path) -> None:
    done = subprocess.run([str(PREPARE), name, "--help"], stdout=subprocess.PIPE, cwd=str(tmp_path), check=True)
    for flag in (b"--out DIR", b"--from DIR", b"--workers N", b"--bpe ", b"--bpe-tokens N"):
        assert flag in done.stdout
    environment = {**os.environ, "PYTHON": sys.executable}
    command = [str(PREPARE), name, "--out", "out", "--from", "nowhere", "--dry-run"]
    done = subprocess.run(command, stdout=subprocess.PIPE, cwd=str(tmp_path), env=environment, check=True)
    assert b"write out/bin" in done.stdout
    assert not (tmp_path / "out").exists()


def test_an_error_is_one_sentence_and_a_status(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    command = [str(PREPARE), "multi30k", "--out", "out", "--from", "nowhere"]
    done = subprocess.run(command, stderr=subprocess.PIPE, cwd=str(tmp_path), env=environment)
    assert done.returncode == 1
    assert done.stderr.decode() == "error: nowhere/train.de.gz: no such file\n"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"subwords": "x"}, "bpe='x'"),
        ({"until": "x"}, "until='x'"),
        ({"bpe_tokens": 0}, "bpe_tokens=0"),
        ({"workers": 0}, "workers=0"),
        ({"vocabulary_threshold": -1}, "vocabulary_threshold=-1"),
        ({"bpe_dropout": 1.0}, "bpe_dropout=1.0"),
        ({"glossaries": ("ok", "(")}, r"the glossary '\(' is no regular expression"),
        ({"subwords": "sentencepiece", "bpe_dropout": 0.1}, "are subword-nmt's; sentencepiece has none"),
    ],
)
def test_settings_that_make_no_sense(archives: Path, tmp_path: Path, settings, message: str) -> None:
    with pytest.raises(DataPrepError, match=message):
        prepare(multi30k(), tmp_path / "out", archives, **settings)


@pytest.mark.parametrize(("recipe", "setting"), [(wmt14, "v10"), (multi30k, "2018")])
def test_unknown_variants_list_the_known_ones(recipe, setting: str) -> None:
    with pytest.raises(DataPrepError, match="choose from"):
        recipe(setting)
