"""How the package becomes a plugin: what importing it does, and every way in which fairseq may come to load it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fairseq")

from powernorm_fairseq import fairseq_fixes
from tests.fairseq_fixes.commands import ROOT, environment

USER_DIR = ROOT / "powernorm_fairseq"
PATCHED = """
import fairseq.checkpoint_utils as c, fairseq.data.data_utils as d
def patched():
    return "powernorm" in c.load_checkpoint.__code__.co_filename + d.batch_by_size.__code__.co_filename
def registered():
    from fairseq.models import ARCH_MODEL_REGISTRY
    return "transformer_pn_iwslt_de_en" in ARCH_MODEL_REGISTRY
def load(folder):
    import argparse
    from fairseq import utils
    utils.import_user_module(argparse.Namespace(user_dir=str(folder)))
"""


def run(code, folder=ROOT, **variables):
    return subprocess.run(
        [sys.executable, "-c", code], cwd=str(folder), env=environment(**variables), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip


def check(code, **more):
    done = run(code, **more)
    assert done.returncode == 0, done.stdout.decode()[-3000:]


def test_the_package_imports_neither_torch_nor_fairseq():
    check("import sys, powernorm_fairseq; assert not {'torch', 'fairseq', 'numpy'} & set(sys.modules)")


@pytest.mark.parametrize("module", ["norms", "diagnostics", "safe_load", "checkpoints", "fairseq_fixes"])
def test_its_parts_import_no_fairseq_and_change_no_logger(module):
    check(
        "import logging, sys\n"
        f"import powernorm_fairseq.{module}\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('fairseq', 'fairseq_cli', 'hydra')]\n"
        "assert not logging.getLogger().handlers\n"
    )


def test_with_fairseq_loaded_it_registers_its_models_and_mends_nothing():
    check(PATCHED + "import powernorm_fairseq.norms\nassert registered() and not patched()")


@pytest.mark.parametrize("before", ["", "import powernorm_fairseq\n", "import fairseq, powernorm_fairseq\n"])
def test_fairseq_loads_the_plugin_whatever_was_imported_before(before):
    code = before + PATCHED + f"load({str(USER_DIR)!r})\nassert registered() and patched()\n"
    check(code + f"load({str(USER_DIR)!r})")


@pytest.mark.parametrize("before", ["", "import powernorm_fairseq\n"])
@pytest.mark.parametrize("name", ["norms_by_another_name", "powernorm_fairseq"])
def test_a_link_is_the_same_plugin(name, before, tmp_path):
    (tmp_path / name).symlink_to(USER_DIR)
    check(
        before + PATCHED + f"load({str(tmp_path / name)!r})\nassert registered() and patched()\n"
        f"load({str(USER_DIR)!r})\n"
        "import powernorm_fairseq.models.transformer as t, fairseq.models as m\n"
        "assert m.MODEL_REGISTRY['powernorm_transformer'] is t.PowerNormTransformer",
        folder=tmp_path,
    )


def test_a_link_works_where_the_package_is_not_installed(tmp_path):
    (tmp_path / "pn").symlink_to(USER_DIR)
    done = run(PATCHED + "load('pn')\nassert registered() and patched()", folder=tmp_path, PYTHONPATH="")
    assert done.returncode == 0, done.stdout.decode()[-3000:]


# Switching fixes off


def test_fixes_can_be_left_out():
    code = PATCHED + f"load({str(USER_DIR)!r})\nassert registered() and not patched()"
    check(code, POWERNORM_FIXES="none")
    others = [name for name in fairseq_fixes.FIXES if name != "last_batch"]
    check(
        PATCHED + f"load({str(USER_DIR)!r})\n"
        "assert 'powernorm' in d.batch_by_size.__code__.co_filename\n"
        "assert 'powernorm' not in c.load_checkpoint.__code__.co_filename",
        POWERNORM_FIXES=",".join("-" + name for name in others),
    )


def test_every_fix_has_its_file_and_its_reason():
    folder = Path(fairseq_fixes.__file__).parent
    assert {file.stem for file in folder.glob("[a-z]*.py")} == set(fairseq_fixes.FIXES)
    assert all((folder / f"{name}.py").read_text().startswith('"""') for name in fairseq_fixes.FIXES)


@pytest.mark.parametrize("setting", ["patience", "-patients", "all"])
def test_unknown_fixes_are_refused(setting):
    with pytest.raises(ValueError, match=f"POWERNORM_FIXES={setting}: {setting} is not known; choose none, or from -"):
        fairseq_fixes.chosen(setting)
    assert "patience" not in fairseq_fixes.chosen("-patience,-stop")
    assert fairseq_fixes.chosen("") == fairseq_fixes.FIXES
