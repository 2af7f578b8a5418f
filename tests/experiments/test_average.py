"""Averaging: fairseq's meaning, the norms' buffers, memory, and files that must be refused."""

import argparse
import os
import pickle
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from powernorm_fairseq.checkpoints import average_checkpoints, select_checkpoints
from powernorm_fairseq.experiments import average as script
from powernorm_fairseq.norms import norm_names
from powernorm_fairseq.safe_load import has_native_allow_list, load_checkpoint
from tests.norms.batches import bare_norm, random_affine, random_batch, training_step

ROOT = Path(__file__).resolve().parents[2]


def save(path, model, **others):
    torch.save({"model": OrderedDict(model), **others}, str(path))
    return str(path)


def save_all(folder, models, **others):
    return [save(folder / "part{}.pt".format(number), model, **others) for number, model in enumerate(models)]


def averaged(folder, *models):
    return average_checkpoints(save_all(folder, models))["model"]


def test_floats_are_averaged_and_integers_floor_divided(tmp_path):
    first = {"double": torch.tensor([100.0], dtype=torch.float64), "int": torch.tensor([7, 8, -9], dtype=torch.int32)}
    second = {"double": torch.tensor([1.0], dtype=torch.float64), "int": torch.tensor([2, 2, 2], dtype=torch.int32)}
    model = averaged(tmp_path, first, second)
    assert list(model) == ["double", "int"]
    assert torch.equal(model["double"], torch.tensor([50.5], dtype=torch.float64))
    assert torch.equal(model["int"], torch.tensor([4, 5, -4], dtype=torch.int32))


def test_sum_is_in_the_order_of_the_inputs(tmp_path):
    torch.manual_seed(1)
    tensors = [torch.randn(1000) for _ in range(7)]
    model = averaged(tmp_path, *({"w": tensor} for tensor in tensors))
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    assert torch.equal(model["w"], total / 7)


@pytest.mark.parametrize(("dtype", "result"), [(torch.float16, torch.float32), (torch.bfloat16, torch.bfloat16)])
def test_half_precision_accumulates_in_float32(dtype, result, tmp_path):
    # In half precision, 60000 + 60000 overflows (float16) and 256 + 1 is lost (bfloat16).
    large = torch.tensor([60000.0, 256.0], dtype=dtype)
    model = averaged(tmp_path, {"w": large}, {"w": large}, {"w": torch.ones(2, dtype=dtype)})
    expected = (2 * large.float() + 1) / 3
    assert model["w"].dtype == result
    assert torch.equal(model["w"], expected.to(result))


def test_norm_statistics_are_averaged(tmp_path):
    names = ["running_psi2", "nu", "running_mean", "running_var"]
    models = [{"encoder.layer_norm." + name: torch.full((4,), value) for name in names} for value in (1.0, 2.0)]
    model = averaged(tmp_path, *models)
    assert all(torch.equal(model["encoder.layer_norm." + name], torch.full((4,), 1.5)) for name in names)


@pytest.mark.parametrize("name", norm_names())
def test_every_norm_evaluates_by_the_average(name, tmp_path):
    norms = [bare_norm(name, 6) for _ in range(2)]
    for number, norm in enumerate(norms):
        random_affine(norm, number)
        for step in range(2 + number):
            training_step(norm, *(each.float() if each.is_floating_point() else each for each in random_batch(step)))
    states = [norm.state_dict() for norm in norms]
    result = bare_norm(name, 6)
    result.load_state_dict(averaged(tmp_path, *states))
    for key, value in result.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value, (states[0][key] + states[1][key]) / 2)
        else:
            assert torch.equal(value, states[1][key]), key  # counters and lengths are those of the newest
    assert torch.isfinite(result.eval()(torch.randn(3, 6))).all()


@pytest.mark.parametrize("counter", ["num_updates", "num_batches_tracked", "iters"])
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
@pytest.mark.parametrize("by", ["updates", "update names", "epoch names", "values"])
def test_counters_of_norms_are_those_of_the_newest_checkpoint(counter, order, by, tmp_path):
    name = "encoder.layers.0.final_layer_norm." + counter
    # The highest value is only asked where nothing else tells the age.
    values = [10, 30, 40] if by == "values" else [10, 40, 30]
    files = {"update names": "checkpoint_{0}_{0}00.pt", "epoch names": "checkpoint{0}.pt"}
    paths = []
    for number, value in enumerate(values):
        others = {"optimizer_history": [{"num_updates": 100 * number}]} if by == "updates" else {}
        path = tmp_path / files.get(by, "some{}.pt").format(number + 9)  # 9, 10, 11: numbers, not text
        paths.append(save(path, {name: torch.tensor([value]), "w": torch.zeros(1)}, **others))
    model = average_checkpoints([paths[number] for number in order])["model"]
    assert model[name].tolist() == [values[2]]
    assert model[name].dtype == torch.int64


def test_other_counters_are_left_to_fairseq(tmp_path):
    model = averaged(tmp_path, {"num_updates_total": torch.tensor(4)}, {"num_updates_total": torch.tensor(7)})
    assert model["num_updates_total"].item() == 5


def test_everything_else_comes_from_the_first_checkpoint(tmp_path):
    paths = save_all(tmp_path, [{"w": torch.zeros(1)}], args=argparse.Namespace(arch="a"), extra_state={"epoch": 1})
    paths.append(save(tmp_path / "z.pt", {"w": torch.ones(1)}, args=argparse.Namespace(arch="b")))
    state = average_checkpoints(paths)
    assert state["args"].arch == "a"
    assert state["extra_state"] == {"epoch": 1}


def test_tied_weights_stay_tied_and_right(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(50, 50), nn.Linear(50, 50)
            self.second.weight = self.first.weight

    models = [Tied() for _ in range(3)]
    state = average_checkpoints(save_all(tmp_path, [model.state_dict() for model in models]))
    expected = (models[0].first.weight + models[1].first.weight + models[2].first.weight) / 3
    assert torch.equal(state["model"]["first.weight"], expected)
    assert state["model"]["second.weight"].data_ptr() == state["model"]["first.weight"].data_ptr()


def test_weights_tied_in_one_checkpoint_only_are_kept_apart(tmp_path):
    shared = torch.ones(3)
    model = averaged(tmp_path, {"a": shared, "b": shared}, {"a": torch.zeros(3), "b": torch.full((3,), 5.0)})
    assert model["a"].tolist() == [0.5] * 3
    assert model["b"].tolist() == [3.0] * 3


def test_inputs_are_not_changed(tmp_path):
    paths = save_all(tmp_path, [{"w": torch.ones(3)}, {"w": torch.zeros(3)}])
    before = [Path(path).read_bytes() for path in paths]
    average_checkpoints(paths)["model"]["w"].add_(1)
    assert [Path(path).read_bytes() for path in paths] == before


def test_other_parameters_are_an_error_that_names_them(tmp_path):
    with pytest.raises(KeyError) as raised:  # as in fairseq
        averaged(tmp_path, {"a": torch.zeros(1), "b": torch.zeros(1)}, {"a": torch.zeros(1), "c": torch.zeros(1)})
    message = str(raised.value)
    assert "part1.pt has other parameters than" in message and "part0.pt" in message
    assert "lacks b and adds c" in message


@pytest.mark.parametrize("name", ["w", "norm.num_updates", "flag"])
def test_other_shapes_are_an_error_that_names_them(name, tmp_path):
    kind = {"w": torch.float32, "norm.num_updates": torch.int64, "flag": torch.bool}[name]
    with pytest.raises(ValueError, match=r"part1.pt differs in shape from .*part0.pt: .* is \[2\], not \[1\]"):
        averaged(tmp_path, {name: torch.zeros(1, dtype=kind)}, {name: torch.zeros(2, dtype=kind)})


def test_other_kinds_are_an_error_that_names_them(tmp_path):
    with pytest.raises(ValueError, match=r"part1.pt differs in type from .*part0.pt: w is torch.float32"):
        averaged(tmp_path, {"w": torch.zeros(1, dtype=torch.int64)}, {"w": torch.zeros(1)})


def test_a_file_without_model_is_an_error(tmp_path):
    torch.save({"weights": {}}, str(tmp_path / "x.pt"))
    with pytest.raises(ValueError, match="x.pt holds no model; its keys are weights"):
        average_checkpoints([tmp_path / "x.pt"])


def test_a_damaged_file_is_an_error_that_names_it(tmp_path):
    path = Path(save(tmp_path / "cut.pt", {"w": torch.zeros(1000)}))
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises((ValueError, pickle.UnpicklingError), match="cut.pt"):
        average_checkpoints([path])


@pytest.fixture
def run_folder(tmp_path):
    """A folder as fairseq-train leaves it: epochs 1 to 12, updates 100 to 1200."""
    for number in range(1, 13):
        for name in ("checkpoint{}.pt".format(number), "checkpoint_{}_{}.pt".format(number, number * 100)):
            save(tmp_path / name, {"w": torch.tensor([float(number)])})
    for name in ("checkpoint_best.pt", "checkpoint_last.pt", "checkpoint3.pt.tmp", "xcheckpoint99.pt"):
        save(tmp_path / name, {"w": torch.tensor([1e9])})
    return tmp_path


@pytest.mark.parametrize(
    ("update_based", "bound", "expected"),
    [
        (False, None, ["checkpoint12.pt", "checkpoint11.pt", "checkpoint10.pt"]),
        (False, 9, ["checkpoint9.pt", "checkpoint8.pt", "checkpoint7.pt"]),
        (True, None, ["checkpoint_12_1200.pt", "checkpoint_11_1100.pt", "checkpoint_10_1000.pt"]),
        (True, 1050, ["checkpoint_10_1000.pt", "checkpoint_9_900.pt", "checkpoint_8_800.pt"]),
    ],
)
def test_last_checkpoints_are_found_newest_first(update_based, bound, expected, run_folder):
    paths = select_checkpoints([str(run_folder)], 3, update_based, bound)
    assert paths == [str(run_folder / name) for name in expected]


def test_last_checkpoints_are_chosen_from_files_too(run_folder):
    files = [str(run_folder / "checkpoint{}.pt".format(number)) for number in (2, 10, 9)]
    assert select_checkpoints(files, 2, False) == [files[1], files[2]]


def test_fewer_than_asked_is_an_error_that_names_them(run_folder, capsys):
    arguments = ["--inputs", str(run_folder), "--num-epoch-checkpoints", "5", "--checkpoint-upper-bound", "2"]
    assert script.main([*arguments, "--output", str(run_folder / "avg.pt")]) == 1
    message = capsys.readouterr().err
    assert "found 2 checkpoints named checkpointE.pt up to 2" in message and "5 are asked for" in message
    assert "checkpoint1.pt" in message and "checkpoint2.pt" in message
    assert not (run_folder / "avg.pt").exists()


def test_command_averages_and_leaves_no_temporary_file(run_folder, capsys):
    output = run_folder / "out" / "avg.pt"
    arguments = ["--inputs", str(run_folder), "--num-update-checkpoints", "4", "--output", str(output)]
    assert script.main(arguments) == 0
    assert load_checkpoint(output)["model"]["w"].item() == (12 + 11 + 10 + 9) / 4
    assert [path.name for path in output.parent.iterdir()] == ["avg.pt"]


def test_an_existing_output_is_kept_without_overwrite(run_folder, capsys):
    output = run_folder / "avg.pt"
    output.write_bytes(b"precious")
    arguments = ["--inputs", str(run_folder / "checkpoint1.pt"), "--output", str(output)]
    with pytest.raises(SystemExit):
        script.main(arguments)
    assert output.read_bytes() == b"precious"
    assert "--overwrite" in capsys.readouterr().err
    assert script.main([*arguments, "--overwrite"]) == 0
    assert load_checkpoint(output)["model"]["w"].item() == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--inputs", "."], "is a folder"),
        (["--inputs", "a.pt", "--checkpoint-upper-bound", "3"], "--checkpoint-upper-bound needs"),
        (["--inputs", ".", "--num-epoch-checkpoints", "1", "--num-update-checkpoints", "1"], "not allowed with"),
    ],
)
def test_contradictory_flags_are_errors(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        script.main([*arguments, "--output", str(tmp_path / "avg.pt")])
    assert message in capsys.readouterr().err


def test_a_missing_input_is_one_sentence(tmp_path, capsys):
    arguments = ["--inputs", str(tmp_path / "none.pt"), "--output", str(tmp_path / "avg.pt")]
    assert script.main(arguments) == 1
    assert "none.pt" in capsys.readouterr().err


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kind", ["exec", "system", "getattr", "load"])
def test_a_hostile_checkpoint_is_refused_and_nothing_runs(kind, zipped, tmp_path):
    victim = tmp_path / "victim"
    attack = {
        "exec": (exec, "open({!r}, 'w')".format(str(victim))),
        "system": (os.system, "touch {}".format(victim)),
        "getattr": (getattr, "text", "upper"),
        "load": (torch.load, str(victim)),
    }[kind]
    state = {"model": OrderedDict(w=torch.zeros(1)), "args": Hostile(*attack)}
    torch.save(state, str(tmp_path / "evil.pt"), _use_new_zipfile_serialization=zipped)
    for mmap in (False, True):
        # without torch's advice to switch the protection off
        with pytest.raises(pickle.UnpicklingError, match=r"evil.pt was refused: \S+ is not allowed in a checkpoint$"):
            load_checkpoint(tmp_path / "evil.pt", mmap=mmap)
    with pytest.raises(pickle.UnpicklingError):
        average_checkpoints([tmp_path / "evil.pt"])
    assert not victim.exists()


@pytest.mark.skipif(not has_native_allow_list(), reason="this torch has no allow-list of its own")
def test_plain_torch_load_stays_protected(tmp_path):
    import powernorm_fairseq  # noqa: F401  registers the allow-list, as --user-dir does

    torch.save({"args": argparse.Namespace(arch="a")}, str(tmp_path / "good.pt"))
    assert torch.load(str(tmp_path / "good.pt"))["args"].arch == "a"
    torch.save({"args": Hostile(exec, "pass")}, str(tmp_path / "evil.pt"))
    with pytest.raises(pickle.UnpicklingError):
        torch.load(str(tmp_path / "evil.pt"))


@pytest.mark.parametrize("zipped", [True, False])
def test_what_fairseq_checkpoints_hold_is_read(zipped, tmp_path):
    omegaconf = pytest.importorskip("omegaconf")
    meters = pytest.importorskip("fairseq.logging.meters")
    meter = meters.AverageMeter()
    meter.update(numpy.float64(2.5))
    state = {
        "args": argparse.Namespace(arch="a", lr=[0.1]),
        "cfg": omegaconf.OmegaConf.create({"task": {"data": "bin", "lr": [0.1, None], "on": True}}),
        "model": OrderedDict(w=nn.Parameter(torch.ones(2)), h=torch.ones(2).half(), b=torch.ones(2).bfloat16()),
        "numbers": [numpy.float64(1.5), numpy.float32(0.5), numpy.int64(3), numpy.bool_(True), numpy.arange(3)],
        "meters": OrderedDict(loss=meter),
        "dtype": torch.float16,
        "device": torch.device("cpu"),
        "size": torch.Size([2, 3]),
    }
    torch.save(state, str(tmp_path / "a.pt"), _use_new_zipfile_serialization=zipped)
    for mmap in (False, True):
        read = load_checkpoint(tmp_path / "a.pt", mmap=mmap)
        assert read["args"] == state["args"]
        assert read["cfg"] == state["cfg"]
        assert [value.tolist() for value in read["numbers"]] == [1.5, 0.5, 3, True, [0, 1, 2]]
        assert read["meters"]["loss"].avg == 2.5
        assert (read["dtype"], read["device"], read["size"]) == (state["dtype"], state["device"], state["size"])
        assert all(torch.equal(read["model"][name], value) for name, value in state["model"].items())


def test_meters_of_old_fairseq_are_read(tmp_path):
    meters = pytest.importorskip("fairseq.logging.meters")
    torch.save({"meter": meters.StopwatchMeter()}, str(tmp_path / "new.pt"), _use_new_zipfile_serialization=False)
    data = (tmp_path / "new.pt").read_bytes()
    (tmp_path / "old.pt").write_bytes(data.replace(b"fairseq.logging.meters\n", b"fairseq.meters\n"))
    assert data != (tmp_path / "old.pt").read_bytes()
    assert type(load_checkpoint(tmp_path / "old.pt")["meter"]) is meters.StopwatchMeter


MEASURE = """
import sys
from powernorm_fairseq.safe_load import fairseq_globals
from powernorm_fairseq.experiments.average import main

fairseq_globals()  # loads fairseq, whose memory is not the averaging's

def peak():  # not getrusage, which starts from the peak of the process that started this one
    with open("/proc/self/status") as file:
        return [int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM:")][0]

before = peak()
assert main(["--inputs", *sys.argv[2:], "--output", sys.argv[1]]) == 0
print(peak() - before)
"""


@pytest.mark.skipif(not has_native_allow_list(), reason="this torch cannot map checkpoints into memory")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured through /proc")
def test_memory_is_about_two_models_however_many_there_are(tmp_path):
    size = 128  # MB
    model = {"w{}".format(number): torch.zeros(1024, 1024) for number in range(size // 4)}
    paths = [save(tmp_path / "a{}.pt".format(number), model) for number in range(4)]
    peaks = []
    for count in (2, 4):
        command = [sys.executable, "-c", MEASURE, str(tmp_path / "avg{}.pt".format(count))]
        result = subprocess.run([*command, *paths[:count]], stdout=subprocess.PIPE, check=True)
        peaks.append(float(result.stdout.split()[-1]))
    assert size < max(peaks) < 2.3 * size
    assert abs(peaks[1] - peaks[0]) < 0.2 * size
