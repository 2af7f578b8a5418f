"""Two real fairseq-train processes over gloo on the CPU."""

import json
import os
import random
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from powernorm_fairseq.safe_load import load_checkpoint
from tests.models.training import RECIPE, SMALL, USER_DIR

# No shuffling of batches: then two processes get the two halves of what one process gets.
FLAGS = (
    "--max-update 8 --max-epoch 1 --curriculum 1 --dropout 0 --required-batch-size-multiple 1 --log-format json "
    "--log-interval 1 --disable-validation --no-epoch-checkpoints"
).split()
TRAIN = str(Path(sys.executable).parent / "fairseq-train")
RIVALS = ("rbn", "un", "prepbn")  # tests/norms/test_sync.py has them in the suite, without fairseq


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def train(data, folder, processes, batch, *flags):
    """Runs the processes of one training; returns the losses that the first one logged, and its checkpoint."""
    recipe = " ".join(RECIPE).replace("--max-tokens 200", f"--batch-size {batch}").split()
    command = [TRAIN, str(data), "--user-dir", USER_DIR, "--arch", "powernorm_tiny", *SMALL, *recipe, *FLAGS, *flags]
    distributed = (
        f"--distributed-backend gloo --distributed-world-size {processes} --distributed-no-spawn --device-id 0 "
        f"--distributed-init-method tcp://127.0.0.1:{free_port()}"
    ).split()
    running = []
    for rank in range(processes):
        own = [*command, "--save-dir", str(folder)]
        own += [*distributed, "--distributed-rank", str(rank)] if processes > 1 else []
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        running.append(
            subprocess.Popen(own, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    outputs = [process.communicate(timeout=300)[0] for process in running]
    for process, output in zip(running, outputs):
        assert process.returncode == 0, output
    logged = re.findall(r"\| (\{\"epoch\": 1, \"update\".*\})", outputs[0])
    losses = [float(json.loads(line)["loss"]) for line in logged if '"loss"' in line]
    return losses, load_checkpoint(folder / "checkpoint_last.pt")["model"]


@pytest.fixture(scope="module")
def even_data(tmp_path_factory):
    """128 pairs, so that batches of 8 and 16 divide them."""
    folder = tmp_path_factory.mktemp("even")
    generator = random.Random(2)
    for split in ("train", "valid"):
        sentences = [[f"w{generator.randrange(40)}" for _ in range(generator.randint(1, 12))] for _ in range(128)]
        (folder / f"{split}.de").write_text("".join(" ".join(words) + "\n" for words in sentences))
        (folder / f"{split}.en").write_text("".join(" ".join(words[::-1]) + "\n" for words in sentences))
    preprocess = str(Path(sys.executable).parent / "fairseq-preprocess")
    flags = f"-s de -t en --joined-dictionary --trainpref {folder}/train --validpref {folder}/valid"
    subprocess.run([preprocess, *flags.split(), "--destdir", str(folder / "bin")], check=True, capture_output=True)
    return folder / "bin"


@pytest.mark.parametrize("name", ["bn", "pn", *(pytest.param(name, marks=pytest.mark.slow) for name in RIVALS)])
def test_two_processes_train_as_one_with_twice_the_batch(even_data, tmp_path, name):
    """With legacy_ddp: fairseq's pytorch_ddp asks for a GPU (tests/norms/test_sync.py has torch's DDP itself)."""
    flags = ["--encoder-norm", name, "--sync-norm", "--ddp-backend", "legacy_ddp"]
    if name == "rbn":
        flags += ["--rbn-penalty-mean", "3"]
    expected, whole = train(even_data, tmp_path / "one", 1, 16, *flags)
    losses, shared = train(even_data, tmp_path / "two", 2, 8, *flags)
    assert len(expected) == 8
    assert losses == pytest.approx(expected, abs=0.002)
    for key, value in whole.items():
        if key.endswith(("running_psi2", "running_mean", "running_var", "nu")):
            torch.testing.assert_close(shared[key], value, rtol=1e-3, atol=1e-4)
        elif key.endswith("num_updates"):
            assert shared[key] == value == 8


@pytest.mark.skipif(torch.__version__ < "2.1", reason="this torch cannot multiply fp16 matrices on a CPU")
@pytest.mark.parametrize(
    "name, statistic", [("pn", "running_psi2"), pytest.param("rbn", "running_var", marks=pytest.mark.slow)]
)
def test_two_processes_with_fp16_accumulation_and_activation_checkpointing(even_data, tmp_path, name, statistic):
    flags = "--sync-norm --ddp-backend legacy_ddp --fp16 --update-freq 2 --checkpoint-activations"
    flags = ["--encoder-norm", name, *flags.split(), "--fp16-init-scale", "8", "--max-update", "4"]
    expected, whole = train(even_data, tmp_path / "one", 1, 16, *flags)
    losses, shared = train(even_data, tmp_path / "two", 2, 8, *flags)
    assert len(expected) == 4 and losses == pytest.approx(expected, abs=0.01)
    key = f"encoder.layer_norm.{statistic}"
    torch.testing.assert_close(shared[key], whole[key], rtol=1e-2, atol=1e-3)
    assert shared["encoder.layer_norm.num_updates"] == whole["encoder.layer_norm.num_updates"] == 8


def test_without_sync_the_checkpoint_is_the_mean_of_the_processes(even_data, tmp_path):
    """At a learning rate of zero, psi of the two processes can be told from that of single processes."""
    flags = ["--encoder-norm", "pn", "--ddp-backend", "legacy_ddp", "--lr", "1e-30", "--max-update", "1"]
    _, shared = train(even_data, tmp_path / "two", 2, 8, *flags)
    _, first = train(even_data, tmp_path / "first", 1, 8, *flags)
    _, both = train(even_data, tmp_path / "both", 1, 8, *flags, "--max-update", "2", "--norm-warmup-updates", "2")
    key = "encoder.layers.0.self_attn_layer_norm.running_psi2"
    # In the warm-up psi^2 is the plain average of the batches: of the first alone, or of the first two.
    second = 2 * both[key] - first[key]
    torch.testing.assert_close(shared[key], (first[key] + second) / 2, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(shared[key], first[key])
    assert shared[key.replace("running_psi2", "num_updates")] == 1
