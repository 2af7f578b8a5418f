"""The package as pip installs it: what it needs, what is in it, and how it says why C++ operators are missing."""

import email
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

TOP = Path(__file__).resolve().parents[1]
KERNELS = Path("powernorm_fairseq/norms/kernels")
NOT_SOURCE = shutil.ignore_patterns("_rows*", "__pycache__")
NEW_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 10)
needs_new_torch = pytest.mark.skipif(not NEW_TORCH, reason="the C++ operators need torch >= 2.10")

# A training step of PN where nothing but torch and numpy is installed.
STEP = """
import importlib.util
import torch
from powernorm_fairseq.norms import PowerNorm, kernels, ops
assert importlib.util.find_spec("fairseq") is None and importlib.util.find_spec("sacrebleu") is None
norm, x = PowerNorm(64, kernel="cpp"), torch.randn(3, 5, 64, requires_grad=True)
norm(x, torch.zeros(3, 5, dtype=torch.bool)).square().sum().backward()
assert ops.implementation(norm.kernel, x, norm.weight, norm.bias) == "cpp"
assert norm.num_updates == 1 and norm.nu.abs().max() > 0
print(kernels.describe())
"""


def run(*command, cwd: Path, **settings: str) -> str:
    """What a command prints, without the settings that this process has for Python and pip."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_", "POWERNORM"))}
    result = subprocess.run(
        [str(part) for part in command],
        cwd=str(cwd),
        env={**own, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


def with_requirements(*names: str) -> set:
    """The distributions of these names and all that they need, as far as they are installed here."""
    found, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        try:
            needs = metadata.distribution(name).requires or []
        except metadata.PackageNotFoundError:  # for another platform
            continue
        if name not in found:
            found.add(name)
            waiting += [r.name for r in map(Requirement, needs) if not r.marker or r.marker.evaluate({"extra": ""})]
    return found


class Environment:
    """An empty environment with distributions of this one linked into it, pip among them."""

    def __init__(self, folder: Path, *names: str):
        venv.create(str(folder), symlinks=True)
        self.python = folder / "bin/python"
        code = "import site; print(site.getsitepackages()[0])"
        self.packages = Path(run(self.python, "-c", code, cwd=folder).strip())
        for name in with_requirements("pip", *names):
            own = metadata.distribution(name)
            for part in {file.parts[0] for file in own.files} - {"..", "__pycache__"}:
                (self.packages / part).symlink_to(own.locate_file(part))

    def pip_install(self, source: Path, *flags: str) -> str:
        """``pip install SOURCE``; the package index is a folder with setuptools alone."""
        index = self.packages.parent / "index"
        index.mkdir()
        pack("setuptools", index)
        settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": os.devnull}
        return run(self.python, "-m", "pip", "install", *flags, source, cwd=index, **settings)

    def note(self) -> str:
        """Why the C++ operators are not there."""
        (note,) = (self.packages / KERNELS).glob("_rows*")
        (line,) = note.with_suffix(".txt").read_text().splitlines()
        return line


def pack(name: str, folder: Path) -> None:
    """Makes an installed distribution the wheel that it came from."""
    own = metadata.distribution(name)
    with zipfile.ZipFile(str(folder / "{}-{}-py3-none-any.whl".format(name, own.version)), "w") as archive:
        for file in own.files:
            if ".." not in file.parts and "__pycache__" not in file.parts:
                archive.write(str(own.locate_file(file)), str(file))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the tree, as a user has it before anything is built."""
    return copy_tree(tmp_path / "source")


def copy_tree(folder: Path) -> Path:
    folder.mkdir()
    for name in ("powernorm_fairseq", "data_prep", "hydra_plugins", "scripts", "configs", "tests"):
        shutil.copytree(str(TOP / name), str(folder / name), ignore=NOT_SOURCE)
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(str(TOP / name), str(folder / name))
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The package as it is built where there is no compiler."""
    source = copy_tree(tmp_path_factory.mktemp("package") / "source")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    run(*command, "--wheel-dir", source.parent, source, cwd=source, CC="no-compiler", CXX="no-compiler")
    (result,) = source.parent.glob("*.whl")
    return result


@pytest.fixture
def unpacked(wheel: Path, tmp_path: Path) -> Path:
    with zipfile.ZipFile(str(wheel)) as archive:
        archive.extractall(str(tmp_path))
    return tmp_path


# ---------------------------------------------------------------- what is in it, and what it needs


def test_module_prints_the_user_dir_and_nothing_else(tmp_path):
    said = run(sys.executable, "-m", "powernorm_fairseq", cwd=tmp_path, PYTHONPATH=str(TOP))
    assert said == str(TOP / "powernorm_fairseq") + "\n"


def test_wheel_works_as_user_dir_from_anywhere(unpacked):
    said = run(sys.executable, "-m", "powernorm_fairseq", cwd=Path(os.sep), PYTHONPATH=str(unpacked))
    assert said == str(unpacked / "powernorm_fairseq") + "\n"
    modules = {path.relative_to(TOP) for path in (TOP / "powernorm_fairseq").rglob("*.py")}
    assert {path.relative_to(unpacked) for path in (unpacked / "powernorm_fairseq").rglob("*.py")} == modules


def test_wheel_holds_the_two_packages_and_their_data(wheel):
    with zipfile.ZipFile(str(wheel)) as archive:
        names = set(archive.namelist())
    (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
    assert {name.split("/")[0] for name in names} == {"powernorm_fairseq", "data_prep", "hydra_plugins", info}
    configs = {"powernorm_fairseq/" + str(path.relative_to(TOP)) for path in (TOP / "configs").rglob("*.yaml")}
    assert len(configs) > 15 and {name for name in names if name.endswith(".yaml")} == configs
    assert {"powernorm_fairseq/py.typed", "data_prep/demo_corpus/lexicon.tsv"} <= names
    assert {name for name in names if name.startswith("data_prep/") and name.endswith(".py")} == {
        str(path.relative_to(TOP)) for path in (TOP / "data_prep").rglob("*.py")
    }


def test_wheel_prepares_data_without_torch_and_fairseq(unpacked, tmp_path):
    code = "import sys; sys.modules.update(torch=None, fairseq=None); from data_prep.__main__ import main; "
    words = ["demo", "--pairs", "50", "--bpe-tokens", "60", "--workers", "2", "--out", str(tmp_path / "data")]
    run(sys.executable, "-c", code + "sys.exit(main({}))".format(words), cwd=Path(os.sep), PYTHONPATH=str(unpacked))
    assert (tmp_path / "data" / "bin" / "train.de-en.en.idx").exists()


def test_wheel_trains_submits_and_reports_without_a_checkout(unpacked, toy_data, tmp_path):
    def powernorm(*words):
        command = [sys.executable, "-m", "powernorm_fairseq", *words]
        return run(*command, cwd=Path(os.sep), PYTHONPATH=str(unpacked), PYTHON=sys.executable)

    words = ["--preset", "demo", "--norm", "pn", "--data", toy_data, "--save-dir", tmp_path / "run", "--dry-run"]
    assert "--user-dir {}/powernorm_fairseq".format(unpacked) in powernorm("train", *words)
    job = powernorm("submit", *words)
    assert "#SBATCH --requeue" in job and "POWERNORM_JOBS={}/".format(unpacked) in job
    jobs = unpacked / "powernorm_fairseq" / "experiments" / "slurm"
    assert {"run.sh", "powernorm.sh", "train.sbatch", "report.sbatch"} <= {path.name for path in jobs.iterdir()}
    shutil.copytree(str(TOP / "results" / "europarl-lm"), str(tmp_path / "results" / "text"))
    words = ["table2", "--dataset", "text", "--seeds", "1,2", "--report-only", "--dir", tmp_path / "results"]
    assert "| PN-V" in powernorm("reproduce", *words)
    assert "<svg" in (tmp_path / "results" / "text" / "table2.html").read_text()


def test_source_archive_in_an_empty_environment(source, tmp_path):
    """The command line runs, and prepares data, where there is no checkout, no torch and no fairseq."""
    code = "from setuptools import build_meta; print(build_meta.build_sdist({!r}))".format(str(tmp_path))
    archive = tmp_path / run(sys.executable, "-W", "ignore", "-c", code, cwd=source).split()[-1]
    shutil.rmtree(str(source))
    environment = Environment(tmp_path / "environment", "tqdm", "sacremoses")
    environment.pip_install(archive, "--no-deps")
    command = environment.python.parent / "powernorm"
    assert "usage: powernorm COMMAND" in run(command, "--help", cwd=tmp_path)
    run(command, "prep", "demo", "--pairs", "50", "--bpe-tokens", "60", "--out", "data", cwd=tmp_path)
    assert (tmp_path / "data" / "bin" / "train.de-en.en.idx").exists()
    folder = Path(run(environment.python, "-m", "powernorm_fairseq", cwd=tmp_path).strip())
    assert folder.parent == environment.packages and (folder / "configs" / "norm" / "pn.yaml").exists()


def test_wheel_asks_for_torch_and_numpy_and_extras_for_the_rest(wheel):
    with zipfile.ZipFile(str(wheel)) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        about = email.message_from_string(archive.read(name).decode())
    requirements = [Requirement(text) for text in about.get_all("Requires-Dist")]

    def wanted(python: str, extra: str = "") -> dict:
        environment = {"python_version": python, "extra": extra}
        return {r.name: str(r.specifier) for r in requirements if not r.marker or r.marker.evaluate(environment)}

    for python in ("3.8", "3.10"):
        assert set(wanted(python)) == {"torch", "numpy"}
        fairseq = wanted(python, "fairseq")
        assert fairseq["fairseq"] == "==0.12.2" and fairseq["numpy"] == "<1.24" and "fairseq-fixed" not in fairseq
        assert "transformers" not in wanted(python, "test")
    for python in ("3.11", "3.13"):
        assert set(wanted(python)) == {"torch", "numpy"}
        fairseq = wanted(python, "fairseq")
        assert fairseq["fairseq-fixed"] == "==0.12.3.1" and "fairseq" not in fairseq
        assert {"pytest", "transformers", "onnxscript"} <= set(wanted(python, "test"))
    assert "sacrebleu" in wanted("3.11", "mt") and {"matplotlib", "jinja2"} <= set(wanted("3.11", "figures"))
    (everything,) = [r for r in requirements if r.name == "powernorm-fairseq"]
    assert everything.extras == {"fairseq", "mt", "figures"}
    extras = {"fairseq", "mt", "figures", "comet", "triton", "docs", "test", "all"}
    assert set(about.get_all("Provides-Extra")) == extras


# ---------------------------------------------------------------- C++ operators, or one line that says why not


@needs_new_torch
def test_wheel_without_a_compiler_uses_plain_torch_and_says_why(unpacked):
    first, second = run(sys.executable, "-m", "powernorm_fairseq.norms", cwd=unpacked).splitlines()
    start = "norms on a CPU: eager (the C++ operators were not compiled: the C++ compiler failed ("
    assert first.startswith("torch {}; {}".format(torch.__version__, start))
    assert "no-compiler" in first and "install g++" in first and "--force-reinstall --no-deps" in first
    assert second.startswith("norms on a GPU: ")


def test_installation_without_torch_leaves_a_line(source, tmp_path):
    environment = Environment(tmp_path / "environment")
    said = environment.pip_install(source, "--verbose", "--no-deps")
    assert environment.note().startswith("no torch was found when the package was built; install torch >= 2.10")
    (line,) = [line for line in said.splitlines() if "left out the C++ operators" in line]
    assert environment.note() in line


def test_installation_beside_an_old_torch_leaves_a_line(source, tmp_path):
    environment = Environment(tmp_path / "environment")
    old = environment.packages / "torch"
    old.mkdir()
    (old / "__init__.py").write_text("raise ImportError('nobody has to import it')\n")
    (old / "version.py").write_text("__version__ = '2.9.1+cpu'\n")
    environment.pip_install(source, "--no-deps")
    assert environment.note().startswith("the package was built with torch 2.9.1+cpu; install torch >= 2.10")


def test_editable_installation_leaves_the_line_and_no_older_library(source, tmp_path):
    old = source / KERNELS / ("_rows" + EXTENSION_SUFFIXES[0])
    old.touch()
    Environment(tmp_path / "environment").pip_install(source, "--no-deps", "--editable")
    assert not old.exists() and old.with_suffix(".txt").read_text().startswith("no torch was found")


def test_a_kernel_that_cannot_be_used_is_named(unpacked):
    with pytest.raises(AssertionError, match="^POWERNORM_KERNEL='cpp' cannot be used: [^\n]*\n"):
        run(sys.executable, "-m", "powernorm_fairseq.norms", cwd=unpacked, POWERNORM_KERNEL="cpp")


@pytest.mark.slow
@needs_new_torch
def test_plain_pip_install_compiles_with_the_torch_of_the_environment(source, tmp_path):
    """Without any flag: pip builds where torch cannot be imported, and it fetches none."""
    environment = Environment(tmp_path / "environment", "torch", "numpy")
    assert "Successfully installed powernorm-fairseq" in environment.pip_install(source)
    assert run(environment.python, "-c", STEP, cwd=tmp_path) == "cpp\n"
    said = run(environment.python, "-m", "powernorm_fairseq.norms", cwd=tmp_path)
    assert said.startswith("torch {}; norms on a CPU: cpp\n".format(torch.__version__))


@needs_new_torch
@pytest.mark.slow
def test_wheel_and_source_archive_carry_the_operators(source, tmp_path):
    """What `make wheel` runs."""
    run("bash", source / "scripts/wheel.sh", sys.executable, cwd=tmp_path)
    (built,), (archive,) = (source / "dist").glob("*.whl"), (source / "dist").glob("*.tar.gz")
    assert archive.name == "powernorm_fairseq-{}.tar.gz".format(built.name.split("-")[1])
    with tarfile.open(str(archive)) as opened:
        assert not [name for name in opened.getnames() if name.split("/")[1:2] in (["tests"], ["configs"])]
    with zipfile.ZipFile(str(built)) as opened:
        names = opened.namelist()
    (library,) = [name for name in names if "/_rows" in name]
    assert library.startswith(str(KERNELS)) and library.endswith(".so")
    assert not [name for name in names if name.startswith(("tests", "configs"))]
    environment = Environment(tmp_path / "environment", "torch", "numpy")
    environment.pip_install(built)
    assert run(environment.python, "-c", STEP, cwd=tmp_path) == "cpp\n"
    assert "prep " in run(environment.python.parent / "powernorm", "--help", cwd=tmp_path)


@needs_new_torch
def test_a_wheel_without_operators_is_refused_by_its_recipe(source, tmp_path):
    with pytest.raises(AssertionError, match="wheel: the C.. operators are not in it: the C.. compiler failed"):
        run("bash", source / "scripts/wheel.sh", sys.executable, cwd=tmp_path, CC="no-compiler", CXX="no-compiler")
