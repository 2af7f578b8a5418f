"""plot.py: the numbers of each figure, what is drawn of them, and what is refused."""

import csv
import json
import sys

import pytest
import torch

pytest.importorskip("fairseq")
pytest.importorskip("matplotlib")

from powernorm_fairseq.diagnostics.storage import FILE, Layer, Writer
from powernorm_fairseq.figures import draw, plot, sources

NAMES = ["encoder.layers.0.self_attn_layer_norm", "encoder.layer_norm"]
QUANTILES = ("min", "q05", "q25", "q50", "q75", "q95", "max")


def make_run(folder, kind="BatchNorm", epoch=True, norm=None, **about):
    """A run of three records in which every number can be told from every other."""
    writer = Writer(folder / FILE, [Layer(name, kind, 4) for name in NAMES], interval=10, **about)
    for update in (10, 20, 30):
        numbers = {}
        for index, name in enumerate(NAMES):
            columns = ["dist_mu", "dist_var", "dist_psi2", "g_mu", "g_var", "g_psi2"]
            columns += [f"gamma_psi_{quantile}" for quantile in QUANTILES]
            columns += ["nu_max", "nu_norm"] if kind == "PowerNorm" else []
            numbers[name] = {column: update + 100 * index + i / 100 for i, column in enumerate(columns)}
        writer.write(update, "train", numbers, **({"epoch": update / 20} if epoch else {}))
    writer.write(30, "valid", {NAMES[0]: {"tid_mean": 1.0}})
    if norm:
        (folder / "experiment.json").write_text(json.dumps({"norm": norm}))
    return folder


def run_plot(figure, runs, out, *flags):
    """Exit status, and the rows of the CSV."""
    status = plot.main([figure, "--runs", *map(str, runs), "--out", str(out), *flags])
    file = out.with_name(out.name + ".csv")
    return status, list(csv.DictReader(open(file))) if file.exists() else []


def values(rows, **wanted):
    return [float(row["value"]) for row in rows if all(row[key] == value for key, value in wanted.items())]


@pytest.mark.parametrize("figure, first", [("forward-stats", 0), ("backward-stats", 3)])
def test_statistics_of_bn_against_pnv(tmp_path, figure, first):
    runs = [make_run(tmp_path / "a", norm="bn"), make_run(tmp_path / "b", "PowerNormV", norm="pnv")]
    status, rows = run_plot(figure, runs, tmp_path / "out", "--layer", "1")
    assert status == 0
    assert {row["run"] for row in rows} == {"BN", "PN-V"} and {row["layer"] for row in rows} == {NAMES[1]}
    mean, var, psi2 = ([100 + update + (first + i) / 100 for update in (10, 20, 30)] for i in range(3))
    for run, second, own in (("BN", var, "1"), ("PN-V", psi2, "0")):
        assert values(rows, run=run, panel="mean", own=own) == mean
        assert values(rows, run=run, panel="variance", own=own) == var
        assert values(rows, run=run, panel="divisor") == second
    assert [float(row["epoch"]) for row in rows[:3]] == [0.5, 1.0, 1.5]
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert b"</svg>" in (tmp_path / "out.svg").read_bytes()


def test_runs_of_reproduce_are_taken_as_they_are(tmp_path):
    for name in ("bn-seed1", "bn-seed2"):
        make_run(tmp_path / name / "checkpoints", norm="bn")
    status, rows = run_plot("forward-stats", [tmp_path / "bn-seed1", tmp_path / "bn-seed2"], tmp_path / "out")
    assert status == 0 and {row["run"] for row in rows} == {"BN (bn-seed1)", "BN (bn-seed2)"}


def test_bn_alone_has_the_two_panels_of_the_paper(tmp_path):
    _, rows = run_plot("forward-stats", [make_run(tmp_path / "a", epoch=False)], tmp_path / "out")
    assert {row["panel"] for row in rows} == {"mean", "variance"}
    assert [row["update"] for row in rows[:3]] == ["10", "20", "30"]  # no epochs in these records
    figure = draw.draw("forward-stats", [{**row, "value": float(row["value"]), "own": 1} for row in rows], [], False)
    mean, variance = figure.axes
    assert list(mean.lines[0].get_ydata()) == [10, 20, 30] and len(variance.lines) == 1
    assert (mean.get_xlabel(), mean.get_ylabel()) == ("updates", draw.FORWARD["mean"])


def test_nu_of_all_layers(tmp_path):
    folder = make_run(tmp_path / "a", "PowerNorm")
    status, rows = run_plot("nu", [folder], tmp_path / "out", "--layer", "all", "--log-y")
    assert status == 0 and values(rows, panel="largest", layer=NAMES[0]) == [10.13, 20.13, 30.13]
    assert values(rows, panel="norm", layer=NAMES[1]) == [110.14, 120.14, 130.14]


@pytest.mark.parametrize("runs, legends", [(4, [True, True]), (5, [False, True])])
def test_a_long_legend_stands_beside_the_panels(runs, legends):
    rows = [
        {"panel": panel, "run": f"run {run}", "update": update, "value": 1.0}
        for panel in ("training", "validation")
        for run in range(runs)
        for update in (1, 2)
    ]
    figure = draw.draw("learning-curves", rows, [], False)
    assert [axis.get_legend() is not None for axis in figure.axes] == legends
    figure.canvas.draw()
    last = figure.axes[-1]
    beside = last.get_legend().get_window_extent().x0 >= last.get_window_extent().x1
    assert beside == (runs > draw.MOST_INSIDE)


def test_gamma_over_psi_at_the_newest_record(tmp_path):
    status, rows = run_plot("gamma-psi", [make_run(tmp_path / "a", "PowerNormV")], tmp_path / "out")
    assert status == 0 and [(row["layer"], row["update"]) for row in rows] == [(name, "30") for name in NAMES]
    assert [float(rows[1][quantile]) for quantile in QUANTILES] == [130 + (6 + i) / 100 for i in range(7)]
    numbers = {quantile: 0.5 + i / 10 for i, quantile in enumerate(QUANTILES)}
    (axis,) = draw.gamma_psi([{"run": "PN-V", "update": 30, "layer": NAMES[0], **numbers}], False).axes
    assert any(list(line.get_ydata()) == [1.0, 1.0] for line in axis.lines)  # the line of the lemma


def test_learning_curves_of_a_training_that_was_resumed(tmp_path):
    def line(tag, **content):
        return f"2026-01-01 00:00:00 | INFO | {tag} | {json.dumps(content)}\n"

    log = [line("train_inner", num_updates=str(update), loss=str(10 - update)) for update in (1, 2, 3)]
    log += [line("valid", valid_num_updates="3", valid_loss="5.5"), "something else\n", log[0][:60] + "\n"]
    log += [line("train_inner", num_updates="2", loss="7.5"), line("train_inner", num_updates="3", loss="6.5")]
    (tmp_path / "train.log").write_text("".join(log))
    status, rows = run_plot("learning-curves", [f"mine={tmp_path}"], tmp_path / "out")
    assert status == 0
    assert values(rows, panel="training", run="mine") == [9.0, 7.5, 6.5]
    assert values(rows, panel="validation", run="mine") == [5.5]


def test_singular_values_are_those_of_the_matrix(tmp_path):
    torch.manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(size, 3))[0] for size in (7, 5))
    matrix = left @ torch.diag(torch.tensor([4.0, 2.0, 0.5])) @ right.t()
    torch.save({"model": {"encoder.embed_tokens.weight": matrix}}, tmp_path / "checkpoint_best.pt")
    status, rows = run_plot("embedding-svd", [tmp_path], tmp_path / "out")
    assert status == 0 and values(rows) == pytest.approx([1, 0.5, 0.125, 0, 0], abs=1e-6)
    torch.save({"model": {}}, tmp_path / "other.pt")
    assert run_plot("embedding-svd", [tmp_path / "other.pt"], tmp_path / "none")[0] == 1


def test_batch_size_from_tables_and_results(tmp_path):
    (tmp_path / "scores.csv").write_text("norm,tokens,bleu\nbn,512,33\nln,512,35\nln,4096,35.5\nmine,512,30\n")
    for seed in (1, 2):
        folder = tmp_path / "runs" / f"pn-{seed}"
        folder.mkdir(parents=True)
        result = {"norm": "pn", "seed": seed, "configuration": {"--max-tokens": ["512"]}}
        (folder / "result.json").write_text(json.dumps({**result, "scores": {"tokenized": {"score": 34.0 + seed}}}))
    (tmp_path / "runs" / "result.json").write_text('{"scores": {}}')  # of something else
    status, rows = run_plot("batch-size", [tmp_path / "scores.csv", tmp_path / "runs"], tmp_path / "out")
    assert status == 0
    assert [(row["norm"], row["tokens"], row["bleu"], row["seed"]) for row in rows] == [
        ("LN", "512", "35.0", "1"),
        ("LN", "4096", "35.5", "1"),
        ("BN", "512", "33.0", "1"),
        ("PN", "512", "35.0", "1"),
        ("PN", "512", "36.0", "2"),
        ("mine", "512", "30.0", "1"),
    ]
    drawn = draw.batch_size([{**row, "tokens": int(row["tokens"]), "bleu": float(row["bleu"])} for row in rows], False)
    assert list(drawn.axes[0].containers[2].lines[0].get_ydata()) == [35.5]  # the mean of the seeds


def test_scores_are_a_dot_for_each_seed_and_a_line_for_the_mean(tmp_path):
    (tmp_path / "scores.csv").write_text("norm,tokens,bleu,seed\npn,512,30,1\nln,512,35,1\nln,512,36,2\n")
    status, rows = run_plot("scores", [tmp_path / "scores.csv"], tmp_path / "out")
    assert status == 0 and [row["norm"] for row in rows] == ["LN", "LN", "PN"]
    (axis,) = draw.scores([{**row, "bleu": float(row["bleu"])} for row in rows], False).axes
    assert [list(line.get_ydata()) for line in axis.lines] == [[35, 36], [30]]
    assert [lines.get_segments()[0][0][1] for lines in axis.collections] == [35.5, 30]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["LN", "PN"]


def test_generated_images_are_said_in_the_title(tmp_path):
    folder = make_run(tmp_path / "a", "BatchNorm2d", label="ResNet20", note="on generated images")
    status, rows = run_plot("forward-stats", [folder], tmp_path / "out", "--title", "Figure 2")
    assert status == 0 and {row["run"] for row in rows} == {"ResNet20"}
    args = plot.build_parser().parse_args(["forward-stats", "--runs", str(folder), "--out", "x", "--title", "Figure 2"])
    title = plot.title_of(args, sources.read_stats([sources.parse_source(str(folder))]))
    assert title == ["Figure 2", "on generated images"]
    figure = draw.draw("forward-stats", [{**row, "value": 1.0, "own": 1, "epoch": 1.0} for row in rows], title, False)
    assert figure._suptitle.get_text() == "Figure 2\non generated images"


def test_lines_can_be_told_apart_in_grey():
    styles = [draw.style(index) for index in range(8)]
    assert len({(style["linestyle"], style["marker"]) for style in styles}) == 8


def test_same_data_gives_the_same_bytes(tmp_path):
    folder = make_run(tmp_path / "a")
    for out in ("one", "two"):
        assert run_plot("forward-stats", [folder], tmp_path / out)[0] == 0
    for end in ("png", "svg", "csv"):
        assert (tmp_path / f"one.{end}").read_bytes() == (tmp_path / f"two.{end}").read_bytes()


@pytest.mark.parametrize(
    "figure, flags, said",
    [
        ("forward", [], "forward is not known; choose from forward-stats, backward-stats"),
        ("forward-stats", ["--layer", "7"], "--layer 7 is not known; give first, all, a number below 2 or one of enc"),
        ("forward-stats", ["--x", "epoch"], "--x epoch: not all records say which epoch"),
        ("nu", [], "nu has nothing to draw in"),
        ("learning-curves", [], "train.log is missing"),
        ("batch-size", [], "neither a CSV with norm, tokens and bleu nor a result.json"),
        ("embedding-svd", [], "holds none of checkpoint_best.pt, checkpoint_last.pt"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(tmp_path, capsys, figure, flags, said):
    folder = make_run(tmp_path / "a", epoch=False)
    assert run_plot(figure, [folder], tmp_path / "out", *flags) == (1, [])
    message = capsys.readouterr().err
    assert said in message and message.startswith("plot: ") and message.count("\n") == 1
    assert not list(tmp_path.glob("out*"))


def test_missing_runs_and_existing_files(tmp_path, capsys):
    assert run_plot("nu", [tmp_path / "nowhere"], tmp_path / "out")[0] == 1
    assert "there is no" in capsys.readouterr().err
    assert run_plot("nu", [tmp_path], tmp_path / "out")[0] == 1
    assert "was the training run with --norm-stats?" in capsys.readouterr().err
    folder = make_run(tmp_path / "a")
    (tmp_path / "out.svg").write_text("precious")
    assert run_plot("forward-stats", [folder], tmp_path / "out") == (1, [])
    assert "out.svg exists; --overwrite replaces it" in capsys.readouterr().err
    assert (tmp_path / "out.svg").read_text() == "precious"
    assert run_plot("forward-stats", [folder], tmp_path / "out", "--overwrite")[0] == 0


def test_without_matplotlib_one_sentence_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "powernorm_fairseq.figures.draw")
    monkeypatch.delattr("powernorm_fairseq.figures.draw", raising=False)
    assert run_plot("nu", [make_run(tmp_path / "a")], tmp_path / "out")[0] == 1
    assert capsys.readouterr().err == "plot: figures need matplotlib: pip install 'powernorm-fairseq[figures]'\n"
