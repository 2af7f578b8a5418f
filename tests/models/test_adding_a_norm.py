"""What docs/adding-a-norm.md says: a norm from a user's own file, and what a norm in the package consists of."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY

from powernorm_fairseq.labels import LABELS, TOKEN_NORMS
from powernorm_fairseq.models import architectures  # noqa: F401  registers the presets
from powernorm_fairseq.norms import NORMS, BatchStatisticsNorm, Norm, build_norm, norm_names, register_norm
from powernorm_fairseq.safe_load import load_checkpoint
from tests.models.training import RECIPE, SMALL, Run

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adding-a-norm.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent


def run(command, **more):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)


def test_a_norm_from_a_users_own_file_trains_and_generates(toy_data, tmp_path):
    """The page's own plugin, by fairseq's own programs; the package stays as it is."""
    plugin = tmp_path / "my_norms"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(re.search(r"```python\n(.*?)```", PAGE, re.S).group(1))
    train = [BIN / "fairseq-train", toy_data, "--user-dir", plugin, "--arch", "powernorm_tiny", *SMALL, *RECIPE]
    train += ["--save-dir", tmp_path / "save", "--max-update", 2]
    done = run([*train, "--encoder-norm", "my_norm"])
    assert done.returncode == 0, done.stderr[-3000:]
    file = tmp_path / "save" / "checkpoint_last.pt"
    assert load_checkpoint(file)["cfg"]["model"]["encoder_norm"] == "my_norm"
    assert "MyNorm" in done.stdout + done.stderr  # fairseq prints the model
    generate = [BIN / "fairseq-generate", toy_data, "--user-dir", plugin, "--path", file, "--cpu", "--beam", 2]
    done = run(generate)
    assert done.returncode == 0 and "Generate test with beam=2" in done.stdout, done.stderr[-3000:]
    done = run([*train, "--encoder-norm", "your_norm"])
    assert done.returncode == 2 and "invalid choice: 'your_norm'" in done.stderr and "my_norm" in done.stderr


def test_registered_norms_are_built_by_name_and_refused_with_a_sentence():
    class Half(Norm):
        def _normalise(self, x, call):
            return x / 2

    try:
        assert register_norm("half")(Half) is Half
        assert torch.equal(build_norm("half", 4)(torch.ones(2, 4)), torch.full((2, 4), 0.5))
        with pytest.raises(ValueError, match="norm='half' is registered already, as .*Half"):
            register_norm("half")
    finally:
        NORMS.pop("half", None)
    with pytest.raises(TypeError, match="has to be a class derived from powernorm_fairseq.norms.Norm"):
        register_norm("linear")(torch.nn.Linear)
    assert "linear" not in NORMS


def test_every_norm_of_the_package_has_all_that_the_page_names():
    for name in norm_names():
        assert name in LABELS, f"{name} has no label"
        assert (ROOT / "configs" / "norm" / f"{name}.yaml").exists()
        if name != "rms":  # no row of any table
            for size in ("iwslt_de_en", "wmt_en_de_big"):
                assert f"transformer_{name}_{size}" in ARCH_MODEL_REGISTRY
    assert set(LABELS) == set(norm_names())
    assert {name for name in NORMS if not issubclass(NORMS[name], BatchStatisticsNorm)} == TOKEN_NORMS


def test_the_page_names_files_and_names_that_exist():
    for path in re.findall(r"`((?:powernorm_fairseq|tests|configs)/[\w./]+)`", PAGE):
        assert (ROOT / path).exists(), path
    assert '"scalenorm": ScaleNorm' in (ROOT / "powernorm_fairseq/norms/factory.py").read_text()
    assert '"scalenorm": "ScaleNorm"' in (ROOT / "powernorm_fairseq/labels.py").read_text()


def test_the_formula_on_the_page_is_that_of_the_package(toy_data):
    """The function of step 1, as the page has it."""
    code = re.search(r"   ```python\n(.*?)   ```", PAGE, re.S).group(1)
    space = {"functional": __import__("powernorm_fairseq.norms.functional", fromlist=["_"])}
    exec("\n".join(line[3:] for line in code.splitlines()), space)
    x = torch.randn(5, 6)
    torch.testing.assert_close(space["scale_norm"](x, None, 1e-5, 6**0.5), build_norm("scalenorm", 6)(x))
    assert len(Run(toy_data, "--encoder-norm", "scalenorm").norms()) == 5
