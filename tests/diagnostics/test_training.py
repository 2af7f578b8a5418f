"""--norm-stats in real fairseq trainings."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq")

from fairseq.logging import metrics

from powernorm_fairseq.diagnostics import storage
from tests.models.test_distributed import train
from tests.models.test_training import needs_half_on_cpu
from tests.models.training import RECIPE, SMALL, USER_DIR, Run, same, state

BOTH = ["--encoder-norm", "pn", "--decoder-norm", "bn"]
DISTANCES = ("dist_mu", "dist_var", "dist_psi2")
GRADIENTS = ("g_mu", "g_var", "g_psi2")
FIRST = "encoder.layers.0.self_attn_layer_norm"


def recording(data, folder, *flags, interval=1):
    return Run(data, "--norm-stats", "--norm-stats-interval", interval, "--save-dir", folder, *flags)


def hooks(run):
    """Hooks on the norms beside the one that brings the padding mask."""
    return sum(len(norm._forward_hooks) + len(norm._forward_pre_hooks) - 1 for norm in run.norms().values())


def real_tokens(run, batch):
    return int(batch["net_input"]["src_tokens"].ne(run.task.source_dictionary.pad()).sum())


def columns(folder, *names):
    """All layers' numbers of each training record."""
    records = [record for record in storage.read(folder).records if record.kind == "train"]
    return [[record.columns[name] for name in names] for record in records]


def test_recording_changes_nothing(toy_data, tmp_path):
    plain, recorded = Run(toy_data, *BOTH), recording(toy_data, tmp_path, *BOTH)
    assert plain.train(4) == recorded.train(4)
    assert same(state(plain.model), state(recorded.model))
    assert len(storage.read(tmp_path).records) == 4


def test_off_means_nothing_at_all(toy_data, tmp_path):
    run = Run(toy_data, "--save-dir", tmp_path / "saved")
    run.train(2)
    assert hooks(run) == 0 and not hasattr(run.task, "post_validate")
    assert not getattr(run.task.train_step, "records_norms", False)
    assert not list(tmp_path.rglob(storage.FILE))


def test_records_hold_every_norm_and_its_real_tokens(toy_data, tmp_path):
    run = recording(toy_data, tmp_path, *BOTH, interval=2)
    run.train(5)
    read = storage.read(tmp_path)
    assert [layer.name for layer in read.layers] == list(run.norms())
    assert {layer.kind for layer in read.layers} == {"PowerNorm", "BatchNorm"}
    assert [record.update for record in read.records] == [2, 4]
    record, batch = read.records[0], run.batches[1]
    layer = [entry.name for entry in read.layers].index(FIRST)
    assert record.columns["tokens"][layer] == real_tokens(run, batch)
    assert record.extra["sample_size"] == batch["ntokens"]
    assert 1 < record.extra["loss"] < 10
    for name, values in record.columns.items():
        of_pn = name.startswith(("Gamma", "Lambda", "nu"))
        for value, entry in zip(values, read.layers):
            assert (value is None) == (of_pn and entry.kind == "BatchNorm"), (name, entry)
    assert len(record.vectors[FIRST]) == 16
    assert max(record.vectors[FIRST]) == record.columns["gamma_psi_max"][layer]


@pytest.mark.parametrize("name", ["bn", "pn"])
def test_distances_are_those_between_the_input_and_the_buffers(toy_data, tmp_path, name):
    """From the first norm's input, kept by a hook of this test, and its buffers as they were before the update."""
    run = recording(toy_data, tmp_path, "--encoder-norm", name, "--dropout", 0.0)
    run.train(3)
    norm, inputs = run.norms()[FIRST], []
    before = {key: buffer.clone().double() for key, buffer in norm.named_buffers()}
    handle = norm.register_forward_hook(lambda module, args, output: inputs.append(args))
    run.train(1, first=3)
    handle.remove()
    (x, mask), groups = inputs[0], norm.scale_groups
    rows = x.detach()[~mask].double()
    heads = rows.view(len(rows), groups, -1)
    rows = (heads / torch.sqrt((heads**2).mean(2, keepdim=True) + 1e-5)).view(len(rows), -1)
    if name == "bn":
        expected = {
            "dist_mu": rows.mean(0) - before["running_mean"],
            "dist_var": rows.var(0, unbiased=False) - before["running_var"],
        }
    else:
        expected = {"dist_psi2": (rows**2).mean(0) - before["running_psi2"]}
    read = storage.read(tmp_path)
    layer = [entry.name for entry in read.layers].index(FIRST)
    for key, difference in expected.items():
        assert read.records[3].columns[key][layer] == pytest.approx(float(difference.norm()) / 16, rel=1e-4)


def test_accumulated_gradients_and_stand_in_batches_give_one_record(toy_data, tmp_path):
    run = recording(toy_data, tmp_path, "--encoder-norm", "pn", "--update-freq", 3)
    run.train(2)
    run.trainer.train_step([{}, run.batches[1], {}])
    run.trainer.train_step([{}, {}, {}])  # an update of stand-in batches alone: nothing to record
    run.train(1)
    records = storage.read(tmp_path).records
    assert [record.update for record in records] == [1, 2, 3, 5]
    tokens = [record.columns["tokens"][0] for record in records]
    assert tokens == [real_tokens(run, run.batches[index]) for index in (0, 3, 1, 0)]


def test_activation_checkpointing_gives_the_same_records(toy_data, tmp_path):
    flags = [*BOTH, "--dropout", 0.0]
    recording(toy_data, tmp_path / "plain", *flags).train(4)
    recording(toy_data, tmp_path / "again", *flags, "--checkpoint-activations").train(4)
    plain, again = (columns(tmp_path / folder, *DISTANCES, *GRADIENTS) for folder in ("plain", "again"))
    assert len(plain) == 4
    for ours, theirs in zip(plain, again):
        for values, expected in zip(theirs, ours):
            assert [value is None for value in values] == [value is None for value in expected]
            known = [(value, wanted) for value, wanted in zip(values, expected) if wanted is not None]
            assert [value for value, _ in known] == pytest.approx([wanted for _, wanted in known], rel=2e-3)


@needs_half_on_cpu
def test_loss_scale_is_not_in_the_records(toy_data, tmp_path):
    for scale in (4, 256):
        flags = ["--encoder-norm", "pn", "--fp16", "--fp16-init-scale", scale, "--dropout", 0.0]
        recording(toy_data, tmp_path / str(scale), *flags).train(2)
    small, large = (columns(tmp_path / folder, *GRADIENTS, "Lambda_norm") for folder in ("4", "256"))
    for ours, theirs in zip(small, large):
        for values, expected in zip(theirs, ours):
            assert values == pytest.approx(expected, rel=0.05)


@needs_half_on_cpu
def test_repeated_update_has_one_record_and_it_is_finite(toy_data, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)  # fairseq reports an overflow on the GPU
    run = recording(toy_data, tmp_path, "--encoder-norm", "pn", "--fp16", "--fp16-init-scale", 2**20)
    run.train(14)
    made = run.trainer.get_num_updates()
    assert 2 < made < 14  # there were overflows
    records = storage.read(tmp_path).records
    assert [record.update for record in records][:made] == list(range(1, made + 1)) and len(records) <= made + 1
    assert all(abs(value) < 1e9 for record in records for values in record.columns.values() for value in values)


def test_hooks_are_there_only_when_needed(toy_data, tmp_path):
    """At alpha 0.5, averages of the probes have 95 % of their weight in 5 batches."""
    run = recording(toy_data, tmp_path, "--encoder-norm", "pn", "--norm-alpha-fwd", 0.5, interval=10)
    found = []
    for update in range(1, 14):
        run.train(1, first=update - 1)
        found.append(hooks(run))
    assert found == [0] * 4 + [10] * 6 + [0] * 3
    run.trainer.valid_step(run.batches[0])
    assert hooks(run) == 0


def test_a_few_numbers_are_in_the_log(toy_data, tmp_path):
    for name, expected in (
        ("bn", {"norm_dist_mu", "norm_dist_var", "norm_g_mu", "norm_g_var"}),
        ("pn", {"norm_dist_psi2", "norm_g_psi2", "norm_gamma_psi_max", "norm_nu_max"}),
    ):
        metrics.reset()
        run = recording(toy_data, tmp_path / name, "--encoder-norm", name, interval=2)
        with metrics.aggregate("train_inner"):
            run.train(3)  # the last update has no record: the newest is shown
        shown = metrics.get_smoothed_values("train_inner")
        assert {key for key in shown if key.startswith("norm_")} == expected
        last = [record.columns for record in storage.read(tmp_path / name).records][-1]
        key = "dist_var" if name == "bn" else "dist_psi2"
        assert shown[f"norm_{key}"] == pytest.approx(sum(last[key]) / len(last[key]), rel=1e-3)
    assert shown["norm_nu_max"] == pytest.approx(max(last["nu_max"]), rel=1e-3)
    metrics.reset()


def test_validation_records_the_discrepancy(toy_data, tmp_path):
    run = recording(toy_data, tmp_path, "--encoder-norm", "bn", interval=2)
    run.train(3)
    for batch in run.batches[:2]:
        run.trainer.valid_step(batch)
    shown = {}
    run.task.post_validate(run.model, shown, None)
    (record,) = [record for record in storage.read(tmp_path).records if record.kind == "valid"]
    assert record.update == 3 and record.columns["batches"] == [2] * 5
    assert set(shown) == {"norm_tid_mean", "norm_tid_var"}
    assert shown["norm_tid_var"] == pytest.approx(sum(record.columns["tid_var"]) / 5, rel=1e-3)


def test_norms_without_batch_statistics_are_said_to_have_none(toy_data, tmp_path, caplog):
    recording(toy_data, tmp_path, "--encoder-norm", "ln").train(2)
    assert "no norm of this model has statistics of a batch" in caplog.text
    assert not (tmp_path / storage.FILE).exists()


def test_bad_interval_is_refused(toy_data, tmp_path):
    with pytest.raises(ValueError, match="--norm-stats-interval 0 is too small; it must be at least 1"):
        recording(toy_data, tmp_path, interval=0)


def test_killed_training_goes_on_without_duplicates(toy_data, tmp_path):
    """A resumed training is bit-identical, so it must measure again what the killed one had measured."""
    flags = (
        "--encoder-norm bn --norm-stats --norm-stats-interval 5 --save-interval 1000 --save-interval-updates 50 "
        "--validate-interval 1000 --validate-interval-updates 50 --log-format json --log-interval 10 "
        f"--tensorboard-logdir {tmp_path}/board"
    ).split()
    command = [str(Path(sys.executable).parent / "fairseq-train"), str(toy_data), "--user-dir", USER_DIR]
    command += ["--arch", "powernorm_tiny", *SMALL, *RECIPE, *flags, "--save-dir", str(tmp_path)]
    file = tmp_path / storage.FILE
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen([*command, "--max-update", "1000000"], stdout=log, stderr=log)
    while not (file.exists() and storage.read(file).records and storage.read(file).records[-1].update >= 60):
        assert process.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    killed = {(record.update, record.kind): record for record in storage.read(file).records}
    start = max(update for update, kind in killed if kind == "valid")  # saved right after it
    assert start < max(killed)[0]
    with open(file, "ab") as torn:
        torn.write(b'{"update": 9')
    end = max(killed)[0] + 10
    done = subprocess.run([*command, "--max-update", str(end)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    records = storage.read(file).records
    assert [record.update for record in records if record.kind == "train"] == list(range(5, end + 1, 5))
    lives = [json.loads(line)["after"] for line in file.read_text().splitlines() if '"after"' in line]
    assert lives == [0, start]
    for record in records:
        before = killed.get((record.update, record.kind))
        if before is not None:
            of_probes = {"dist_psi2"}  # an average that begins anew
            for name in record.columns.keys() - of_probes:
                assert record.columns[name] == before.columns[name], (record.update, name)
    output = done.stdout + done.stderr
    assert '"norm_dist_mu"' in output and '"valid_norm_tid_mean"' in output
    assert list((tmp_path / "board").rglob("*tfevents*"))


@pytest.mark.slow
@pytest.mark.parametrize("sync", [[], ["--sync-norm"]])
def test_first_of_two_processes_records_its_own_batches(toy_data, tmp_path, sync):
    flags = ["--encoder-norm", "bn", "--ddp-backend", "legacy_ddp", "--norm-stats", "--norm-stats-interval", "2", *sync]
    train(toy_data, tmp_path, 2, 8, *flags)
    read = storage.read(tmp_path)
    assert [record.update for record in read.records] == [2, 4, 6, 8] and read.header["after"] == 0
    assert read.layers[0].name == FIRST
    sizes = [record.extra["sample_size"] for record in read.records]
    assert sum('"format"' in line for line in (tmp_path / storage.FILE).read_text().splitlines()) == 1
    assert all(8 <= size <= 8 * 13 for size in sizes)  # of eight sentences, not sixteen
