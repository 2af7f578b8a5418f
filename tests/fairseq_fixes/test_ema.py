"""--store-ema averages weights and copies counters, through the real command line."""

import pytest

pytest.importorskip("fairseq")

from powernorm_fairseq.safe_load import load_checkpoint
from tests.fairseq_fixes.commands import train


def test_counters_are_copied(toy_data, tmp_path):
    train(toy_data, tmp_path, "--encoder-norm", "pn", "--store-ema", "--ema-decay", 0.5, "--max-update", 4)
    state = load_checkpoint(tmp_path / "checkpoint_last.pt")
    average = state["extra_state"]["ema"]
    key = "encoder.layers.0.final_layer_norm."
    assert average[key + "num_updates"] == state["model"][key + "num_updates"] == 4
    assert not average[key + "weight"].equal(state["model"][key + "weight"])
