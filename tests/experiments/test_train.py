"""train.sh: the recipes, what is refused before anything starts, and real trainings that are stopped and go on."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("fairseq")

import torch
from fairseq import options
from fairseq.dataclass.initialize import hydra_init
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from hydra.core.global_hydra import GlobalHydra
from hydra.experimental import compose, initialize_config_dir

from powernorm_fairseq import files
from powernorm_fairseq.console import UserError
from powernorm_fairseq.experiments import batches, checks, ranks, recipes, train
from powernorm_fairseq.safe_load import load_checkpoint
from tests.models.training import NO_STATE

pytestmark = pytest.mark.usefixtures("no_cluster")
ROOT = Path(__file__).resolve().parents[2]
TINY = (
    "--encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 "
    "--encoder-layers 1 --decoder-layers 1 --num-workers 0 --max-tokens 100 --log-interval 5 --warmup-updates 20 "
    "--no-epoch-checkpoints --cpu"
).split()


def arguments(data, folder, *flags, preset="demo", norm="pn"):
    return ["--preset", preset, "--norm", norm, "--data", str(data), "--save-dir", str(folder), *map(str, flags)]


def start(data, folder, *flags):
    """A training as a user starts it; SIGHUP counts, even if the tests run under nohup."""
    command = [str(ROOT / "scripts/train.sh"), *arguments(data, folder, *flags)]
    env = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=env, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL), **pipes)


def finish(process, timeout=240):
    """Exit status and output."""
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return process.returncode, (out + err).decode()


def wait_for(condition, process, timeout=120):
    end = time.monotonic() + timeout
    while not condition():
        assert process.poll() is None and time.monotonic() < end, process.communicate()[1].decode()[-3000:]
        time.sleep(0.05)


def trains(folder, starts=1):
    """Whether the log has numbers of a training that was started so often."""
    log = folder / "train.log"
    parts = log.read_text(errors="replace").split("train: 20") if log.exists() else []
    return len(parts) == starts + 1 and "train_inner" in parts[-1]


def status(folder):
    return json.loads((folder / "status.json").read_text())


# Recipes


@pytest.mark.parametrize("norm", ["pn", "bn"])
@pytest.mark.parametrize("preset", recipes.PRESETS)
def test_flags_say_what_the_configuration_says(preset, norm):
    flags = recipes.recipe(preset, norm, recipes.usual_processes(preset))
    argv = ["data", "--user-dir", str(ROOT / "powernorm_fairseq"), *recipes.to_words(flags)]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), argv))
    hydra_init(preset)
    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=str(ROOT / "configs")):
        override = "model.norm" if cfg.task._name == "language_modeling" else "norm"
        synchronised = preset == "wmt14" and norm == "bn"  # as in the paper
        wanted = compose(preset, overrides=[f"{override}={norm}", *["+model.sync_norm=true"] * synchronised])
    wanted.task.data = "data"
    compared = 0
    for group in ("task", "model", "criterion", "optimizer", "lr_scheduler", "optimization", "dataset", "checkpoint"):
        for key, value in wanted[group].items():
            if value is not None and key != "_name":
                assert str(cfg[group][key]) == str(value), (group, key)
                compared += 1
    assert compared > 50
    assert (cfg.model.norm if cfg.task._name == "language_modeling" else cfg.model.encoder_norm) == norm


@pytest.mark.parametrize(
    "preset, processes, tokens, frequency",
    [("wmt14", 128, 4096, 1), ("wmt14", 8, 4096, 16), ("wmt14", 256, 2048, 1), ("iwslt14", 1, 4096, 1),
     ("iwslt14", 2, 2048, 1), ("multi30k", 2, 2048, 1)],
)  # fmt: skip
def test_an_update_has_the_tokens_of_the_recipe_on_any_number_of_processes(preset, processes, tokens, frequency):
    flags = recipes.recipe(preset, "pn", processes)
    assert int(flags["--max-tokens"][0]) == tokens and int(flags.get("--update-freq", ["1"])[0]) == frequency


@pytest.mark.parametrize(
    "processes, frequency, off",
    [(128, 1, None), (64, 2, None), (16, 8, None), (48, 3, "12.5% more"), (80, 2, "25.0% more"), (96, 1, "25.0% fewer"),
     (112, 1, "12.5% fewer"), (100, 1, "21.9% fewer")],
)  # fmt: skip
def test_what_differs_from_the_update_of_the_recipe_is_said(processes, frequency, off):
    """The batch that statistics are taken over stays."""
    flags = recipes.recipe("wmt14", "pn", processes)
    assert (flags["--max-tokens"], flags["--update-freq"]) == (["4096"], [str(frequency)])
    sentences = batches.warnings(flags, 4096, 128, processes, {})
    assert len(sentences) == (off is not None) and (off is None or f"{off} than the recipe's 524288" in sentences[0])


@pytest.mark.parametrize(
    "preset, norm, processes, extra, words",
    [
        ("demo", "pn", 8, {}, "statistics are taken over 256 tokens, not over the recipe's 2048"),
        ("demo", "ln", 8, {}, None),
        ("demo", "ln", 8, {"--decoder-norm": ["pn"]}, "over 256 tokens"),
        ("demo", "pn", 8, {"--sync-norm": []}, None),
        ("demo", "pn", 8, {"--max-tokens": ["256"]}, None),  # asked for
        ("wmt14", "pn", 256, {}, "over 2048 tokens, not over the recipe's 4096: another experiment; 128 or fewer"),
        ("wmt14", "bn", 64, {}, "over 262144 tokens, not over the recipe's 524288: another experiment; 128 processes"),
    ],
)
def test_another_batch_of_the_statistics_is_said(preset, norm, processes, extra, words):
    usual = recipes.usual_processes(preset)
    tokens = int(recipes.recipe(preset, norm, usual)["--max-tokens"][0])
    flags = recipes.merge(preset, norm, recipes.recipe(preset, norm, processes), extra)
    sentences = batches.warnings(flags, tokens, usual, processes, extra)
    assert words is None and not sentences or len(sentences) == 1 and words in sentences[0], sentences


@pytest.mark.parametrize(
    "began, processes, divided",
    [(1024, 2, (1024, 1)), (1024, 1, (1024, 2)), (512, 1, (512, 4)), (2048, 2, (1024, 1))],
)
def test_a_training_keeps_the_batch_that_it_began_with_if_it_can(began, processes, divided):
    assert batches.divide(2048, 1, processes, began) == divided


def test_flags_of_the_user_win():
    flags = recipes.recipe("iwslt14", "pn", 1)
    assert "--share-all-embeddings" in flags
    extra = recipes.parse_flags(
        "--no-share-all-embeddings --no-epoch-checkpoints --lr-scheduler cosine --max-update 7 --optimizer adam".split()
    )
    merged = recipes.merge("iwslt14", "pn", flags, extra)
    gone = {"--share-all-embeddings", "--no-share-all-embeddings", "--warmup-init-lr", "--warmup-updates"}
    assert not gone & set(merged)
    assert merged["--lr-scheduler"] == ["cosine"] and merged["--no-epoch-checkpoints"] == []
    assert merged["--adam-betas"] == flags["--adam-betas"] and merged["--max-update"] == ["7"]
    argv = ["data", "--user-dir", str(ROOT / "powernorm_fairseq"), *recipes.to_words(merged)]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), argv))
    assert cfg.lr_scheduler._name == "cosine" and not cfg.model.share_all_embeddings


def test_no_sentence_is_left_out():
    assert all(recipes.recipe(preset, "ln", 1)["--required-batch-size-multiple"] == ["1"] for preset in
               recipes.PRESETS)  # fmt: skip


def test_flags_as_typed():
    words = ["--lr", "0.1", "--fp16", "--keep-last-epochs", "-1", "--max-update=7", "--keep-best-checkpoints", "2"]
    flags = recipes.parse_flags(words)
    assert flags["--keep-last-epochs"] == ["-1"] and flags["--fp16"] == [] and flags["--max-update"] == ["7"]
    assert recipes.parse_flags(recipes.to_words(flags)) == flags
    twice = recipes.parse_flags(["--max-epoch", "1", "--cpu", "--max-epoch", "2"])
    assert twice == {"--cpu": [], "--max-epoch": ["2"]}


# Before anything starts


@pytest.mark.parametrize(
    "change, message",
    [
        (["--preset", "wmt15"], "--preset wmt15 is not known; choose from demo, iwslt14"),
        (["--norm", "pnorm"], "--norm pnorm is not known; choose from bn, brn"),
        (["--data", "nowhere"], "nowhere is no folder"),
        (["--preset", "wmt14", "--", "--target-lang", "fr"], "has no train data for en to fr"),
        (["--nproc", "0"], "--nproc 0 is too few"),
        (["--save-minutes", "-1"], "--save-minutes -1.0 is no number of minutes"),
        (["--precision", "fp16"], "--precision fp16 needs a GPU, and there is none; choose fp32 or bf16"),
        (["--precision", "bf16", "--", "--fp16"], "--precision bf16 and --fp16 after -- contradict each other"),
        (["--", "--broadcast-buffers"], "--broadcast-buffers would replace each process's running statistics"),
        (["--", "--save-dir", "x"], "--save-dir cannot come after --"),
        (["--", "fp16"], "fp16 is no flag"),
    ],
)
def test_bad_input_is_one_sentence(change, message, toy_data, tmp_path, capsys):
    assert train.main(arguments(toy_data, tmp_path / "run", *change)) == 1
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_missing_files_are_named(toy_data, tmp_path, capsys):
    data = tmp_path / "bin"
    shutil.copytree(str(toy_data), str(data))
    (data / "valid.de-en.en.bin").unlink()
    assert train.main(arguments(data, tmp_path / "run")) == 1
    assert "valid.de-en.en.bin is missing" in capsys.readouterr().err


def test_shared_embeddings_need_one_dictionary(toy_data, tmp_path, capsys):
    data = tmp_path / "bin"
    shutil.copytree(str(toy_data), str(data))
    with open(str(data / "dict.en.txt"), "a") as file:
        file.write("extra 1\n")
    assert train.main(arguments(data, tmp_path / "run")) == 1
    assert "--joined-dictionary" in capsys.readouterr().err


def test_full_disk(toy_data, tmp_path, capsys, monkeypatch):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10_000_000))
    assert train.main(arguments(toy_data, tmp_path / "run", preset="iwslt14")) == 1
    assert re.search(r"the checkpoints need about \d\.\d GB, but only 0\.0 GB are free", capsys.readouterr().err)
    assert train.main(arguments(toy_data, tmp_path / "run", "--dry-run", "--", *TINY)) == 0  # tiny ones fit


def test_estimate_of_a_checkpoint(toy_data):
    """IWSLT14's `small` has 31.5 million parameters beside its embeddings, which are few here."""
    flags = recipes.recipe("iwslt14", "pn", 1)
    assert checks.checkpoint_bytes(str(toy_data), flags) == pytest.approx(31.5e6 * 12, rel=0.05)


EXPERIMENT = {"norm": ["--norm", "ln"], "seed": ["--seed", "2"], "preset": ["--preset", "multi30k"],
              "flags": ["--", "--lr", "1"]}  # fmt: skip


@pytest.mark.parametrize("name", EXPERIMENT)
def test_folder_of_another_experiment(name, toy_data, tmp_path, capsys):
    args = train.parse_args(arguments(toy_data, tmp_path))
    flags = recipes.recipe("demo", "pn", 1)
    files.write(
        tmp_path / "experiment.json", checks.describe("demo", "pn", 1, args.data, flags, args.extra)
    )
    assert train.main(arguments(toy_data, tmp_path, "--dry-run", *EXPERIMENT[name])) == 0  # nothing has been saved
    (tmp_path / "checkpoint_last.pt").touch()
    assert train.main(arguments(toy_data, tmp_path, "--dry-run")) == 0
    assert train.main(arguments(toy_data, tmp_path, "--dry-run", "--", "--max-update", "7")) == 0  # longer: goes on
    assert train.main(arguments(toy_data, tmp_path, "--dry-run", "--restart", *EXPERIMENT[name])) == 0
    assert train.main(arguments(toy_data, tmp_path, "--dry-run", *EXPERIMENT[name])) == 1
    assert f"experiment with other {name}" in capsys.readouterr().err


def test_folder_with_other_data(toy_data, tmp_path, capsys):
    data = tmp_path / "bin"
    shutil.copytree(str(toy_data), str(data))
    flags = recipes.recipe("demo", "pn", 1)
    files.write(tmp_path / "experiment.json", checks.describe("demo", "pn", 1, str(data), flags, {}))
    (tmp_path / "checkpoint_last.pt").touch()
    assert train.main(arguments(toy_data, tmp_path, "--dry-run")) == 0  # the same data elsewhere
    with open(str(data / "train.de-en.de.bin"), "ab") as file:
        file.write(b"more")
    assert train.main(arguments(data, tmp_path, "--dry-run")) == 1
    assert "other data" in capsys.readouterr().err


@pytest.mark.parametrize(
    "norm, began, processes, flags, message",
    [
        ("pn", {"tokens": 2048, "statistics": 2048}, 2, [], "statistics over 2048 tokens, not 1024"),
        ("ln", {"tokens": 2048, "statistics": None}, 2, [], "batches of 2048 tokens, not 1024"),
        ("pn", {"tokens": 1024, "statistics": 2048}, 1, ["--sync-norm"], "statistics over 2048 tokens, not 1024"),
        ("pn", {"tokens": 1024, "statistics": 1024}, 1, [], None),  # two batches make an update
    ],
)
def test_going_on_with_another_batch(norm, began, processes, flags, message, toy_data, tmp_path, capsys):
    words = arguments(toy_data, tmp_path, "--nproc", processes, "--dry-run", "--", *flags, norm=norm)
    args = train.parse_args(words)
    recipe = recipes.recipe("demo", norm, 1)
    experiment = checks.describe("demo", norm, 1, args.data, recipe, args.extra)
    files.write(tmp_path / "experiment.json", {**experiment, "batch": began})
    (tmp_path / "checkpoint_last.pt").touch()
    assert train.main(words) == (message is not None)
    captured = capsys.readouterr()
    assert message in captured.err if message else "--max-tokens 1024 --" in captured.out
    assert message or "--update-freq 2" in captured.out


def test_folder_with_checkpoints_of_unknown_origin(toy_data, tmp_path, capsys):
    (tmp_path / "checkpoint_last.pt").touch()
    assert train.main(arguments(toy_data, tmp_path, "--dry-run")) == 1
    assert "train.sh did not write" in capsys.readouterr().err


def test_one_training_at_a_time(toy_data, tmp_path, capsys):
    held = checks.lock(tmp_path)
    assert train.main(arguments(toy_data, tmp_path, "--", *TINY)) == 1
    assert "another training is running" in capsys.readouterr().err
    held.close()


def test_dry_run_prints_the_calls_and_writes_nothing(toy_data, tmp_path, capsys):
    words = ["--nproc", "2", "--seed", "5", "--tensorboard", "--dry-run", "--", "--max-update", "7", "--cpu"]
    assert train.main(arguments(toy_data, tmp_path / "run", *words)) == 0
    calls = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert len(calls) == 2 and not (tmp_path / "run").exists()
    for rank, call in enumerate(calls):
        text = " ".join(call)
        assert f"--distributed-rank {rank} --device-id {rank} --distributed-backend gloo" in text
        assert "--seed 5 " in text and "--max-update 7 " in text and "--max-tokens 1024 " in text
        assert f"--tensorboard-logdir {tmp_path}/run/tensorboard" in text and call.count("--cpu") == 1


def test_help_names_every_flag():
    done = subprocess.run([str(ROOT / "scripts/train.sh"), "--help"], stdout=subprocess.PIPE, check=True)
    flags = [action.option_strings[-1] for action in train.build_parser()._actions]
    names = [*flags, *recipes.PRESETS, *recipes.norm_names()]
    assert all(name in done.stdout.decode() for name in names)
    done = subprocess.run([str(ROOT / "scripts/train.sh")], stderr=subprocess.PIPE)
    assert done.returncode != 0 and b"usage: powernorm train" in done.stderr


# Where processes run


SLURM = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}
NODES = {"MASTER_ADDR": "a", "MASTER_PORT": "9"}


@pytest.mark.parametrize(
    "nproc, gpus, env, place",
    [
        (None, 0, {}, (1, 0, 1, 0, 0, None)),
        (None, 1, {}, (1, 0, 1, 1, 0, None)),
        (None, 8, {}, (8, 0, 8, 8, 0, "127.0.0.1")),
        (3, 0, {}, (3, 0, 3, 0, 0, "127.0.0.1")),
        (2, 8, {}, (2, 0, 2, 8, 0, "127.0.0.1")),
        (None, 4, {**NODES, "NNODES": "3", "NODE_RANK": "2"}, (12, 8, 4, 4, 0, "a:9")),
        (None, 4, {**NODES, "RANK": "6", "WORLD_SIZE": "8", "LOCAL_RANK": "2"}, (8, 6, 1, 4, 2, "a:9")),
        (None, 0, {**NODES, "RANK": "1", "WORLD_SIZE": "2"}, (2, 1, 1, 0, 0, "a:9")),
        # several tasks on each machine: a process each, on the GPU of its number, or on the only one that it sees
        (None, 0, {**SLURM, "SLURM_STEP_NUM_TASKS": "6"}, (6, 5, 1, 0, 0, "127.0.0.1:")),
        (None, 4, {**SLURM, "SLURM_STEP_NUM_TASKS": "6"}, (6, 5, 1, 4, 1, "127.0.0.1:")),
        (None, 1, {**SLURM, "SLURM_STEP_NUM_TASKS": "6"}, (6, 5, 1, 1, 0, "127.0.0.1:")),
        # one task on each machine: a process for each GPU
        (
            None, 8, {**SLURM, "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_NUM_NODES": "6", "SLURM_LOCALID": "0",
                      "SLURM_STEP_NODELIST": "gpu[07-12]"}, (48, 40, 8, 8, 0, "gpu07:")
        ),
    ],
)  # fmt: skip
def test_place_of_a_command_in_a_training(nproc, gpus, env, place, tmp_path, monkeypatch):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\n[ "$*" = "show hostnames gpu[07-12]" ] && echo "gpu07\ngpu08"\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = ranks.find_place(nproc, gpus, env)
    numbers = (found.world, found.first, found.local, found.gpus, found.device)
    assert numbers == place[:5]
    assert (found.address or "").startswith(place[5] or "") and (found.address is None) == (place[5] is None)
    words = " ".join(found.rank_flags(0))
    assert ("nccl" in words) == (gpus > 0 and found.world > 1) and ("--cpu" in words) == (gpus == 0)


def test_places_that_cannot_be():
    with pytest.raises(UserError, match="more than the 2 GPUs"):
        ranks.find_place(3, 2, {})
    with pytest.raises(UserError, match="also needs NODE_RANK, MASTER_ADDR"):
        ranks.find_place(1, 0, {"NNODES": "2"})


def test_processes_of_a_larger_training_are_counted_there():
    with pytest.raises(UserError, match="--nproc 2 does not go with RANK=0 and WORLD_SIZE=4"):
        ranks.find_place(2, 0, {**NODES, "RANK": "0", "WORLD_SIZE": "4"})
    with pytest.raises(UserError, match="RANK=0 and WORLD_SIZE=4 make this .* also needs MASTER_PORT; set"):
        ranks.find_place(None, 0, {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "a"})


def test_trainings_of_one_step_meet_in_different_places():
    env = {**SLURM, "SLURM_STEP_NUM_TASKS": "6"}
    first, same, second, later = (
        ranks.find_place(None, 0, {**env, **more}, name).address
        for name, more in (("a", {}), ("a", {"SLURM_PROCID": "0"}), ("b", {}), ("a", {"SLURM_RESTART_COUNT": "1"}))
    )
    assert first == same and len({first, second, later}) == 3
    alone = {**SLURM, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    assert ranks.find_place(2, 0, alone, "a").address != ranks.find_place(2, 0, alone, "a").address


def test_environment_keeps_no_secret(monkeypatch):
    monkeypatch.setenv("SLURM_JWT", "hush")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    found = train.environment(ranks.find_place(None, 0, {}))
    assert "hush" not in json.dumps(found) and found["variables"]["NCCL_DEBUG"] == "INFO"
    assert found["variables"]["MALLOC_ARENA_MAX"] == "2"
    assert found["variables"]["MALLOC_MMAP_THRESHOLD_"] == "33554432"  # what the training gets, on a CPU
    assert found["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert found["packages"]["powernorm-fairseq"] and found["host"] and found["processor"] and "git_revision" in found


def test_a_training_on_a_cpu_keeps_freed_memory_unless_the_user_decides(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "5")
    with_cpu, with_gpu = (train.child_environment(ranks.find_place(1, gpus, {}), 15) for gpus in (0, 1))
    assert with_cpu["MALLOC_MMAP_THRESHOLD_"] == "33554432" and "MALLOC_MMAP_THRESHOLD_" not in with_gpu
    assert with_cpu["MALLOC_TRIM_THRESHOLD_"] == with_gpu["MALLOC_TRIM_THRESHOLD_"] == "5"


# Real trainings


def leaves(value, path=""):
    """All tensors and numbers of a nested structure, by their path."""
    if isinstance(value, dict):
        value = value.items()
    elif isinstance(value, (list, tuple)):
        value = enumerate(value)
    else:
        return {path: value}
    return {key: leaf for name, part in value for key, leaf in leaves(part, f"{path}/{name}").items()}


def test_stopped_training_goes_on_as_if_nothing_had_been(toy_data, tmp_path):
    """Also: what a finished run leaves behind, and that it is not run again."""
    flags = ["--", *TINY, "--max-update", 200]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    code, output = finish(start(toy_data, whole, "--tensorboard", *flags))
    assert code == 0 and "train: finished" in output and '"valid_loss"' in output, output[-3000:]
    assert status(whole)["state"] == "finished"
    assert '"train_loss"' in (whole / "train.log").read_text()
    assert any((whole / "tensorboard").rglob("events*"))
    assert json.loads((whole / "environment.json").read_text())["packages"]["torch"]
    own, call = (whole / "command.txt").read_text().splitlines()[1:]
    assert "powernorm train --preset demo" in own and "fairseq-train" in call and "--max-update 200" in call
    code, output = finish(start(toy_data, whole, "--tensorboard", *flags), timeout=60)
    assert code == 0 and "is finished" in output

    process = start(toy_data, parts, *flags)
    wait_for(lambda: trains(parts), process)
    process.send_signal(signal.SIGUSR1)
    code, output = finish(process)
    assert code == 75 and "SIGUSR1: stopping after this update" in output, output[-3000:]
    assert status(parts)["state"] == "stopped" and not list(parts.glob("stop-*"))
    stopped = load_checkpoint(parts / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"]
    assert 5 <= stopped < 200
    code, output = finish(start(toy_data, parts, *flags))
    assert code == 0 and f"@ {stopped} updates" in output, output[-3000:]
    for name in ("checkpoint_last.pt", "checkpoint_best.pt"):
        expected, found = (load_checkpoint(folder / name) for folder in (whole, parts))
        for part in ("model", "last_optimizer_state"):
            wanted = {key: leaf for key, leaf in leaves(expected[part]).items() if not NO_STATE.search(key)}
            ours = leaves(found[part])
            assert wanted and wanted.keys() <= ours.keys()
            assert all(torch.equal(torch.as_tensor(ours[key]), torch.as_tensor(wanted[key])) for key in wanted)


def test_processes_stop_together_and_none_outlives_another(toy_data, tmp_path):
    flags = ["--nproc", 2, "--", *TINY, "--max-update", 100000]
    process = start(toy_data, tmp_path, *flags)
    wait_for(lambda: trains(tmp_path), process)
    process.send_signal(signal.SIGTERM)
    code, output = finish(process)
    assert code == 75 and status(tmp_path)["state"] == "stopped", output[-3000:]

    process = start(toy_data, tmp_path, *flags)
    wait_for(lambda: trains(tmp_path, starts=2), process)
    ranks = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    victim = next(pid for pid in ranks if b"--distributed-rank\x001" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    code, output = finish(process)
    assert code == 1 and time.monotonic() - killed < 15
    assert "rank 1 was ended by SIGKILL; the other processes were stopped" in output, output[-3000:]
    assert status(tmp_path)["state"] == "failed" and "rank 1" in status(tmp_path)["reason"]
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_what_a_stopped_training_leaves(number, toy_data, tmp_path):
    """Nothing of the stop is in the settings that the checkpoint holds."""
    process = start(toy_data, tmp_path, "--", *TINY, "--max-update", 100000)
    wait_for(lambda: trains(tmp_path), process)
    process.send_signal(number)
    code, output = finish(process)
    assert code == 75 and f"{number.name}: stopping after this update" in output, output[-3000:]
    cfg = load_checkpoint(tmp_path / "checkpoint_last.pt")["cfg"]
    assert cfg["optimization"]["stop_time_hours"] == 0 and cfg["dataset"]["disable_validation"] is False
    assert not list(tmp_path.glob("heartbeat-*")) + list(tmp_path.glob("stop-*"))
    experiment = json.loads((tmp_path / "experiment.json").read_text())
    assert experiment["batch"] == {"tokens": 100, "statistics": 100} and experiment["precision"] == "fp32"


# Takes its time to end, after Python has put its own handlers of signals away.
SLOW_END = """
import time
from powernorm_fairseq.experiments import ranks

class Slow:
    def __del__(self):
        print("ending", flush=True)
        self.sleep(2)

slow, Slow.sleep, noted = Slow(), staticmethod(time.sleep), ranks.note_signals()
"""


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_at_the_very_end_changes_nothing(number):
    process = subprocess.Popen([sys.executable, "-c", SLOW_END], cwd=str(ROOT), stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ending\n"
    process.send_signal(number)
    process.stdout.close()
    assert process.wait() == 0


def test_nohup_is_respected(toy_data, tmp_path):
    command = ["nohup", str(ROOT / "scripts/train.sh"), *arguments(toy_data, tmp_path, "--", *TINY, "--max-update", 60)]
    env = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    process = subprocess.Popen(command, env=env, **pipes)
    wait_for(lambda: trains(tmp_path), process)
    process.send_signal(signal.SIGHUP)
    code, output = finish(process)
    assert code == 0 and "train: finished" in output, output[-3000:]


@pytest.mark.slow
def test_checkpoints_by_the_clock_change_nothing(toy_data, tmp_path):
    """With a wait of no time there is one after each update; two processes, each with statistics of its own."""
    flags = ["--", *TINY, "--max-update", 40, "--disable-validation"]
    for name, minutes in (("often", "1e-9"), ("never", "0")):
        code, output = finish(start(toy_data, tmp_path / name, "--nproc", 2, "--save-minutes", minutes, *flags))
        assert code == 0, output[-3000:]
        saved = (tmp_path / name / "train.log").read_text().count("Finished saving checkpoint")
        assert saved > 35 if name == "often" else saved < 8  # one for each epoch
    states = [load_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("often", "never")]
    ours, theirs = ({**leaves(state["model"]), **leaves(state["last_optimizer_state"])} for state in states)
    assert all(torch.equal(torch.as_tensor(ours[key]), torch.as_tensor(theirs[key])) for key in theirs
               if not NO_STATE.search(key))  # fmt: skip


def test_a_process_that_hangs_is_ended(toy_data, tmp_path):
    process = start(toy_data, tmp_path, "--nproc", 2, "--hang-minutes", 0.1, "--", *TINY, "--max-update", 100000)
    wait_for(lambda: trains(tmp_path), process)
    ranks = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    victim = next(pid for pid in ranks if b"--distributed-rank\x001" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(victim, signal.SIGSTOP)
    code, output = finish(process, timeout=60)
    assert code == 1 and "rank 1 is stopped, and no process has made progress for 6 s; all were ended" in output
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)


def test_a_try_that_never_saved_claims_nothing_and_restart_keeps_what_was(toy_data, tmp_path):
    code, output = finish(start(toy_data, tmp_path, "--", *TINY, "--no-such-flag"))
    assert code == 1 and "unrecognized arguments: --no-such-flag" in output
    code, output = finish(start(toy_data, tmp_path, "--", *TINY, "--max-update", 5))
    assert code == 0 and f"what was in {tmp_path} is in {tmp_path}/before-1 now" in output, output[-3000:]
    assert "no-such-flag" not in (tmp_path / "train.log").read_text()
    code, output = finish(start(toy_data, tmp_path, "--restart", "--seed", 2, "--", *TINY, "--max-update", 5))
    assert code == 0 and "Loaded checkpoint" not in output, output[-3000:]
    assert (tmp_path / "before-2" / "checkpoint_last.pt").exists()
    assert json.loads((tmp_path / "experiment.json").read_text())["seed"] == 2


def test_bfloat16_on_a_cpu(toy_data, tmp_path):
    code, output = finish(start(toy_data, tmp_path, "--precision", "bf16", "--", *TINY, "--max-update", 5))
    assert code == 0 and "--bf16" in (tmp_path / "command.txt").read_text().splitlines()[-1], output[-3000:]
    assert json.loads((tmp_path / "experiment.json").read_text())["precision"] == "bf16"


@pytest.mark.slow
def test_torchs_own_data_parallelism_trains_the_same(toy_data, tmp_path):
    """--ddp-backend pytorch_ddp, whose processes keep their statistics to themselves, too."""
    states = []
    for backend in ("legacy_ddp", "pytorch_ddp"):
        flags = ["--nproc", 2, "--", *TINY, "--max-update", 30, "--disable-validation", "--ddp-backend", backend]
        code, output = finish(start(toy_data, tmp_path / backend, *flags))
        assert code == 0, output[-3000:]
        states.append(load_checkpoint(tmp_path / backend / "checkpoint_last.pt"))
    ours, theirs = (leaves(state["model"]) for state in states)
    for key in theirs:
        if not NO_STATE.search(key):
            torch.testing.assert_close(ours[key], theirs[key], rtol=1e-4, atol=1e-5)
    each = [state["extra_state"]["statistics_of_processes"] for state in states]
    assert not torch.equal(each[0][0], each[0][1])
    for one, other in zip(*each):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_failure_of_fairseq_is_reported(toy_data, tmp_path):
    code, output = finish(start(toy_data, tmp_path, "--", *TINY, "--encoder-attention-heads", 5))
    assert code == 1 and re.search(r"train: rank 0 failed with status 1; its output is in .*train\.log", output)
