"""What a norm makes of a GPU's memory: bytes, GB/s, and the share of the device's peak.

A norm is bound by memory, so this is the measure that GPUs can be compared by. Bytes are those that cannot be spared:
a forward reads x and writes y, a backward reads x and dy and writes dx; what is read twice counts once. Times are the
benchmark's, from the call until the device is done, so launches count too.
"""

from typing import Any, Dict, List, Optional

import torch

from benchmarks import interleave

TRIPS = {"forward": 2, "backward": 3, "training": 5, "frozen": 5, "inference": 2}  # rows in or out, for each part


def peak(device: str) -> Optional[float]:
    """Bytes per second between a GPU and its memory, as its clock and its bus have it; None if that is not known."""
    if torch.device(device).type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    clock, bits = (getattr(properties, f"memory_{name}", 0) for name in ("clock_rate", "bus_width"))
    return 2 * 1e3 * clock * bits / 8 or None  # kHz, two transfers for each tick, bits


def bytes_moved(shape: str, dtype: str, part: str) -> int:
    """Bytes of a ``part`` for a shape like 4096x512/4."""
    positions, width = shape.split("/")[0].split("x")
    return TRIPS[part] * int(positions) * int(width) * torch.empty(0, dtype=getattr(torch, dtype)).element_size()


def section(facts: Dict[str, Any]) -> List[str]:
    """The table as Markdown, for ``markdown`` of norms.py; nothing where the peak is not known, as on a CPU."""
    if not facts.get("peak"):
        return []
    threads, lines = min(facts["threads"]), []
    parts = [part for part in TRIPS if part in facts["results"][0]["ms"]]
    for row in (row for row in facts["results"] if row["threads"] == threads):
        line = [row["shape"], row["dtype"], row["norm"], row["layer_scale"] or "-", row["kernel"], row.get("mask", "-")]
        for part in parts:
            size = bytes_moved(row["shape"], row["dtype"], part)
            speed = size / (1e-3 * row["ms"][part])
            line.append(f"{size / 1e6:.1f} MB, {speed / 1e9:.0f} GB/s, {100 * speed / facts['peak']:.0f} %")
        lines.append(line)
    header = ["shape", "type", "norm", "layer-scale", "kernel", "mask", *parts]
    title = f"**Bytes moved, GB/s and share of the device's peak, {facts['peak'] / 1e9:.0f} GB/s**"
    return [title, interleave.table(header, lines, text_columns=6)]
