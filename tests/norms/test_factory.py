"""Names, settings, and what is said of bad ones."""

import subprocess
import sys

import pytest
import torch

from powernorm_fairseq import norms
from powernorm_fairseq.norms import build_norm, norm_names, norm_options


def test_known_names():
    assert norm_names()[:8] == ["ln", "rms", "gn", "bn", "brn", "mabn", "pnv", "pn"]
    assert norm_names()[8:] == ["rbn", "un", "prepbn", "dyt", "derf", "scalenorm"]
    assert isinstance(build_norm("pn", 8), norms.PowerNorm)
    assert isinstance(build_norm("pnv", 8), norms.PowerNormV)


def test_unknown_norm_names_the_known_ones():
    with pytest.raises(ValueError, match="'pnorm' is not known; choose from ln, rms, gn, bn, .*, scalenorm"):
        build_norm("pnorm", 8)


def test_unknown_option_names_the_known_ones():
    with pytest.raises(ValueError, match="option='alpha' is not known; choose from .*alpha_bwd, alpha_fwd"):
        build_norm("pn", 8, alpha=0.9)


@pytest.mark.parametrize("name", norm_names())
@pytest.mark.parametrize(
    "option, message",
    [
        ({"alpha_fwd": 1.0}, "alpha_fwd=1.0 is out of range"),
        ({"alpha_bwd": 0.0}, "alpha_bwd=0.0 is out of range"),
        ({"momentum": 1.5}, "momentum=1.5 is out of range"),
        ({"groups": 3}, "groups=3 does not divide the width 8"),
        ({"groups": 0}, "groups=0 is too small"),
        ({"layer_scale": "token"}, "layer_scale='token' is not known; choose from none, layer, head"),
        ({"recipe": "mine"}, "recipe='mine' is not known; choose from paper, release"),
        ({"warmup_updates": -1}, "warmup_updates=-1 is too small"),
        ({"eps": 0.0}, "eps=0.0 must be greater than 0"),
    ],
)
def test_bad_setting_is_one_clear_sentence(name, option, message):
    with pytest.raises(ValueError, match=message):
        build_norm(name, 8, **option)
    if next(iter(option)) in norm_options(name):
        with pytest.raises(ValueError, match=message):
            norms.NORMS[name](8, **option)


@pytest.mark.parametrize("name", norm_names())
def test_bad_input_is_one_clear_sentence(name):
    norm = build_norm(name, 8, updates=5)
    x = torch.randn(2, 3, 8)
    for bad, mask, message in [
        (torch.randn(2, 3, 7), None, r"shape \(2, 3, 7\): the last dimension must be 8"),
        (torch.tensor(1.0), None, "the last dimension must be 8"),
        (torch.ones(2, 8, dtype=torch.int64), None, "floating-point"),
        (x, torch.zeros(3, 2, dtype=torch.bool), r"padding_mask of shape \(3, 2\).* it must be \(2, 3\)"),
        (x, torch.zeros(2, 3, 8, dtype=torch.bool), r"it must be \(2, 3\)"),
        (x, torch.zeros(2, 3), "padding_mask of type torch.float32: it must be torch.bool"),
        (x, torch.zeros(2, 3, dtype=torch.uint8), "torch.bool"),
    ]:
        with pytest.raises(ValueError, match=message):
            norm(bad, mask)


@pytest.mark.parametrize("name", norm_names())
def test_printed_form_has_every_setting(name):
    printed = repr(build_norm(name, 8, groups=2, layer_scale="head", warmup_updates=7, updates=9, alpha_bwd=0.95))
    for option in norm_options(name):
        if option not in ("process_group", "device", "dtype"):
            assert option in printed


def test_default_momentum_follows_the_recipe():
    assert build_norm("bn", 8).momentum == 0.1
    assert build_norm("bn", 8, recipe="release").momentum == 0.05
    assert build_norm("mabn", 8).momentum == 0.02


def test_norms_need_no_fairseq():
    code = (
        "import sys, logging, torch\n"
        "sys.modules['fairseq'] = None\n"
        "before, loggers = set(sys.modules), set(logging.root.manager.loggerDict)\n"
        "import powernorm_fairseq.norms as n\n"
        "new = {m for m in set(sys.modules) - before if not m.startswith('powernorm_fairseq')}\n"
        "assert new <= {'weakref', 'inspect', 'contextlib', 'pkgutil'}, new\n"
        "assert set(logging.root.manager.loggerDict) == loggers\n"
        "print(n.build_norm('pn', 4)(torch.ones(2, 4)).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "torch.Size([2, 4])"
