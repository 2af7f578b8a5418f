"""Documentation that is right: links and anchors lead somewhere, shell lines run, what is named exists."""

import importlib
import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Tuple

import pytest

from benchmarks import interleave
from powernorm_fairseq import cli

TOP = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [TOP / "README.md", TOP / "CONTRIBUTING.md", TOP / "CHANGELOG.md", *(TOP / "docs").rglob("*.md")]
    + list((TOP / "results").glob("*/README.md"))
)
BLOCK = re.compile(r"^( *)```(\S*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LANGUAGES = ("sh", "bash", "shell", "python", "text", "bibtex")  # sh and bash are commands, shell is a file
LINK = re.compile(r"\]\(([^)\s]+)\)")
PROGRAMS_OF_FAIRSEQ = ("fairseq-train", "fairseq-generate", "fairseq-eval-lm")
# Other programs of the checkout, by their modules.
SCRIPTS = {"data_prep/prepare.sh": "prep", "scripts/train.sh": "train", "scripts/evaluate.sh": "evaluate",
           "scripts/reproduce.py": "reproduce", "scripts/slurm/submit.py": "submit"}  # fmt: skip
SHELL = ("source", "for", "done")


class Line(NamedTuple):
    """A command of a page."""

    page: str
    words: List[str]

    @property
    def program(self) -> str:
        return self.words[0]


def text_of(page: Path) -> str:
    """A page without its blocks of code."""
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> List[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return [re.sub(r"[ ]+", "-", re.sub(r"[^\w\- ]", "", heading.lower()).strip()) for heading in headings]


def broken_links(page: Path, text: str) -> Iterator[str]:
    """Links to what is not there."""
    for target in LINK.findall(text):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        if not file.exists():
            yield target
        elif anchor and (file.suffix != ".md" or anchor not in anchors(file)):
            yield target


def lines() -> List[Line]:
    """All commands of README and docs."""
    found = []
    for page in PAGES:
        for _, language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            if language in ("sh", "bash"):
                for line in block.replace("\\\n", " ").splitlines():
                    words = [word for word in shlex.split(line, comments=True) if word != "..."]
                    if words:
                        found.append(Line(str(page.relative_to(TOP)), words))
    return found


LINES = lines()


def of_powernorm(line: Line) -> List[str]:
    """The arguments of ``powernorm`` that a line means; empty if it is another program."""
    if line.program == "powernorm":
        return line.words[1:]
    if line.program in SCRIPTS:
        return [SCRIPTS[line.program], *line.words[1:]]
    return []


def flags(words: List[str]) -> List[str]:
    return [word.split("=")[0] for word in words if re.match(r"--[a-z]", word)]


def split(words: List[str]) -> Tuple[List[str], List[str]]:
    """What stands before and after ``--``."""
    cut = words.index("--") if "--" in words else len(words)
    return words[:cut], words[cut + 1 :]


# ---------------------------------------------------------------- links and names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_links_and_anchors_lead_somewhere(page):
    assert list(broken_links(page, text_of(page))) == []


@pytest.mark.parametrize("target", ["no-such.md", "layers.md#no-such-heading", "#no-such-heading"])
def test_a_broken_link_is_found(target):
    page = TOP / "docs" / "training.md"
    assert list(broken_links(page, "[a](layers.md#the-norms), [b]({}) and [c](#faults)".format(target))) == [target]


def test_the_page_of_results_leads_to_every_table():
    index = TOP / "results" / "index.html"
    targets = re.findall(r'(?:href|src)="([^"]+)"', index.read_text(encoding="utf-8"))
    found = {(index.parent / target).resolve() for target in targets if not target.startswith("data:")}
    assert all(file.exists() for file in found)
    tables = {*index.parent.glob("*/table*.html"), *index.parent.glob("*/README.md")}
    assert tables <= found and len(tables) >= 5


def test_every_page_is_reachable_from_the_readme():
    seen, waiting = set(), [TOP / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in seen:
            seen.add(page)
            targets = [target.partition("#")[0] for target in LINK.findall(text_of(page))]
            waiting += [(page.parent / each).resolve() for each in targets if each.endswith(".md") and ":" not in each]
    assert [str(page) for page in PAGES if page not in seen and page.parent.name != "api"] == []


def test_the_site_has_every_page():
    named = set(re.findall(r": (\S+\.md)$", (TOP / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    outside = {"index.md", "CONTRIBUTING.md", "CHANGELOG.md"}
    docs = TOP / "docs"
    wanted = {str(page.relative_to(docs if docs in page.parents else TOP)) for page in PAGES} - {"README.md"}
    assert named == wanted | outside


def test_every_block_says_what_it_is():
    for page in PAGES:
        unknown = {language for _, language, _ in BLOCK.findall(page.read_text(encoding="utf-8"))} - set(LANGUAGES)
        assert not unknown or "results" in page.parts, f"{page}: {unknown}"


def test_what_pages_name_exists():
    """Targets of make, and files in folders of the project."""
    targets = set(re.findall(r"^([a-z-]+):", (TOP / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    folders = "powernorm_fairseq|scripts|configs|benchmarks|tests|docs|data_prep|results"
    for page in PAGES:
        if page.name == "CHANGELOG.md":  # it names what is gone
            continue
        text = text_of(page)
        assert set(re.findall(r"`make ([a-z-]+)`", text)) <= targets, page
        paths = re.findall(rf"`((?:{folders})/[\w./-]*)", text)
        assert [path for path in paths if not (TOP / path).exists() and "NAME" not in path] == [], page


def test_the_readme_is_short_and_lists_every_norm():
    from powernorm_fairseq.norms import norm_names

    readme, layers = ((TOP / name).read_text(encoding="utf-8") for name in ("README.md", "docs/layers.md"))
    assert len(readme.splitlines()) <= 160
    for text in (readme, layers):
        rows = "".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE))
        assert set(norm_names()) <= set(re.findall(r"`(\w+)`", rows))


def test_the_figure_of_the_readme_shows_the_results():
    rows = (TOP / "docs/figures/scores.csv").read_text(encoding="utf-8").splitlines()[1:]
    shown = {(norm.lower().replace("-", ""), seed): float(bleu) for norm, _, bleu, seed in (r.split(",") for r in rows)}
    measured = {}
    for file in (TOP / "results/multi30k").glob("*-seed?/result.json"):
        result = json.loads(file.read_text(encoding="utf-8"))
        if not result["variant"]:
            measured[result["norm"], str(result["seed"])] = result["scores"]["tokenized"]["score"]
    assert len(shown) >= 14 and shown == measured


# ---------------------------------------------------------------- commands


def test_there_are_commands_and_every_program_is_known():
    known = ("powernorm", "make", "pip", "python", "fairseq-hydra-train", *PROGRAMS_OF_FAIRSEQ, *SCRIPTS, *SHELL)
    unknown = [line for line in LINES if line.program not in known and not line.program.startswith("benchmarks/")]
    assert unknown == [] and len(LINES) > 40


def run_help(capsys, call, *args) -> str:
    """What a program prints for --help."""
    with pytest.raises(SystemExit) as ended:
        sys.exit(call(*args))
    assert not ended.value.code
    return capsys.readouterr().out


def helped() -> Dict[str, List[Line]]:
    """Subcommand of powernorm (``prep text``, ``prep lm text``) -> the lines that use it."""
    found: Dict[str, List[Line]] = {}
    for line in LINES:
        words = of_powernorm(line)
        if words:
            depth = {"prep": 3 if words[1:2] == ["lm"] else 2}.get(words[0], 1)
            found.setdefault(" ".join(words[:depth]), []).append(line)
    return found


@pytest.mark.parametrize("command", sorted(helped()))
def test_flags_of_powernorm_are_in_its_help(command, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["powernorm"])
    words = [word for word in command.split() if word != "--help"]
    said = run_help(capsys, cli.main, [*words, "--help"])
    known = set(re.findall(r"--[a-z][a-z-]*", said))
    for line in helped()[command]:
        assert set(flags(split(of_powernorm(line))[0])) <= known, line


@pytest.mark.parametrize("line", [line for line in LINES if of_powernorm(line)[:1] == ["reproduce"]], ids=str)
def test_tables_can_be_planned(line, capsys, monkeypatch, tmp_path):
    """With --dry-run, or where a line does nothing but look, as it stands; on no cluster and without data."""
    own, extra = split(of_powernorm(line))
    if "$table" in own or "BIN" in own or "--report-only" in own or "data/" in " ".join(own):
        pytest.skip("it needs the data that the page speaks of")
    if "slurm" in own:
        own = own[: own.index("--launcher")]
    monkeypatch.setattr(sys, "argv", ["powernorm"])
    monkeypatch.chdir(tmp_path)
    look = [] if "--status" in own else ["--dry-run"]
    assert cli.main([*own, *look, *(["--", *extra] if extra else [])]) == 0
    assert "seed1" in capsys.readouterr().out


def test_make_knows_its_targets():
    used = sorted({word for line in LINES if line.program == "make" for word in line.words[1:]})
    said = subprocess.check_output(["make", "--dry-run", "--directory", str(TOP), *used], universal_newlines=True)
    assert len(used) > 5 and "pytest" in said


def test_pip_extras_exist():
    extras = (TOP / "pyproject.toml").read_text(encoding="utf-8").split("[project.optional-dependencies]")[1]
    known = set(re.findall(r"^(\w+) = \[", extras.split("\n[")[0], re.MULTILINE))
    for page in PAGES:
        wanted = re.findall(r"pip install '?\.\[([\w,]+)\]", page.read_text(encoding="utf-8"))
        assert {each for group in wanted for each in group.split(",")} <= known


@pytest.mark.parametrize("line", [line for line in LINES if line.program == "python"], ids=str)
def test_modules_have_the_flags(line, capsys, monkeypatch):
    assert line.words[1] == "-m"
    module = line.words[2]
    if flags(line.words):
        monkeypatch.setattr(sys, "argv", [module, "--help"])
        said = run_help(capsys, importlib.import_module(module).main, ["--help"])
        assert set(flags(line.words)) <= set(re.findall(r"--[a-z][a-z-]*", said))
    else:
        monkeypatch.setattr(sys, "argv", [module])
        runpy.run_module(module, run_name="__main__")
        assert capsys.readouterr().out


@pytest.mark.parametrize("program", sorted({line.program for line in LINES if line.program.startswith("benchmarks/")}))
def test_flags_of_benchmarks_are_in_their_help(program, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [program, "--help"])
    for name, value in interleave.ALLOCATOR.items():  # without it they start themselves again
        monkeypatch.setenv(name, value)
    said = run_help(capsys, runpy.run_path, str(TOP / program), None, "__main__")
    for line in LINES:
        if line.program == program:
            assert set(flags(line.words)) <= set(re.findall(r"--[a-z][a-z-]*", said))


PARSE = """
import json, os, sys
from fairseq import options
parsers = {
    "fairseq-train": options.get_training_parser,
    "fairseq-generate": options.get_generation_parser,
    "fairseq-eval-lm": options.get_eval_lm_parser,
}
for program, *words in json.loads(sys.argv[1]):
    found = options.parse_args_and_arch(parsers[program](), words)
    print(program, found.data)
"""


def test_lines_of_fairseq_are_parsed_with_the_plugin():
    """All in one process, with every flag of the architecture; and what follows ``--`` in lines of powernorm."""
    own = [line.words for line in LINES if line.program in PROGRAMS_OF_FAIRSEQ and "my_norms" not in line.words]
    for line in LINES:
        extra = split(of_powernorm(line))[1]
        if extra and of_powernorm(line)[0] in ("train", "reproduce") and "results" not in line.page:
            plugin = ["--user-dir", "powernorm_fairseq", "--arch", "powernorm_iwslt_de_en"]
            own.append(["fairseq-train", "DATA", *plugin, *extra])
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PARSE, json.dumps(own)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, cwd=str(TOP),
    )  # fmt: skip
    assert result.returncode == 0 and result.stdout.count(" DATA") == len(own) > 5, result.stdout


def test_lines_of_hydra_are_composed():
    (words,) = [line.words for line in LINES if line.program == "fairseq-hydra-train"]
    program = str(Path(sys.executable).parent / words[0])
    said = subprocess.check_output([program, *words[1:], "--cfg", "job"], universal_newlines=True, cwd=str(TOP))
    assert "encoder_norm: pn" in said and "data: DATA" in said
