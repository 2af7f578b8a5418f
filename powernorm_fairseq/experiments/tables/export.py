"""Copies results into a folder that can be published: no checkpoints, no text of the data set, no trace of the machine.

What is copied is enough to write the reports again: ``reproduce.py TABLE --report-only --dir FOLDER``.
"""

import json
import re
import socket
from pathlib import Path
from typing import Any, Dict, List

from powernorm_fairseq import files
from powernorm_fairseq.console import UserError
from powernorm_fairseq.experiments.tables.compare import COMPARISONS, HASH, translations_hash
from powernorm_fairseq.experiments.tables.run import CHECKPOINTS, RESULT
from powernorm_fairseq.files import read_json
from powernorm_fairseq.training_log import NUMBERS

# Of a run's environment; the rest could name the machine.
ENVIRONMENT = ("time", "platform", "python", "packages", "processor", "cores", "gpus", "processes", "norm_kernels")
VARIABLES = re.compile(r"(OMP|MKL)_NUM_THREADS|MALLOC_\w+|POWERNORM_KERNEL|LD_PRELOAD")  # paths: the name alone
PATH = re.compile(r"(?<![\w.$])(?:~|(?:/[\w.+@%-]+)+)/(?P<name>[\w.+@%-]+)")
START = re.compile(r"^train: \d{4}-")  # train.sh's own line, at each start of a training


def portable(text: str) -> str:
    """Text without folders of this machine: files of the checkout by their place in it, others by their name."""
    inside = re.sub(r"(?<![\w.$])(?:/[\w.+@%-]+)+/((?:scripts|data_prep|powernorm_fairseq)\b)", r"\1", text)
    return PATH.sub(lambda match: match.group("name"), inside)


def short_platform(platform: str) -> str:
    """System and architecture, without the version of the kernel: ``Linux x86_64``."""
    return re.sub(r"^(\w+)-.*?-(x86_64|aarch64|arm64).*$", r"\1 \2", platform)


def public_variables(environment: Dict[str, Any]) -> Dict[str, str]:
    """The environment variables that speed depends on."""
    variables = environment.get("variables", {})
    return {name: portable(text) for name, text in variables.items() if VARIABLES.fullmatch(name)}


def portable_result(result: Dict[str, Any]) -> Dict[str, Any]:
    """A result without what names the machine."""
    environment = {name: result["environment"][name] for name in ENVIRONMENT if name in result["environment"]}
    environment["python"] = str(environment.get("python", "")).split(" ")[0]
    environment["platform"] = short_platform(str(environment.get("platform", "")))
    environment["gpus"] = [re.sub(r" \(UUID.*", "", gpu) for gpu in environment.get("gpus", [])]
    environment["processes"] = {"all": environment.get("processes", {}).get("all", 1)}
    environment["variables"] = public_variables(result["environment"])
    clean = {**result, "environment": environment}
    return json.loads(portable(json.dumps(clean)))


def short_log(text: str) -> str:
    """Of a log, the numbers and the starts: neither paths nor anything that repeats the configuration."""
    lines = [line if NUMBERS.search(line) else START.match(line) and portable(line) for line in text.splitlines()]
    return "\n".join(line for line in lines if line) + "\n"


def export(folder: Path, target: Path) -> List[str]:
    """Copies all finished runs of a dataset's folder; returns their names.

    Args:
        folder: with a folder for each run.
        target: the same, for publication; a run that is in it already is replaced, and all others stay as they are.
    """
    if target.resolve() == folder.resolve():
        raise UserError(f"--export {target} is the folder of the runs itself; choose another")
    found = {file.parent: read_json(file) for file in sorted(folder.glob(f"*/{RESULT}"))}
    for run, result in found.items():
        if result:
            _export_run(run, target / run.name, result)
    if not any(found.values()):
        raise UserError(f"{folder} has no finished run to export")
    comparisons = {**(read_json(target / COMPARISONS) or {}), **(read_json(folder / COMPARISONS) or {})}
    if comparisons:
        files.write(target / COMPARISONS, comparisons)
    traces = [re.escape(str(Path.home())) + "/", rf"\b{re.escape(socket.gethostname())}\b"]
    for file in target.rglob("*"):
        text = file.read_text(encoding="utf-8") if file.suffix in (".json", ".log") else ""
        for trace in traces:
            if re.search(trace, text):
                raise UserError(f"{file} still names this machine ({trace}); it is not fit to be published")
    return [run.name for run, result in found.items() if result]


def _export_run(run: Path, target: Path, result: Dict[str, Any]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    hashed = translations_hash(run)
    files.write(target / RESULT, {**portable_result(result), **({HASH: hashed} if hashed else {})})
    for log in (run / CHECKPOINTS / "train.log", run / "train.log"):  # of the second one it was exported before
        if log.exists():
            files.write(target / "train.log", short_log(log.read_text(encoding="utf-8", errors="replace")))
            break
