"""The benchmarks, on small problems: their tables, their JSON, and what they compute from timings."""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import fold, interleave, multilinear_attention, norm_stats, norms, sync, training
from powernorm_fairseq.norms import build_norm, norm_names

ROOT = Path(__file__).resolve().parents[2]
FIXED = {**os.environ, **interleave.ALLOCATOR}  # else a program starts twice


def run(program, *flags):
    """The tables of a benchmark."""
    command = [sys.executable, str(ROOT / "benchmarks" / program), *map(str, flags)]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, env=FIXED).stdout.decode()


def test_the_allocator_is_fixed_before_anything_is_measured(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from benchmarks import interleave\n"
        "interleave.fix_allocator()\n"
        "print(*sys.argv[1:], *(os.environ[name] for name in interleave.ALLOCATOR))\n"
    )
    loose = {name: value for name, value in os.environ.items() if name not in interleave.ALLOCATOR}
    command = [sys.executable, str(program), "--flag"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True, env=loose)
    assert done.stdout.decode().split() == ["--flag", "10000000000", "33554432"]
    assert b"started again with MALLOC_TRIM_THRESHOLD_=10000000000 MALLOC_MMAP_THRESHOLD_=33554432" in done.stderr


def test_norms_gives_tables_and_json(tmp_path, capsys):
    file = tmp_path / "norms.json"
    text = run("norms.py", "--quick", "--json", file)
    assert "`MALLOC_TRIM_THRESHOLD_=10000000000 MALLOC_MMAP_THRESHOLD_=33554432`" in text
    assert "| goal | measured | met |" in text and "| nn.LayerNorm | - | torch |" in text
    assert "**60x16/4, float32" in text and "**60x16/4, bfloat16" in text
    facts = json.loads(file.read_text())
    for dtype in ("float32", "bfloat16"):
        rows = [row for row in facts["results"] if row["dtype"] == dtype]
        measured = {(row["norm"], row["layer_scale"]) for row in rows}
        assert {name for name, _ in measured} >= {*norm_names(), "nn.LayerNorm", "nn.BatchNorm1d"}
        assert {("pn", "head"), ("bn", "none"), ("bn", "layer"), ("pnv", "none"), ("pnv", "head")} <= measured
        for row in rows:
            assert all(row["ms"][part] > 0 for part in norms.PARTS) and row["saved_bytes"] > 0
            low, high = row["ratios"]["training"][1:]
            assert 0 < low <= high
    fused = next(goal for goal in facts["goals"] if goal["goal"].startswith("training, pn to nn.LayerNorm, smaller"))
    fused_rows = [r for r in facts["results"] if (r["norm"], r["kernel"]) == ("pn", facts["kernels"][0])]
    rows = [r for r in fused_rows if r["dtype"] == "float32"]
    ratios = {r["mask"]: r["ratios"]["training"][0] for r in rows}
    expected = {"pn 16, mask, 1 thr.": ratios["yes"], "pn 16, no mask, 1 thr.": ratios["no"]}
    assert fused["measured"] == pytest.approx(expected)
    assert fused["met"] == (max(ratios.values()) <= 1.05)
    assert norms.main(["--from-json", str(file)]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.slow
def test_training_gives_a_table_and_json(tmp_path):
    file = tmp_path / "training.json"
    text = run("training.py", "--quick", "--norms", "pn", "--threads", 1, "--json", file)
    assert "| encoder norm | tokens/s | step time to ln | peak memory | to ln |" in text
    assert re.search(r"^\| pn \| [\d,]+ \| [\d.]+ \([\d.]+-[\d.]+\) \| \d+ MiB \| [\d.]+ \|$", text, re.MULTILINE)
    facts = json.loads(file.read_text())
    assert [(row["size"], row["norm"]) for row in facts["results"]] == [("demo", "ln"), ("demo", "pn")]
    for row in facts["results"]:
        assert row["tokens_per_second"] > 0 and row["peak_bytes"] > 2**26 and row["ratio"][0] > 0
    assert facts["results"][0]["ratio"] == [1, 1, 1]


@pytest.mark.slow
def test_training_measures_the_language_model(tmp_path):
    file = tmp_path / "training.json"
    text = run("training.py", "--quick", "--sizes", "ptb,ptb-bf16", "--norms", "pn", "--threads", 1, "--json", file)
    assert "**Model `ptb`, 1 threads**" in text and "**Model `ptb-bf16`, 1 threads**" in text
    rows = json.loads(file.read_text())["results"]
    assert [(row["size"], row["norm"]) for row in rows] == [
        (size, norm) for size in ("ptb", "ptb-bf16") for norm in ("ln", "pn")
    ]
    assert all(row["tokens_per_second"] > 0 for row in rows)


def test_fold_gives_a_table_and_json(tmp_path, capsys):
    file = tmp_path / "fold.json"
    assert fold.main(["--quick", "--norms", "bn,pn", "--json", str(file)]) == 0
    assert "| encoder norm | as trained, 1 thr. | folded |" in capsys.readouterr().out
    rows = json.loads(file.read_text())["results"]
    kinds = [(row["norm"], row["folded"]) for row in rows]
    assert kinds == [("ln", False), ("bn", False), ("bn", True), ("pn", False), ("pn", True)]
    assert all(row["ms"] > 0 and row["ratio"][0] > 0 for row in rows)


@pytest.mark.parametrize(
    "flags, sentence",
    [
        (["--norms", "ln,xn"], "'xn' is no norm; choose from ln, rms,"),
        (["--shapes", "512"], "'512' is no shape; write one like 4096x512/4"),
        (["--shapes", "50x16/4"], "'50x16/4': the positions must be a multiple of 20"),
        (["--dtypes", "int8"], "'int8' is no type; choose from float32, bfloat16"),
        (["--threads", "0"], "'0': give numbers greater than 0 with commas between"),
        (["--rounds", "none"], "'none' is no number greater than 0"),
        (["--json", str(ROOT / "README.md")], "README.md exists; remove it or name another file"),
        (["--json", "/no/such/file"], "there is no folder /no/such"),
        (["--from-json", "/no/such/file"], "there is no file /no/such/file"),
    ],
)
def test_bad_arguments_are_named(flags, sentence, capsys):
    with pytest.raises(SystemExit) as stop:
        norms.main(flags)
    assert stop.value.code == 2 and sentence in capsys.readouterr().err


def test_rounds_are_interleaved_and_the_warm_up_does_not_count():
    calls = []

    def candidate(name, seconds):
        def once():
            calls.append(name)
            return {"part": seconds * len(calls)}

        return once

    names = ["a", "b", "c"]
    times = interleave.interleave({name: candidate(name, 1.0) for name in names}, rounds=20, warmup=2)
    rounds = [calls[start : start + 3] for start in range(0, len(calls), 3)]
    assert len(rounds) == 22 and all(sorted(turn) == names for turn in rounds)
    assert len({tuple(turn) for turn in rounds}) > 3  # the order changes
    assert all(len(times[name]["part"]) == 20 and min(times[name]["part"]) > 6 for name in names)


def test_a_ratio_is_that_of_medians_with_quartiles_within_rounds():
    ratio = interleave.compare([2.0, 4.0, 9.0, 6.0, 10.0], [1.0, 2.0, 3.0, 4.0, 5.0])
    assert ratio == (6 / 3, 2.0, 2.0)
    assert interleave.compare([3.0], [2.0]) == (1.5, 1.5, 1.5)


def test_goals_are_met_missed_or_not_measured():
    goals = [interleave.goal("a", 1.0, {"x": 0.9, "y": 1.0}), interleave.goal("b", 1.0, {"x": 0.9, "y": 1.01})]
    goals += [interleave.goal("c", 1.0, {"x": None})]
    assert [goal["met"] for goal in goals] == [True, False, None]
    lines = interleave.goals_table(goals).splitlines()[2:]
    assert lines[0] == "| a: <= 1 | 0.90 (x), 1.00 (y) | yes |"
    assert lines[1].endswith("| no |") and lines[2] == "| c: <= 1 | - | not measured |"


def test_the_goal_of_a_training_step():
    rows = [{"size": size, "norm": "pn", "ratio": [ratio] * 3} for size, ratio in (("small", 1.01), ("demo", 9.0))]
    (goal,) = training.goals({"results": rows})
    assert goal["met"] and goal["measured"] == {"model `small`": 1.01}
    assert training.goals({"results": rows[1:]}) == []


@pytest.mark.parametrize("text", norms.SHAPES.split(","))
def test_the_mask_is_realistic(text):
    """A tenth to a fifth of the positions is padding, at the start of the sentences, in a transposed view."""
    shape = norms.Shape.parse(text)
    mask = shape.padding_mask()
    assert mask.numel() == shape.positions and not mask.is_contiguous() and mask.t().is_contiguous()
    assert 0.1 < mask.float().mean() < 0.2
    assert not mask[-1].any() and (mask[:-1].int() >= mask[1:].int()).all() and not mask.all(1).any()


def test_saved_counts_each_storage_once_and_no_parameter():
    x = torch.randn(10, 8, requires_grad=True)

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, x.view(-1), weight)
            ctx.aside = argparse.Namespace(parts=[torch.zeros(10), x])  # kept all the same
            return x * weight

        @staticmethod
        def backward(ctx, grad):
            return grad, None

    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.ones(8))
    module.forward = lambda x: Keeps.apply(x, module.weight)
    assert norms.saved_bytes(norms.Candidate("", "", "", module, (x,))) == 4 * (80 + 10)
    layer_norm = norms.Candidate("", "", "", torch.nn.LayerNorm(8), (x,))
    assert norms.saved_bytes(layer_norm) == 4 * (80 + 10 + 10)  # the input, a mean and a divisor for each row


def test_the_norms_are_trained_and_evaluated():
    """What is timed are training steps and evaluations: statistics move once in each training step."""
    norm = build_norm("pn", 16)
    x = torch.randn(4, 5, 16, requires_grad=True)
    run = norms.runner(norms.Candidate("pn", "none", "eager", norm, (x, None)), interleave.stopwatch(), steps=1)
    parts = run()
    assert set(parts) == set(norms.PARTS) and norm.num_updates == 1 and norm.nu.abs().max() > 0
    norms.runner(norms.Candidate("pn", "none", "eager", norm, (x, None)), interleave.stopwatch(), steps=3)()
    assert norm.num_updates == 4
    assert parts["training"] == pytest.approx(parts["forward"] + parts["backward"])
    assert not norm.training


@pytest.mark.parametrize("program", [multilinear_attention, norm_stats, sync])
def test_small_benchmarks_give_a_table_and_json(program, tmp_path, capsys):
    file = tmp_path / "numbers.json"
    flags = [] if program is multilinear_attention else ["--norms", "pn"]
    assert program.main(["--quick", *flags, "--json", str(file)]) == 0
    text = capsys.readouterr().out
    assert "cores (load" in text and re.search(r"^\| (pn|8) \| ", text, re.MULTILINE)
    assert program.main(["--from-json", str(file)]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize("program", [norms, training, fold, multilinear_attention, norm_stats, sync])
def test_help(program, capsys):
    with pytest.raises(SystemExit) as stop:
        program.main(["--help"])
    assert stop.value.code == 0 and "--from-json FILE" in capsys.readouterr().out
