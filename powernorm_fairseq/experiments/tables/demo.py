"""Trains `powernorm_tiny` with LN and with PN on a corpus from a small grammar, and prints their BLEU.

Each stage writes aside and renames, so a run that was stopped goes on where it was; training resumes from the last
checkpoint. Nothing is downloaded.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from powernorm_fairseq.fairseq_fixes.damaged_checkpoint import mend_last_checkpoint
from powernorm_fairseq.norms import norm_names

TOP = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
PAIRS, BPE_TOKENS = 8000, 500

TRAINING = (
    "--source-lang de --target-lang en --arch powernorm_tiny --share-all-embeddings --dropout 0.1 "
    "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer adam --adam-betas (0.9,0.98) "
    "--lr 0.005 --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7 --max-tokens 2048 --required-batch-size-multiple 1 "
    "--seed 1 --num-workers 0 --save-interval-updates 100 --keep-interval-updates 1 --log-format json --log-interval 10"
).split()

NEXT = """Where to go next, from this folder:
  your own text:   data_prep/prepare.sh text --out data/mine --train A.de A.en --valid B.de B.en --test C.de C.en
                   scripts/train.sh --preset multi30k --norm pn --data data/mine/bin --save-dir checkpoints/mine
  another norm:    scripts/demo.py --norms bn,rms
  paper's table:   scripts/reproduce.py table1 --dataset multi30k --jobs 2 --dry-run
  the rest:        README.md, and docs/ for one subject each"""


class DemoError(Exception):
    """A failure that one sentence explains."""


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def run(command: Sequence[str], log: Path) -> None:
    """Runs a command with its output in a file, and shows the end of that file if it fails."""
    with open(str(log), "wb") as file:
        status = subprocess.run([str(part) for part in command], stdout=file, stderr=file, cwd=str(TOP)).returncode
    if status != 0:
        say("\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]))
        raise DemoError(f"{Path(command[0]).name} failed, as shown above; everything it said is in {log}")


def prepare(args: argparse.Namespace) -> None:
    """Makes ``text``, ``bpe`` and ``bin``, as far as they are missing."""
    say("1/3 corpus, BPE and fairseq's data ...")
    settings = ["--pairs", str(args.pairs), "--bpe-tokens", str(args.bpe_tokens), "--out", str(args.dir)]
    run([sys.executable, "-m", "data_prep", "demo", *settings], args.dir / "data.log")


def train_command(args: argparse.Namespace, norm: str, folder: Path) -> List[str]:
    """The call of fairseq-train."""
    command = [str(BIN / "fairseq-train"), str(args.dir / "bin"), "--user-dir", str(TOP / "powernorm_fairseq")]
    command += [*TRAINING, "--warmup-updates", str(args.warmup_updates), "--max-epoch", str(args.epochs)]
    command += ["--encoder-norm", norm, "--save-dir", str(folder), "--keep-last-epochs", str(args.average)]
    return command if args.gpu else [*command, "--cpu"]


class Training:
    """A fairseq-train process and what its log says."""

    def __init__(self, args: argparse.Namespace, norm: str, threads: int) -> None:
        self.norm = norm
        self.epochs = args.epochs
        self.folder = args.dir / norm
        self.folder.mkdir(exist_ok=True)
        mend_last_checkpoint(self.folder, say)
        self.log = self.folder / "train.log"
        command = train_command(args, norm, self.folder)
        (self.folder / "command.txt").write_text(" ".join(command) + "\n")
        self.position = self.log.stat().st_size if self.log.exists() else 0
        self.state: Dict[str, Any] = {}
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore"}
        self.file = open(str(self.log), "ab")
        self.process = subprocess.Popen(command, stdout=self.file, stderr=self.file, env=environment, cwd=str(TOP))

    def update(self) -> None:
        """Reads what the log has new: fairseq writes its numbers as JSON."""
        with open(str(self.log), "rb") as file:
            file.seek(self.position)
            new = file.read()
        complete = new[: new.rfind(b"\n") + 1]
        self.position += len(complete)
        for line in complete.decode("utf-8", "replace").splitlines():
            start = line.find("{")
            if start >= 0 and line.endswith("}"):
                try:
                    self.state.update(json.loads(line[start:]))
                except ValueError:
                    continue

    def progress(self) -> str:
        """In one line: where the training is."""
        if not self.state:
            return f"{self.norm}: starting"
        update = self.state.get("num_updates") or self.state.get("train_num_updates") or "0"
        loss = self.state.get("loss") or self.state.get("train_loss") or "?"
        text = f"{self.norm}: epoch {self.state.get('epoch', 1)}/{self.epochs}, update {update}, loss {loss}"
        return f"{text}, valid {self.state['valid_loss']}" if "valid_loss" in self.state else text

    def stop(self) -> None:
        """Ends the process, if it runs."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        self.file.close()


def show(text: str, last: bool = False) -> None:
    """A line of progress that replaces the one before on a terminal."""
    if sys.stderr.isatty():
        print("\r\x1b[K" + text, end="\n" if last else "", file=sys.stderr, flush=True)
    else:
        say(text)


def train(args: argparse.Namespace, norms: Sequence[str]) -> None:
    """Trains one model for each norm, side by side where there are cores for it."""
    cores = os.cpu_count() or 1
    lanes = max(1, min(len(norms), cores))
    waiting, running = list(norms), []  # type: List[str], List[Training]
    pause = 1.0 if sys.stderr.isatty() else 15.0
    shown = 0.0
    try:
        while waiting or running:
            while waiting and len(running) < lanes:
                running.append(Training(args, waiting.pop(0), max(1, cores // lanes)))
            time.sleep(0.5)
            for training in running:
                training.update()
            if time.monotonic() - shown >= pause:
                show("   ".join(training.progress() for training in running))
                shown = time.monotonic()
            for training in [training for training in running if training.process.poll() is not None]:
                training.update()
                show(f"{training.progress()}: training ended", last=True)
                training.stop()
                running.remove(training)
                if training.process.returncode != 0:
                    say("\n".join(training.log.read_text(errors="replace").splitlines()[-20:]))
                    raise DemoError(f"fairseq-train failed, as shown above; everything it said is in {training.log}")
    finally:
        for training in running:
            training.stop()


def evaluate(args: argparse.Namespace, norm: str) -> Dict[str, Any]:
    """Averages the last checkpoints, decodes the test set and returns its scores."""
    folder = args.dir / norm
    averaged = folder / "averaged.pt"
    if not averaged.exists():
        inputs = ["--inputs", folder, "--num-epoch-checkpoints", str(args.average), "--output", averaged]
        run([sys.executable, "-m", "powernorm_fairseq.experiments.average", *inputs], folder / "average.log")
    out = args.dir / norm / "test"
    command = ["--data", args.dir / "bin", "--checkpoint", averaged, "--preset", "demo", "--out", out]
    flags = [] if args.gpu else ["--", "--cpu"]
    run([sys.executable, "-m", "powernorm_fairseq.experiments.evaluate", *command, *flags], folder / "evaluate.log")
    return json.loads((out / "result.json").read_text(encoding="utf-8"))


def valid_loss(folder: Path) -> Optional[str]:
    """The validation loss that the log names last."""
    values = []
    for line in (folder / "train.log").read_text(encoding="utf-8", errors="replace").splitlines():
        start = line.find('{"epoch"')
        if start >= 0 and '"valid_loss"' in line:
            values.append(json.loads(line[start:])["valid_loss"])
    return values[-1] if values else None


def table(rows: Sequence[Tuple[str, ...]]) -> str:
    """Rows as a Markdown table."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "\n".join(lines)


def report(args: argparse.Namespace, results: Dict[str, Dict[str, Any]]) -> str:
    """The table of results and where everything lies."""
    rows: List[Tuple[str, ...]] = [("encoder norm", "BLEU", "sacreBLEU", "valid loss")]
    for norm, result in results.items():
        scores = [f"{result['scores'][metric]['score']:.2f}" for metric in ("tokenized", "sacrebleu")]
        rows.append((norm, *scores, str(valid_loss(args.dir / norm))))
    return (
        f"{table(rows)}\n\n"
        f"{args.pairs} training pairs, {args.epochs} epochs, average of the last {args.average} checkpoints, beam 5, "
        "one seed: too small to rank norms.\n"
        f"corpus:      {args.dir}/text, with BPE {args.dir}/bpe, binarised {args.dir}/bin\n"
        + "".join(
            f"{norm + ':':<12} {args.dir}/{norm} (command.txt, train.log, checkpoints, averaged.pt, test/hyp.txt)\n"
            for norm in results
        )
    )


def check_settings(args: argparse.Namespace) -> None:
    """Refuses a folder that another kind of demo left behind."""
    names = ("pairs", "epochs", "average", "bpe_tokens", "warmup_updates")
    settings = {name: getattr(args, name) for name in names}
    file = args.dir / "settings.json"
    if file.exists() and json.loads(file.read_text()) != settings:
        raise DemoError(f"{args.dir} holds a demo with other settings ({file}); remove it or choose another --dir")
    args.dir.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(file.name + ".part")
    aside.write_text(json.dumps(settings, indent=2) + "\n")
    aside.replace(file)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--dir", type=Path, default=Path("demo"), help="where everything is written")
    parser.add_argument("--norms", default="ln,pn", help="encoder norms to train, separated by commas")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="sentence pairs to train on")
    parser.add_argument("--epochs", type=int, default=6, help="passes over the pairs")
    parser.add_argument("--average", type=int, default=3, help="checkpoints to average")
    parser.add_argument("--bpe-tokens", type=int, default=BPE_TOKENS, help="BPE merges")
    parser.add_argument("--warmup-updates", type=int, default=200, help="warm-up of the learning rate and of PN")
    parser.add_argument("--gpu", action="store_true", help="train and decode on GPUs")
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs what is missing of the demo; returns the exit status."""
    args = build_parser().parse_args(argv)
    args.dir = args.dir.resolve()
    start = time.monotonic()
    try:
        norms = args.norms.split(",")
        for norm in norms:
            if norm not in norm_names():
                raise DemoError(f"--norms {norm} is not known; choose from {', '.join(norm_names())}")
        check_settings(args)
        prepare(args)
        untrained = [norm for norm in norms if not (args.dir / norm / "averaged.pt").exists()]
        say(f"2/3 training {', '.join(untrained)} ..." if untrained else "2/3 training: done before")
        train(args, untrained)
        say("3/3 averaging, decoding, scoring ...")
        results = {norm: evaluate(args, norm) for norm in norms}
    except DemoError as error:
        say(f"demo: {error}")
        return 1
    except KeyboardInterrupt:
        say("\ndemo: stopped; the same command goes on from here")
        return 130
    text = report(args, results)
    (args.dir / "results.md").write_text(text, encoding="utf-8")
    print(f"\n{text}\nfinished in {time.monotonic() - start:.0f} s; this table: {args.dir}/results.md\n\n{NEXT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
