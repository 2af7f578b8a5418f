"""Half precision from the command line and from hydra, on a CPU."""

import pytest
import torch

pytest.importorskip("fairseq")

from powernorm_fairseq.safe_load import load_checkpoint
from tests.fairseq_fixes.commands import ROOT, call, program, train, train_words


def has_precision(folder, dtype):
    """Whether the weights are numbers of this kind; fairseq saves them as float32."""
    weight = load_checkpoint(folder / "checkpoint_last.pt")["model"]["encoder.layers.0.fc1.weight"]
    return torch.equal(weight, weight.to(dtype).float())


@pytest.mark.parametrize("flag", ["--bf16", "--memory-efficient-bf16"])
def test_bfloat16_from_the_command_line(flag, toy_data, tmp_path):
    output = train(toy_data, tmp_path, flag, "--max-update", 5)
    assert "'tpu': False" in output and has_precision(tmp_path, torch.bfloat16)


@pytest.mark.parametrize("setting", ["bf16", pytest.param("memory_efficient_bf16", marks=pytest.mark.slow)])
def test_bfloat16_from_hydra(setting, toy_data, tmp_path):
    command = [*program("fairseq-hydra-train"), "--config-dir", ROOT / "configs", "--config-name", "demo"]
    command += ["norm=pn", f"task.data={toy_data}", f"checkpoint.save_dir={tmp_path}", "optimization.max_update=3"]
    command += ["common.cpu=true", f"common.{setting}=true"]
    code, output = call(command)
    assert code == 0, output[-3000:]
    assert has_precision(tmp_path, torch.bfloat16)


@pytest.mark.parametrize(
    "flags, sentence",
    [
        (["--fp16"], "this training is on a CPU; there use --bf16, or no flag for full precision"),
        (["--fp16", "--bf16"], "--fp16 and --bf16 exclude each other, and a TPU has no --fp16; choose one"),
    ],
)
def test_what_cannot_be_gets_a_sentence(flags, sentence, toy_data, tmp_path):
    code, output = call([*program("fairseq-train"), *train_words(toy_data, tmp_path, *flags, "--max-update", 1)])
    assert code != 0 and sentence in output.strip().splitlines()[-1], output[-3000:]


@pytest.mark.skipif(int(torch.__version__.split(".")[0]) < 2, reason="this torch has no float16 on a CPU")
@pytest.mark.slow
def test_float16_on_a_cpu_as_the_sentence_says(toy_data, tmp_path):
    train(toy_data, tmp_path / "half", "--fp16", "--fp16-no-flatten-grads", "--max-update", 3)
    assert has_precision(tmp_path / "half", torch.float16)
    train(toy_data, tmp_path / "full", "--max-update", 3)
    assert not has_precision(tmp_path / "full", torch.float16)
