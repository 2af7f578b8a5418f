"""reproduce.py: real trainings that two commands share and a Ctrl-C interrupts; the rest with stand-in programs."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from powernorm_fairseq import files
from powernorm_fairseq.experiments import checks
from powernorm_fairseq.experiments.tables import data as data_module
from powernorm_fairseq.experiments.tables import local, reproduce
from powernorm_fairseq.experiments.tables.catalogue import Row
from powernorm_fairseq.experiments.tables.run import Run
from tests.experiments.tables.table_results import write_data

pytestmark = pytest.mark.usefixtures("no_cluster")
ROOT = Path(__file__).resolve().parents[3]
TINY = (
    "--encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 "
    "--encoder-layers 1 --decoder-layers 1 --num-workers 0 --max-tokens 100 --log-interval 5 --warmup-updates 20 "
    "--keep-last-epochs 2 --max-epoch 8 --cpu"
).split()


# Real trainings


def words(data, folder, *more, table="table1", norms="ln,pn", flags=TINY):
    own = [table, "--dataset", "demo", "--norms", norms, "--data", data, "--dir", folder, *more]
    return [*map(str, own), "--", *flags]


def start(data, folder, *more):
    command = [sys.executable, str(ROOT / "scripts" / "reproduce.py"), *words(data, folder, *more)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition, *processes, timeout=200):
    end = time.monotonic() + timeout
    while not condition():
        for process in processes:
            assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.05)


def contains(file, text):
    return file.exists() and text in file.read_text(errors="replace")


def test_two_commands_share_a_table_and_one_takes_up_what_the_other_leaves(toy_data, tmp_path, capsys):
    pytest.importorskip("fairseq")
    runs = tmp_path / "runs" / "demo"
    first = start(toy_data, tmp_path / "runs")
    wait_for(lambda: (runs / "ln-seed1" / "output.log").exists(), first)
    second = start(toy_data, tmp_path / "runs", "--export", tmp_path / "shipped" / "demo")
    wait_for(lambda: contains(runs / "ln-seed1" / "checkpoints" / "train.log", "train_inner"), first, second)
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=100)
    assert first.returncode == 130 and "the same command goes on from here" in said, said
    printed, said = second.communicate(timeout=300)
    assert second.returncode == 0, said
    assert re.search(r"pn-seed1: finished.*ln-seed1: finished", said, re.DOTALL), said
    assert "| LN" in printed and "| PN" in printed and "IWSLT14" in printed

    log = (runs / "ln-seed1" / "checkpoints" / "train.log").read_text(errors="replace")
    assert log.count("powernorm train") == 2 and "Loaded checkpoint" in log  # stopped with a checkpoint, and resumed
    for name in ("ln-seed1", "pn-seed1"):
        result = json.loads((runs / name / "result.json").read_text())
        assert result["epochs"] == 8 and len(result["curves"]["valid"]) == 8 and result["curves"]["train"]
        assert result["scores"]["tokenized"]["score"] >= 0 and "13a" in result["scores"]["sacrebleu"]["signature"]
        assert result["peak_memory"] > 100e6 and result["parameters"] > 1000 and result["words_per_second"] > 0
        assert result["environment"]["packages"]["torch"] and result["configuration"]["--encoder-norm"] == [name[:2]]
        assert len((runs / name / "hyp.txt").read_text().splitlines()) == 30
        assert not (runs / name / "output.log").exists()
    page = (runs / "table1.html").read_text()
    assert page.count("<svg") >= 3 and "http" not in re.sub(r"http://www.w3.org/(2000/svg|1999/xlink)", "", page)

    # Finished: nothing is run again, and other settings do not fit the folder.
    shipped = tmp_path / "shipped"
    assert reproduce.main(words(toy_data, tmp_path / "runs")) == 0
    assert capsys.readouterr().out == printed
    assert (runs / "ln-seed1" / "checkpoints" / "train.log").read_text(errors="replace") == log
    assert reproduce.main(words(toy_data, tmp_path / "runs", flags=[*TINY, "--lr", "1"])) == 1
    assert "experiment with other flags" in capsys.readouterr().err
    assert reproduce.main(words(toy_data, tmp_path / "runs", flags=[*TINY, "--max-epoch", "9"])) == 1
    assert "is finished with --max-epoch 8, not --max-epoch 9" in capsys.readouterr().err

    # What was exported is enough for the report, and names neither the machine nor the data's text.
    exported = (shipped / "demo" / "table1.html").read_text()
    assert exported == page
    (shipped / "demo" / "table1.html").unlink()
    report = ["table1", "--dataset", "demo", "--norms", "ln,pn", "--report-only", "--dir", str(shipped)]
    assert reproduce.main(report) == 0
    assert (shipped / "demo" / "table1.html").read_text() == exported
    files = [file for file in shipped.rglob("*") if file.is_file()]
    assert {file.name for file in files} == {
        *("result.json", "train.log", "comparisons.json", "table1.md", "table1.html"),
    }
    for file in files:
        text = file.read_text()
        assert str(tmp_path) not in text and str(ROOT) not in text and sys.prefix not in text, file


# The rest with stand-ins


PROGRAM = """
import json, os, pathlib, sys
command, words, state = sys.argv[1], sys.argv[2:], STATE
if command == "train":
    folder = pathlib.Path(words[words.index("--save-dir") + 1])
    folder.mkdir(parents=True, exist_ok=True)
    name = folder.parent.name
    if name in state["fails"]:
        print("train: rank 0 failed with status 1")
        sys.exit(1)
    log = (folder / "train.log").open("a")
    log.write("started " + os.environ["OMP_NUM_THREADS"] + "\\n")
    loss = state["losses"].get(name, 5.0)
    for update in (100, 200):
        numbers = {"epoch": update // 100, "valid_loss": str(loss), "valid_ppl": str(2 ** (loss - 2)),
                   "valid_num_updates": str(update)}
        log.write("x | INFO | valid | " + json.dumps(numbers) + "\\n")
    (folder / "command.txt").write_text("# in\\npowernorm train\\nfairseq-train data --lr 1\\n")
    (folder / "environment.json").write_text("{}")
    length = {"--max-epoch": ["6"]}
    (folder / "status.json").write_text(json.dumps({"state": "finished", "flags": length}))
elif command == "score-runs":
    folder = pathlib.Path(words[words.index("--dir") + 1]) / "checkpoints" / "test"
    folder.mkdir()
    for name in ("hyp.txt", "ref.txt"):
        (folder / name).write_text("a b c d e\\n" * 3)
    scores = {"tokenized": {"score": 30.0, "signature": "s"}}
    (folder / "result.json").write_text(json.dumps({"scores": scores, "beam": 5, "lenpen": 1.0, "sentences": 3,
                                                    "request": {"target_lang": "en"}}))
"""


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """Programs that do their work in no time; call it to say what they do."""
    program = tmp_path / "powernorm"
    monkeypatch.setattr(local, "POWERNORM", (sys.executable, str(program)))
    monkeypatch.setattr(local, "POLL", 0.02)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def behave(fails=(), losses=None):
        state = repr({"fails": list(fails), "losses": losses or {}})
        program.write_text(PROGRAM.replace("STATE", state))

    behave()
    return behave


def arguments(data, tmp_path, *more, table="table1", norms="ln,pn"):
    own = [table, "--dataset", "demo", "--norms", norms, "--data", data, "--dir", tmp_path / "runs", *more]
    return list(map(str, own))


def test_failed_run_stops_no_other_and_the_table_says_what_is_missing(data, stand_ins, tmp_path, capsys):
    stand_ins(fails=["pn-seed1"])
    assert reproduce.main(arguments(data, tmp_path, "--seeds", "1,2")) == 1
    said = capsys.readouterr()
    assert "pn-seed1: training failed: train: rank 0 failed with status 1" in said.err
    assert "1 of 4 runs have no result yet: pn-seed1 (training failed" in said.out
    assert "PN           | 35.9                 | 30.00" in said.out
    stand_ins()
    assert reproduce.main(arguments(data, tmp_path, "--seeds", "1,2")) == 0
    assert "no result yet" not in capsys.readouterr().out


def test_test_set_is_scored_for_the_chosen_setting_alone(data, stand_ins, tmp_path, capsys):
    stand_ins(losses={"pn-alpha0.95-0.99-seed1": 4.5, "ln-seed1": 4.0})
    assert reproduce.main(arguments(data, tmp_path, table="alpha")) == 0
    scored = sorted(file.parent.name for file in (tmp_path / "runs" / "demo").glob("*/hyp.txt"))
    assert scored == ["ln-seed1", "pn-alpha0.95-0.99-seed1", "pn-seed1"]
    assert len(list((tmp_path / "runs" / "demo").glob("*/result.json"))) == 10
    out = capsys.readouterr().out
    assert "Validation data prefers PN, alpha 0.95 forward, 0.99 backward: perplexity 5.66, against 8.00" in out


def test_training_that_was_started_by_hand_is_waited_for_and_then_finished(data, stand_ins, tmp_path, capsys):
    run = Run(tmp_path / "runs" / "demo", "demo", Row("ln", "LN"), 1, data)
    run.checkpoints.mkdir(parents=True)
    held = checks.lock(run.checkpoints)
    waited = []

    def release(seconds):
        waited.append(seconds)
        if len(waited) == 30:
            held.close()

    local.time, original = type("Clock", (), {"sleep": release, "monotonic": time.monotonic}), local.time
    try:
        assert reproduce.main(arguments(data, tmp_path, norms="ln")) == 0
    finally:
        local.time = original
    assert len(waited) >= 30 and "(started by another command)" in capsys.readouterr().err


def test_without_training_only_what_is_trained_is_scored(data, stand_ins, tmp_path, capsys):
    assert reproduce.main(arguments(data, tmp_path, norms="ln")) == 0
    assert reproduce.main(arguments(data, tmp_path, "--no-training")) == 1
    assert "pn-seed1 (its training is not started)" in capsys.readouterr().out
    assert not (tmp_path / "runs" / "demo" / "pn-seed1").exists()


def test_cores_are_divided_among_trainings_side_by_side(data, stand_ins, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert reproduce.main(arguments(data, tmp_path, "--jobs", "2")) == 0
    assert "started 4" in (tmp_path / "runs" / "demo" / "ln-seed1" / "checkpoints" / "train.log").read_text()


@pytest.mark.parametrize(
    "jobs, dataset, gpus, seen",
    [(2, "iwslt14", 4, ["0", "1"]), (1, "wmt14", 4, ["0,1,2,3"]), (2, "wmt14", 4, ["0,1", "2,3"]),
     (3, "multi30k", 2, ["0", "1", "0"]), (2, "demo", 0, [None, None])],
)  # fmt: skip
def test_gpus_are_divided_too(jobs, dataset, gpus, seen, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = [env.get("CUDA_VISIBLE_DEVICES") for env in local.environments(jobs, dataset, gpus)]
    assert found == seen


def test_gpus_that_the_user_allows_are_divided(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7,GPU-a,3")
    found = [env["CUDA_VISIBLE_DEVICES"] for env in local.environments(2, "wmt14", 4)]
    assert found == ["5,7", "GPU-a,3"]
    assert [env["CUDA_VISIBLE_DEVICES"] for env in local.environments(3, "iwslt14", 4)] == ["5", "7", "GPU-a"]


def test_dry_run_says_what_is_known_and_writes_nothing(data, stand_ins, tmp_path, capsys):
    assert reproduce.main(arguments(data, tmp_path, "--dry-run")) == 0
    out = capsys.readouterr().out
    assert "ln-seed1: not started, unknown, 0.0" in out and "2 of 2 runs to do, 1 side by side: unknown time" in out
    assert not (tmp_path / "runs").exists()
    assert reproduce.main(arguments(data, tmp_path, norms="ln")) == 0
    result = tmp_path / "runs" / "demo" / "ln-seed1" / "result.json"
    files.write(result, {**json.loads(result.read_text()), "seconds": 7200.0})
    capsys.readouterr()
    assert reproduce.main(arguments(data, tmp_path, "--dry-run", "--jobs", "2")) == 0
    out = capsys.readouterr().out
    assert "ln-seed1: finished" in out and "pn-seed1: not started, 2 h 00 min (as other runs here)" in out
    assert "1 of 2 runs to do, 2 side by side: 1 h 00 min" in out


def test_without_data_the_preparation_is_what_would_be_done_first(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert reproduce.main(["table1", "--dataset", "multi30k", "--from", "archives", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert f"-m data_prep multi30k --bpe-tokens 4000 --out {tmp_path}/data/multi30k --from archives" in out
    assert "disk unknown until the data is there" in out


def test_data_is_made_first(stand_ins, tmp_path, capfd, monkeypatch):
    """By data_prep, from archives that are not what they should be; then a stand-in makes it."""
    (tmp_path / "archives").mkdir()
    monkeypatch.chdir(tmp_path)
    words = ["table1", "--dataset", "multi30k", "--norms", "ln", "--no-training", "--from", "archives"]
    assert reproduce.main(words) == 1
    said = capfd.readouterr().err
    assert "data_prep failed, as shown above; --data BIN takes data made by other means" in said
    expected = f"multi30k --bpe-tokens 4000 --out {tmp_path}/data/multi30k --from archives"
    assert f"-m data_prep {expected}" in said and "archives" in said.split("data_prep failed")[0]
    write_data(tmp_path / "data" / "multi30k" / "bin")
    stand_in = [sys.executable, "-c", "import sys; print(*sys.argv[1:])"]
    monkeypatch.setattr(data_module, "command", lambda *arguments: [*stand_in, "called"])
    assert reproduce.main(words) == 1  # nothing is trained yet
    assert f"{tmp_path}/runs/multi30k has no result of this table" in capfd.readouterr().err


@pytest.mark.parametrize(
    "change, message",
    [
        (["--norms", "ln,layer"], "--norms layer is not known; choose from bn, brn"),
        (["--seeds", "1,x"], "--seeds 1,x are no numbers"),
        (["--data", "/nowhere"], "--data /nowhere is no folder"),
        (["--jobs", "0"], "--jobs 0 is too few"),
        (["--", "fp16"], "fp16 is no flag"),
        (["--report-only"], "has no result of this table"),
    ],
)
def test_bad_input_is_one_sentence(change, message, data, tmp_path, capsys):
    assert reproduce.main([*arguments(data, tmp_path), *change]) == 1
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_tables_are_named_when_one_is_not_known(data, tmp_path, capsys):
    assert reproduce.main(arguments(data, tmp_path, table="table9")) == 1
    assert "table9 is no table; choose from table1, table2, leak, table3" in capsys.readouterr().err
    assert reproduce.main(["batch-size", "--dataset", "wmt14"]) == 1
    assert "batch-size has no --dataset wmt14; choose from iwslt14" in capsys.readouterr().err
