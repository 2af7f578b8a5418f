"""fairseq's programs as a user calls them, on the toy corpus."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
USER_DIR = str(ROOT / "powernorm_fairseq")
MODEL = (
    "--arch powernorm_tiny --encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 32 "
    "--decoder-ffn-embed-dim 32 --encoder-layers 1 --decoder-layers 1 --share-all-embeddings"
).split()
RECIPE = (
    "--optimizer adam --lr 0.005 --lr-scheduler inverse_sqrt --warmup-updates 4 --max-tokens 200 --seed 7 --cpu "
    "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --num-workers 0 --log-format json "
    "--ddp-backend legacy_ddp"
).split()
# Runs fairseq-train and notes the sentences of each update.
NOTING = """
import json, os
from fairseq.trainer import Trainer
from fairseq_cli.train import cli_main

train_step = Trainer.train_step

def noted(self, samples, *args, **kwargs):
    ids = [int(number) for sample in samples if sample for number in sample["id"]]
    with open(os.environ["NOTES"], "a") as file:
        file.write(json.dumps(ids) + "\\n")
    return train_step(self, samples, *args, **kwargs)

Trainer.train_step = noted
cli_main()
"""


def environment(**variables):
    path = os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PYTHONPATH": path, **variables}


def program(name):
    return [str(Path(sys.executable).parent / name)]


def call(command, folder=ROOT, timeout=300, **variables):
    """Exit status and output."""
    done = subprocess.run(
        list(map(str, command)), cwd=str(folder), env=environment(**variables), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=timeout,
    )  # fmt: skip
    return done.returncode, done.stdout.decode(errors="replace")


def train_words(data, folder, *flags, model=MODEL):
    return [str(data), "--user-dir", USER_DIR, *model, *RECIPE, "--save-dir", str(folder), *map(str, flags)]


def train(data, folder, *flags, start=None, **variables):
    """A training that has to succeed; returns its output."""
    code, output = call([*(start or program("fairseq-train")), *train_words(data, folder, *flags)], **variables)
    assert code == 0, output[-3000:]
    return output


def train_together(data, folder, processes, *flags, notes=None):
    """A training of several processes over gloo; with ``notes`` each writes its sentences to a file there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = program("fairseq-train") if notes is None else [sys.executable, "-c", NOTING]
    running = []
    for rank in range(processes):
        words = [*start, *train_words(data, folder, *flags)]
        if processes > 1:
            words += ["--distributed-world-size", str(processes), "--distributed-no-spawn", "--device-id", "0"]
            words += ["--distributed-backend", "gloo", "--distributed-rank", str(rank)]
            words += ["--distributed-init-method", f"tcp://127.0.0.1:{port}"]
        env = environment(**({"NOTES": f"{notes}.{rank}"} if notes is not None else {}))
        running.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    outputs = [process.communicate(timeout=300)[0].decode(errors="replace") for process in running]
    for process, output in zip(running, outputs):
        assert process.returncode == 0, output[-3000:]
    if notes is None:
        return outputs
    files = [Path(f"{notes}.{rank}") for rank in range(processes)]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]
