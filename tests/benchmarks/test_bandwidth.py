"""Bytes, GB/s and the share of a GPU's peak, from timings."""

import types

import pytest
import torch

from benchmarks import bandwidth


@pytest.mark.parametrize("part, trips", [("forward", 2), ("backward", 3), ("training", 5), ("inference", 2)])
def test_bytes_are_rows_in_and_out(part, trips):
    assert bandwidth.bytes_moved("4096x512/4", "float32", part) == trips * 4096 * 512 * 4
    assert bandwidth.bytes_moved("4096x512/4", "bfloat16", part) == trips * 4096 * 512 * 2


def test_peak_comes_from_clock_and_bus(monkeypatch):
    properties = types.SimpleNamespace(memory_clock_rate=1_593_000, memory_bus_width=5120)  # an A100's
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert bandwidth.peak("cuda") == pytest.approx(2.039e12, rel=1e-3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(name="old torch"))
    assert bandwidth.peak("cuda") is None
    assert bandwidth.peak("cpu") is None


def test_table_has_speed_and_share():
    row = {"shape": "1000x100/4", "dtype": "float32", "norm": "pn", "layer_scale": "head", "kernel": "triton"}
    row.update(threads=1, ms={"forward": 0.001, "backward": 0.004, "training": 0.005, "inference": 0.002})
    other = {**row, "threads": 2}
    facts = {"peak": 1.6e12, "threads": [1, 2], "results": [row, other]}
    title, table = bandwidth.section(facts)
    assert "1600 GB/s" in title
    header, _, line = table.splitlines()
    assert "forward | backward | training | inference" in header
    assert "| 0.8 MB, 800 GB/s, 50 % | 1.2 MB, 300 GB/s, 19 % | 2.0 MB, 400 GB/s, 25 % | 0.8 MB, 400 GB/s" in line
    assert bandwidth.section({**facts, "peak": None}) == []
    assert bandwidth.section({"threads": [1], "results": [row]}) == []  # numbers written before there was a peak
