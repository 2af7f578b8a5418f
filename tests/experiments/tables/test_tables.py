"""Tables of reproduce.py without any training: rows, logs, numbers, sentences, reports and what is exported."""

import itertools
import json
import shutil
import socket
import statistics
from pathlib import Path

import pytest

from powernorm_fairseq.experiments import recipes
from powernorm_fairseq.experiments.tables import catalogue, export, report, reproduce, words
from powernorm_fairseq.experiments.tables.document import Grid, Section, to_html, to_markdown
from powernorm_fairseq.experiments.tables.results import gather
from powernorm_fairseq.experiments.tables.run import Run, configuration
from powernorm_fairseq.experiments.tables.seeds import bootstrap, probability_of_improvement
from powernorm_fairseq.training_log import Log, total_updates
from tests.experiments.tables.table_results import result, write_run

# Rows


@pytest.mark.parametrize(
    "dataset, published", [("iwslt14", [35.5, 34.4, 35.5, 35.9]), ("wmt14", [29.5, 28.1, 28.5, 30.1])]
)
def test_table_1_has_the_papers_rows(dataset, published):
    table = catalogue.find_table("table1", dataset)
    rows = catalogue.table_rows(table, dataset, table.norms, {})
    assert [row.label for row in rows] == ["LN", "BN", "PN-V", "PN"]
    assert [catalogue.published(row.norm, dataset) for row in rows] == published
    assert all(not row.flags for row in rows)


def test_batch_sizes_keep_the_tokens_of_an_update():
    table = catalogue.TABLES["batch-size"]
    rows = catalogue.table_rows(table, "iwslt14", ["pn"], {})
    assert [row.position for row in rows] == [512, 1024, 2048, 4096]
    for row in rows:
        flags = {**recipes.recipe("iwslt14", "pn", 1), **recipes.parse_flags(row.flags)}
        assert int(flags["--max-tokens"][0]) * int(flags["--update-freq"][0]) == 4096
    assert [row.run_name(3) for row in rows] == [
        "pn-tokens512-seed3", "pn-tokens1024-seed3", "pn-tokens2048-seed3", "pn-seed3",
    ]  # fmt: skip
    mine = catalogue.table_rows(table, "iwslt14", ["pn"], {"--max-tokens": ["800"]})
    assert [row.position for row in mine] == [100, 200, 400, 800]


def test_alphas_are_all_pairs_and_the_default_is_the_plain_run():
    rows = catalogue.table_rows(catalogue.TABLES["alpha"], "multi30k", ["ln", "pn"], {})
    pairs = {tuple(row.flags[1::2]) for row in rows if row.flags}
    assert len(rows) == 10 and len(pairs) == 8 and ("0.9", "0.9") not in pairs and ("0.99", "0.95") in pairs
    assert rows[1].run_name(1) == "pn-seed1"


def test_every_variant_changes_a_flag_that_the_models_have():
    parser_flags = (Path(__file__).resolve().parents[3] / "powernorm_fairseq/models/norm_settings.py").read_text()
    names = set()
    for table in catalogue.TABLES.values():
        rows = catalogue.table_rows(table, table.datasets[-1], table.norms, {})
        assert len({row.run_name(1) for row in rows}) == len(rows)
        names |= {flag for row in rows for flag in recipes.parse_flags(row.flags)}
    own = {name for name in names if name.startswith(("--norm-", "--layer-scale", "--prepbn"))}
    assert own == {"--norm-alpha-fwd", "--norm-alpha-bwd", "--norm-recipe", "--layer-scale", "--norm-warmup-updates",
                   "--prepbn-updates"}  # fmt: skip
    assert all(name[2:].replace("-", "_") in parser_flags for name in own)
    others = {"--max-tokens", "--update-freq", "--dropout", "--lr", "--warmup-updates", catalogue.LEAKING_FLAG}
    assert names - own == others


def test_baseline_is_ln_under_the_same_conditions():
    rows = catalogue.table_rows(catalogue.TABLES["batch-size"], "iwslt14", ["ln", "pn"], {})
    by_name = {row.run_name(1): row for row in rows}
    assert catalogue.baseline(by_name["pn-tokens512-seed1"], rows) is by_name["ln-tokens512-seed1"]
    rows = catalogue.table_rows(catalogue.TABLES["recipe"], "iwslt14", ["ln", "pn"], {})
    assert catalogue.baseline(rows[2], rows) is rows[0] and catalogue.baseline(rows[0], rows) is None


# Logs


LINE = "2026-01-01 10:00:00 | INFO | {} | {}\n"


def at(time, line):
    """A line of another time."""
    return line.replace("10:00:00", time)


def inner(update, loss, epoch=1):
    numbers = {"epoch": epoch, "update": update / 100, "loss": str(loss), "ppl": "9.5", "num_updates": str(update),
               "ups": "2.5", "wps": "1000"}  # fmt: skip
    return LINE.format("train_inner", json.dumps(numbers))


def valid(update, loss, epoch=1):
    numbers = {"epoch": epoch, "valid_loss": str(loss), "valid_ppl": "8.5", "valid_num_updates": str(update)}
    return LINE.format("valid", json.dumps(numbers))


def epoch_end(update, epoch=1):
    numbers = {"epoch": epoch, "train_loss": "5", "train_num_updates": str(update), "train_wps": "900",
               "train_ups": "2", "train_wall": "0", "train_train_wall": "7"}  # fmt: skip
    return LINE.format("train", json.dumps(numbers))


def test_log_of_a_training_that_was_interrupted(tmp_path):
    """Updates after the last checkpoint are in it twice; a line may be cut off."""
    file = tmp_path / "train.log"
    file.write_text(
        "x | num. shared model params: 1,513,472 (num. trained: 1,513,472)\n"
        "x | grouped total_num_itrs = 100\n"
        "train: 2026-01-01 09:59:30 scripts/train.sh\n"
        + inner(50, 9) + valid(100, 6) + epoch_end(100) + inner(150, 8, 2) + inner(160, 7.5, 2)
        + at("10:01:00", epoch_end(170, 2))
        + "train: 2026-01-02 08:00:00 scripts/train.sh\n" + at("08:00:40", inner(150, 8.25, 2)).replace("-01 ", "-02 ")
        + at("08:00:40", valid(200, 5, 2) + epoch_end(200, 2)).replace("-01 ", "-02 ")
        + at("08:00:40", valid(300, "nan", 3)).replace("-01 ", "-02 ") + '2026 | INFO | train_inner | {"epoch": 3, "lo'
    )  # fmt: skip
    log = Log(file).update()
    assert [(point["update"], point["loss"]) for point in log.curve("train")] == [(50, 9.0), (150, 8.25)]
    assert [(point["update"], point["loss"]) for point in log.curve("valid")] == [(100, 6.0), (200, 5.0), (300, None)]
    assert log.best() == {"update": 200, "epoch": 2, "loss": 5.0, "ppl": 8.5}
    assert (log.updates, log.parameters, log.seconds, log.median("wps")) == (300, 1513472, 130.0, 900.0)
    assert [numbers["num_updates"] for numbers in log.epochs] == [100, 200]
    assert total_updates(log, 0, 20) == 2000 and total_updates(log, 1500, 20) == 1500
    with open(str(file), "a") as more:
        more.write('ss": "4", "num_updates": "310"}\n')
    assert log.update().latest["loss"] == "4" and log.updates == 310


def test_log_that_is_not_there_yet(tmp_path):
    log = Log(tmp_path / "train.log").update()
    assert log.updates == 0 and log.best() is None and log.latest == {} and log.seconds is None
    assert total_updates(log, 0, 20) is None


def test_configuration_is_the_call_without_folders():
    command = "fairseq-train /data/bin --user-dir /x --adam-betas '(0.9, 0.98)' --save-dir /y --cpu"
    assert configuration(command) == {"--adam-betas": ["(0.9, 0.98)"], "--cpu": []}


# Sentences


def table_result(tmp_path, scores, dataset="multi30k", name="table1", **more):
    """A table's results from norm -> scores of its seeds."""
    for norm, values in scores.items():
        for seed, bleu in enumerate(values, 1):
            write_run(tmp_path, result(dataset, norm, seed, bleu))
    table = catalogue.TABLES[name]
    rows = catalogue.table_rows(table, dataset, list(scores), {})
    return gather(table, dataset, tmp_path, rows, range(1, 1 + max(map(len, scores.values()))), {})


def test_order_that_differs_by_chance(tmp_path):
    scores = {"ln": [42.0, 41.4, 41.7], "bn": [40.4, 40.0, 40.2], "pn": [41.5, 41.3, 41.55]}
    found = words.findings(table_result(tmp_path, scores))
    text = "\n".join(found)
    assert "Measured order, mean BLEU of the test set: LN 41.70 > PN 41.45 > BN 40.20." in text
    assert "on IWSLT14 De-En, as there is none for Multi30k De-En (test2016): PN 35.9 > LN 35.5 > BN 34.4." in text
    assert "differs from the published one: LN over PN. None of these differences is significant." in text


def test_bold_is_what_is_significant_not_what_is_largest(tmp_path):
    """PN: +0.5, -0.1, -0.15 to LN. BN: -1.6, -1.4, -1.5; t = 25.98 with two degrees of freedom, and of two rows."""
    scores = {"ln": [42.0, 41.4, 41.7], "bn": [40.4, 40.0, 40.2], "pn": [42.5, 41.3, 41.55]}
    result_ = table_result(tmp_path, scores)
    grid = report.score_grid(result_)
    ln, bn, pn = (dict(zip(grid.header, row)) for row in grid.rows)
    assert [row["difference to LN"] for row in (ln, bn, pn)] == ["", "-1.50", "+0.08"]
    assert [row["p"] for row in (ln, bn, pn)] == ["", "0.003", "0.728"]
    assert bn["its 95 % interval"] == "-1.75 to -1.25" and ln["its 95 % interval"] == ""
    assert result_.scored()[0].row.norm == "pn" and grid.strong == [1]
    two = table_result(tmp_path / "two", {"ln": [42.0, 41.4], "bn": [40.5, 40.2]})
    assert report.score_grid(two).strong == []  # 1.35 on average, but with one degree of freedom t = 9 is p = 0.07


def test_order_that_differs_and_not_by_chance(tmp_path):
    text = "\n".join(words.findings(table_result(tmp_path, {"ln": [42.0, 42.1, 42.2], "pn": [41.0, 41.1, 41.25]})))
    assert "LN over PN (significant)." in text and "None of these" not in text


def test_order_that_is_the_published_one(tmp_path):
    scores = {"ln": [35.0, 35.1], "bn": [33.0, 33.1], "pn": [36.0, 36.1]}
    text = "\n".join(words.findings(table_result(tmp_path, scores, dataset="iwslt14")))
    assert "Published order: PN 35.9 > LN 35.5 > BN 34.4." in text
    assert "The measured order is the published one." in text and "significant" not in text
    assert "as there is none" not in text
    one = table_result(tmp_path / "one", {"ln": [35.0], "pn": [36.0]}, dataset="iwslt14")
    assert "is the published one. With one seed, nothing is known" in "\n".join(words.findings(one))
    close = table_result(tmp_path / "close", {"ln": [35.0, 35.9], "pn": [35.8, 35.3]}, dataset="iwslt14")
    assert "is the published one. None of the differences is significant." in "\n".join(words.findings(close))


def test_one_seed_and_equal_scores_claim_nothing(tmp_path):
    found = table_result(tmp_path, {"ln": [41.0], "pn": [41.0]})
    text = "\n".join(words.findings(found))
    assert "differs from the published one: LN level with PN. With one seed, nothing is known about the spread" in text
    grid = report.score_grid(found)
    assert grid.strong == [] and not {"p", "95 % interval", "P(better than LN)"} & set(grid.header)


def test_missing_runs_are_named_with_their_state(tmp_path):
    found = table_result(tmp_path, {"ln": [41.0, 41.1], "pn": [41.0]})
    first = words.findings(found)[0]
    assert first == "This table is not complete: 1 of 4 runs have no result yet: pn-seed2 (not started)."
    assert found.difference(found.rows[1]) == 0.0  # of the seed that both have


def test_probability_of_improvement_counts_pairs_of_runs():
    assert probability_of_improvement([[3.0, 1.0]], [[2.0, 2.0, 0.0]]) == pytest.approx(4 / 6)
    chance = probability_of_improvement([[3.0, 1.0]], [[2.0, 2.0, 0.0]], sign=-1)
    assert chance == pytest.approx(2 / 6)
    assert probability_of_improvement([[2.0, 2.0]], [[2.0, 1.0]]) == 3 / 4  # a tie is half an improvement
    assert probability_of_improvement([[1.0], [5.0, 6.0]], [[2.0], [4.0]]) == 1 / 2  # mean over the strata


def mean_of_strata(strata):
    """The mean over strata of their means."""
    return sum(sum(stratum) / len(stratum) for stratum in strata) / len(strata)


def test_intervals_resample_the_seeds_of_each_stratum():
    """Against all resamples there are: 27 of three seeds, 729 of two strata of three."""
    first, second = [1.0, 2.0, 4.0], [10.0, 10.5, 13.0]
    means = [sum(drawn) / 3 for drawn in itertools.product(first, repeat=3)]
    others = [sum(drawn) / 3 for drawn in itertools.product(second, repeat=3)]
    for strata, possible in (([first], means), ([first, second], [(a + b) / 2 for a in means for b in others])):
        found = bootstrap(mean_of_strata, strata)
        low, *_, high = statistics.quantiles(possible * 100, n=40, method="inclusive")  # as likely, so as often
        assert found == pytest.approx((low, high), abs=0.15)
        assert found == bootstrap(mean_of_strata, strata)  # the same again
    assert bootstrap(mean_of_strata, [[1.0, 2.0]]) is None  # too few seeds


def test_report_says_what_the_seeds_say(tmp_path):
    found = table_result(tmp_path, {"ln": [41.0, 41.2, 41.4], "pn": [41.1, 41.3, 41.5]})
    grid = report.score_grid(found)
    ln, pn = (dict(zip(grid.header, row)) for row in grid.rows)
    assert ln["95 % interval"] == "40.70 to 41.70" and ln["P(better than LN)"] == ln["p"] == ""  # 4.303 * 0.2 / sqrt(3)
    assert pn["its 95 % interval"] == "+0.10 to +0.10" and pn["p"] == "0.000"
    assert pn["P(better than LN)"].startswith("0.67 (")
    two = table_result(tmp_path / "two", {"ln": [41.0, 41.2], "pn": [41.1, 41.3]})
    grid = report.score_grid(two)
    assert dict(zip(grid.header, grid.rows[0]))["95 % interval"] == "39.83 to 42.37"  # 12.706 * 0.1414 / sqrt(2)
    assert dict(zip(grid.header, grid.rows[1]))["P(better than LN)"] == "0.75"


def test_batch_sizes_are_the_strata_of_their_table(tmp_path):
    for seed in (1, 2, 3):
        for norm, score in (("ln", 41.0), ("pn", 42.0)):
            write_run(tmp_path, result("multi30k", norm, seed, score + seed / 10))
            write_run(tmp_path, result("multi30k", norm, seed, 82 - score + seed / 10, variant="tokens512"))
    table = catalogue.TABLES["batch-size"]
    rows = catalogue.table_rows(table, "multi30k", ["ln", "pn"], {})
    text = "\n".join(words.findings(gather(table, "multi30k", tmp_path, rows, (1, 2, 3), {})))
    assert "A run of PN is better than one of LN under the same conditions with probability 0.50 (0.50 to 0.50)" in text


def test_order_at_each_batch_size(tmp_path):
    for norm, score in (("ln", 41.0), ("pn", 42.0)):
        write_run(tmp_path, result("multi30k", norm, 1, score))
        write_run(tmp_path, result("multi30k", norm, 1, 82 - score, variant="tokens512"))
    table = catalogue.TABLES["batch-size"]
    rows = catalogue.table_rows(table, "multi30k", ["ln", "pn"], {})
    text = "\n".join(words.findings(gather(table, "multi30k", tmp_path, rows, [1], {})))
    assert "Measured at 512 tokens: LN 41.00 > PN 40.00." in text
    assert "Measured at 4096 tokens: PN 42.00 > LN 41.00." in text
    assert "4 of 8 runs" in text


# Reports


def report_only(folder, *more, table="table1"):
    words_ = [table, "--dataset", "multi30k", "--norms", "ln,pn", "--seeds", "1,2", "--report-only"]
    return reproduce.main([*words_, "--dir", str(folder), *map(str, more)])


SENTENCES = ["the dog runs over the green field", "a man reads a book", "two women sit on a bench in the park"]


def write_table(folder, secret="never to be published"):
    """LN and PN with two seeds, and a run with another alpha; PN's translations are worse."""
    for norm, bleu in (("ln", 42.0), ("pn", 41.5)):
        for seed in (1, 2):
            hypotheses = SENTENCES if norm == "ln" else [sentence.replace("a ", "the ") for sentence in SENTENCES]
            run = write_run(folder / "multi30k", result("multi30k", norm, seed, bleu + seed / 10, 4.8), hypotheses,
                            [*SENTENCES[:2], f"two women sit on a bench {secret}"])  # fmt: skip
            log = f"x | INFO | fairseq_cli.train | {{'save_dir': '{run}'}}\ntrain: 2026-01-01 10:00:00 {run}/train.sh\n"
            (run / "checkpoints" / "train.log").write_text(log + inner(50, 9) + valid(100, 6))
            (run / "checkpoints" / "checkpoint_last.pt").write_text("weights")
    label = "PN, alpha 0.99 forward, 0.9 backward"
    write_run(folder / "multi30k", result("multi30k", "pn", 1, None, 4.7, variant="alpha0.99-0.9", label=label))


def test_report_has_all_parts_in_both_forms(tmp_path, capsys):
    write_table(tmp_path)
    assert report_only(tmp_path) == 0
    printed = capsys.readouterr().out
    markdown, page = ((tmp_path / "multi30k" / f"table1.{end}").read_text() for end in ("md", "html"))
    assert markdown.startswith(printed.rstrip("\n"))
    for part in ("| LN ", "| **PN** ", "42.15 ± 0.07", "**-0.50**", "4.80 ± 0.00", "35.9"):
        assert part in printed, part
    comparisons = json.loads((tmp_path / "multi30k" / "comparisons.json").read_text())
    p_values = [comparisons[f"pn-seed{seed} against ln-seed{seed}, tokenized"]["p_value"] for seed in (1, 2)]
    assert f"| **{sum(p_values):.3f}** " in printed  # twice the mean
    for text in (markdown, page):
        for part in ("tok:13a", "impl:multi-bleu", "beam 5", "0.93x", "830 MiB", "52 min", "torch: 2.13.0+cpu",
                     "--adam-betas (0.9, 0.98)", "0123456789abcdef", "AMD EPYC", "PN, alpha 0.99 forward, 0.9 backward",
                     "--seeds 1,2", "What was tried on validation data", "-0.10"):  # fmt: skip
            assert part in text, part
        assert "secret-host" not in text and "/home/" not in text
    assert page.count("<svg") == 4 and page.count('id="curve-') == 2 + 3 * 4  # dots of each norm; curves of each run


def test_speed_is_that_of_the_fastest_seed(tmp_path):
    for norm, speeds in (("ln", (2000.0, 4000.0)), ("pn", (5000.0, 3000.0))):
        for seed, speed in zip((1, 2), speeds):
            time = {"words_per_second": speed, "seconds": 1.2e7 / speed}
            write_run(tmp_path / "multi30k", {**result("multi30k", norm, seed, 42.0), **time})
    assert report_only(tmp_path) == 0
    text = (tmp_path / "multi30k" / "table1.md").read_text()
    costs = [line.split("|")[4:] for line in text.split("Throughput and memory")[1].splitlines() if "MiB" in line]
    assert [[cell.strip() for cell in cells[:2]] for cells in costs] == [["4,000", ""], ["5,000", "1.25x"]]
    assert [cells[3].strip() for cells in costs] == ["50 min", "40 min"]


def test_variables_that_speed_depends_on_are_shown_also_where_they_are_not_set(tmp_path):
    runs = [result("multi30k", norm, seed, 42.0) for norm in ("ln", "pn") for seed in (1, 2)]
    runs[3]["environment"]["variables"] = {"OMP_NUM_THREADS": "1"}
    for run in runs:
        write_run(tmp_path / "multi30k", run)
    assert report_only(tmp_path) == 0
    lines = (tmp_path / "multi30k" / "table1.md").read_text().splitlines()
    assert "- LD_PRELOAD: libtuned.so, not set" in lines and "- OMP_NUM_THREADS: 1" in lines


def test_shorter_tries_are_compared_with_the_plain_run_as_it_was_then(tmp_path):
    folder = tmp_path / "multi30k"
    plain = result("multi30k", "pn", 1, 41.0)
    short = result("multi30k", "pn", 1, None, variant="lr0.01", label="PN, lr")
    write_run(folder, plain)
    short["curves"]["valid"] = short["curves"]["valid"][:4]
    write_run(folder, {**short, "updates": 540})
    assert report_only(tmp_path) == 1  # incomplete
    line = next(line for line in (folder / "table1.md").read_text().splitlines() if line.startswith("| PN, lr"))
    then = plain["curves"]["valid"][3]["ppl"]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["PN, lr", "1", "540", f"{then:.2f}", f"{then:.2f}", "+0.00"]  # one seed has no p


def test_seeds_of_other_lengths_are_each_compared_after_as_many_updates(tmp_path):
    folder = tmp_path / "multi30k"
    then = []
    for seed, epochs in ((1, 4), (2, 20)):
        plain = result("multi30k", "pn", seed, 41.0)
        then.append(plain["curves"]["valid"][epochs - 1]["ppl"])
        write_run(folder, plain)
        run = result("multi30k", "pn", seed, None, variant="lr0.01", label="PN, lr")
        run["curves"]["valid"] = run["curves"]["valid"][:epochs]
        write_run(folder, {**run, "updates": 135 * epochs})
    assert report_only(tmp_path) == 1  # incomplete
    line = next(line for line in (folder / "table1.md").read_text().splitlines() if line.startswith("| PN, lr"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    mean = sum(then) / 2
    assert cells[1:6] == ["1, 2", "540, 2700", f"{mean:.2f}", f"{mean:.2f}", "+0.00"]


def test_tries_stand_out_where_seeds_do_not_differ_as_much(tmp_path):
    folder = tmp_path / "multi30k"
    for norm, ppls in (("ln", (4.9, 4.9)), ("pn", (4.8, 5.0))):  # pooled deviation: 0.1, two degrees of freedom
        for seed, ppl in zip((1, 2), ppls):
            write_run(folder, result("multi30k", norm, seed, 41.0, ppl))
    for name, seeds, ppl in (("near", (1,), 5.05), ("far", (1,), 3.0), ("near-twice", (1, 2), 5.1)):
        for seed in seeds:
            write_run(folder, result("multi30k", "pn", seed, None, ppl, variant=name, label=f"PN, {name}"))
    assert report_only(tmp_path) == 0
    lines = (folder / "table1.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "PN, " in line and "|" in line]
    assert rows == [
        [f"**{cell}**" for cell in ("PN, far", "1", "2700", "3.00", "4.80", "-1.80", "0.018")],
        ["PN, near-twice", "1, 2", "2700", "5.10", "4.90", "+0.20", "0.367"],
        ["PN, near", "1", "2700", "5.05", "4.80", "+0.25", "0.367"],
    ]


def test_tries_of_another_folder(tmp_path):
    write_table(tmp_path / "runs")
    elsewhere = tmp_path / "other" / "multi30k"
    write_run(elsewhere, result("multi30k", "pn", 1, None, 4.9))
    write_run(elsewhere, result("multi30k", "pn", 1, None, 3.6, variant="dropout0.2", label="PN, --dropout 0.2"))
    for seed, ppl in ((1, 4.8), (2, 5.0)):
        write_run(tmp_path / "runs" / "multi30k", result("multi30k", "bn", seed, 41.0, ppl))  # LN and PN: 4.8
    shipped = tmp_path / "shipped" / "multi30k"
    assert report_only(tmp_path / "runs", "--tried", tmp_path / "other", "--export", shipped) == 0
    lines = (tmp_path / "runs" / "multi30k" / "table1.md").read_text().splitlines()
    cells = next(line for line in lines if "PN, --dropout 0.2" in line).strip("|").split("|")
    # Beside the plain run of its own folder; the spread is that of the first.
    assert [cell.strip("* ") for cell in cells[3:]] == ["3.60", "4.90", "-1.30", "0.003"]
    (shipped / "table1.md").unlink()
    assert report_only(tmp_path / "shipped") == 0  # they went with it
    assert "| **PN, --dropout 0.2** " in (shipped / "table1.md").read_text()


def test_stale_comparison_is_not_taken_for_another_translation(tmp_path, capsys):
    write_table(tmp_path)
    report_only(tmp_path)
    before = json.loads((tmp_path / "multi30k" / "comparisons.json").read_text())
    (tmp_path / "multi30k" / "pn-seed1" / "hyp.txt").write_text("\n".join(SENTENCES) + "\n")  # as LN's
    report_only(tmp_path)
    after = json.loads((tmp_path / "multi30k" / "comparisons.json").read_text())
    key = "pn-seed1 against ln-seed1, tokenized"
    assert before[key]["p_value"] != 1.0 and after[key]["p_value"] == 1.0


def test_the_test_set_is_compared_for_all_seeds_or_none(tmp_path):
    write_table(tmp_path)
    page = tmp_path / "multi30k" / "table1.md"
    assert report_only(tmp_path) == 0 and "| p, test set " in page.read_text()
    (tmp_path / "multi30k" / "ln-seed1" / "hyp.txt").unlink()
    assert report_only(tmp_path) == 0 and "| p, test set " not in page.read_text()


def test_cells_are_escaped():
    page = [Section("h>i", grid=Grid(["a<b", "x|y"], [["1 < 2", "p|q"]]))]
    for escaped in ("a&lt;b", "1 &lt; 2", "h&gt;i", "t&amp;u"):
        assert escaped in to_html("t&u", page)
    assert r"x\|y" in to_markdown("t", page)


# Export


def test_export_holds_no_data_no_machine_and_is_enough_for_the_report(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(socket, "gethostname", lambda: "secret-host")
    write_table(tmp_path / "runs")
    shipped = tmp_path / "shipped" / "multi30k"
    assert report_only(tmp_path / "runs", "--export", shipped) == 0
    files = {str(file.relative_to(shipped)) for file in shipped.rglob("*") if file.is_file()}
    assert files == {
        "comparisons.json", "table1.md", "table1.html", "pn-alpha0.99-0.9-seed1/result.json",
        *(f"{run}/{name}" for run in ("ln-seed1", "ln-seed2", "pn-seed1", "pn-seed2")
          for name in ("result.json", "train.log")),
    }  # fmt: skip
    for file in shipped.rglob("*"):
        text = file.read_text() if file.is_file() else ""
        for trace in ("never to be published", *SENTENCES, "secret-host", "/home/", str(tmp_path), "SLURM"):
            assert trace not in text, (file, trace)
    log = (shipped / "ln-seed1" / "train.log").read_text()
    assert log == "train: 2026-01-01 10:00:00 train.sh\n" + inner(50, 9) + valid(100, 6)
    result = json.loads((shipped / "ln-seed1" / "result.json").read_text())
    assert result["command"] == "scripts/train.sh --data bin"
    assert result["environment"]["variables"] == {"OMP_NUM_THREADS": "1", "LD_PRELOAD": "libtuned.so"}

    page = (shipped / "table1.html").read_text()
    (shipped / "table1.html").unlink()
    assert report_only(tmp_path / "shipped") == 0  # without references: the p-values are known
    assert (shipped / "table1.html").read_text() == page
    assert page == (tmp_path / "runs" / "multi30k" / "table1.html").read_text()
    again = tmp_path / "again" / "multi30k"
    assert report_only(tmp_path / "shipped", "--export", again) == 0  # what was exported can be exported
    assert (again / "ln-seed1" / "train.log").read_text() == log
    assert (again / "table1.html").read_text() == page
    content = json.loads((shipped / "pn-seed1" / "result.json").read_text())
    (shipped / "pn-seed1" / "result.json").write_text(json.dumps({**content, "translations": "others"}))
    assert report_only(tmp_path / "shipped") == 0  # of other translations they are not
    assert (shipped / "table1.html").read_text() != page


def test_runs_can_be_exported_as_they_come(tmp_path, capsys):
    write_table(tmp_path / "runs")
    report_only(tmp_path / "runs", "--export", tmp_path / "whole")
    for seed in (1, 2):  # two machines with a seed each
        some = tmp_path / f"machine{seed}" / "multi30k"
        some.parent.mkdir()
        others = shutil.ignore_patterns(f"*-seed{3 - seed}", "*.json")
        shutil.copytree(tmp_path / "runs" / "multi30k", some, ignore=others)
        for file in (tmp_path / "runs" / "multi30k").glob(f"*-seed{seed}/result.json"):
            shutil.copy(file, some / file.parent.name)
        report_only(some.parent, "--export", tmp_path / "parts")
    for name in ("comparisons.json", "table1.md"):
        assert (tmp_path / "parts" / name).read_text() == (tmp_path / "whole" / name).read_text()


def test_export_refuses_the_folder_itself_and_what_names_the_machine(tmp_path, monkeypatch, capsys):
    write_table(tmp_path / "runs")
    assert report_only(tmp_path / "runs", "--export", tmp_path / "runs" / "multi30k") == 1
    assert "is the folder of the runs itself" in capsys.readouterr().err
    monkeypatch.setattr(socket, "gethostname", lambda: "EPYC")  # as if the processor's name were the machine's
    assert report_only(tmp_path / "runs", "--export", tmp_path / "shipped") == 1
    assert "still names this machine" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, clean",
    [
        ("/home/x/scripts/train.sh --data /srv/data/bin", "scripts/train.sh --data bin"),
        ("/a/b/powernorm_fairseq/models/steps.py:3", "powernorm_fairseq/models/steps.py:3"),
        ("ratio 1/2, 3 tokens/s, and/or", "ratio 1/2, 3 tokens/s, and/or"),
        ('{"x": "/home/me/y z/w"}', '{"x": "y z/w"}'),
        ("~/data", "data"),
    ],
)
def test_paths_become_names(text, clean):
    assert export.portable(text) == clean


# A run's folder


def test_time_left_goes_by_the_latest_pace(tmp_path):
    """An hour on a busy machine says nothing about the next."""
    run = Run(tmp_path, "demo", catalogue.Row("ln", "LN"), 1, None, ["--max-epoch", "0", "--max-update", "1000"])
    run.checkpoints.mkdir(parents=True)
    slow = inner(100, 9).replace('"ups": "2.5"', '"ups": "0.1"')
    (run.checkpoints / "train.log").write_text(slow + epoch_end(100).replace('"2"', '"0.1"') + inner(750, 8, 2))
    line = run.describe()
    assert line == "ln-seed1: update 750 of 1000, loss 8, 2 min left", line


def test_rivals_have_ln_in_both_recipes_and_published_scores_where_there_are_any():
    table = catalogue.find_table("rivals", "iwslt14")
    rows = catalogue.table_rows(table, "iwslt14", table.norms, {})
    assert [row.label for row in rows] == [
        "LN", "LN, lr 0.0007, warm-up 6000", "PN", "RBN", "UN", "PRepBN", "DyT", "Derf", "ScaleNorm",
    ]  # fmt: skip
    assert rows[1].flags == ("--lr", "0.0007", "--warmup-updates", "6000")
    usual = recipes.recipe("iwslt14", "ln", 1)
    assert (usual["--lr"], usual["--warmup-updates"]) == (["0.0015"], ["8000"])
    scores = [catalogue.published(row.name, "iwslt14") for row in rows]
    assert scores == [35.5, 35.3, 35.9, None, 35.4, None, None, None, None]
    assert all(not row.flags for row in rows if row.norm != "ln")
    for dataset in ("multi30k", "demo"):  # no --max-update to take four fifths of
        rows = {row.norm: row for row in catalogue.table_rows(table, dataset, ("prepbn", "un"), {})}
        warmup = int(recipes.recipe(dataset, "un", 1)["--warmup-updates"][0])
        assert rows["prepbn"].flags == ("--prepbn-updates", str(27 * warmup // 10)) and not rows["un"].flags
