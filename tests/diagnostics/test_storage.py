"""The file of records: what is written is read, torn lines and earlier lives do not count."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from powernorm_fairseq.diagnostics import storage
from powernorm_fairseq.diagnostics.storage import Layer, Writer

LAYERS = [Layer("first", "BatchNorm", 4), Layer("second", "PowerNorm", 4)]


def numbers(value):
    return {"first": {"dist_mu": value, "tokens": 7}, "second": {"nu_max": 2 * value, "tokens": 7}}


def updates(path, kind="train"):
    return [record.update for record in storage.read(path).records if record.kind == kind]


def test_what_is_written_is_read(tmp_path):
    writer = Writer(tmp_path / "run" / storage.FILE, LAYERS, interval=50)
    writer.write(50, "train", numbers(0.123456789), {"first": [0.5, 1.25]}, loss=3.5)
    writer.write(50, "valid", {"first": {"tid_mean": 1e-7}})
    run = storage.read(tmp_path / "run")
    assert run.layers == LAYERS and run.header["interval"] == 50
    train, valid = run.records
    assert train.columns == {"dist_mu": [0.12346, None], "tokens": [7, 7], "nu_max": [None, 0.24691]}
    assert (train.vectors, train.extra) == ({"first": [0.5, 1.25]}, {"loss": 3.5})
    assert (valid.kind, valid.columns) == ("valid", {"tid_mean": [1e-7, None]})
    assert run.column("nu_max", 1) == [(50, 0.24691)] and run.column("nu_max", 0) == []


def test_numbers_that_are_not_finite(tmp_path):
    file = tmp_path / "file"
    Writer(file, LAYERS).write(1, "train", {"first": {"a": math.nan, "b": math.inf, "c": -math.inf}})
    columns = storage.read(file).records[0].columns
    assert math.isnan(columns["a"][0]) and columns["b"][0] == math.inf and columns["c"][0] == -math.inf
    for line in file.read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # plain JSON, for other programs


def test_resumed_run_supersedes_later_records(tmp_path):
    file = tmp_path / "file"
    first = Writer(file, LAYERS)
    for update in (10, 20, 30):
        first.write(update, "train", numbers(1.0))
    first.write(30, "valid", numbers(1.0))
    second = Writer(file, LAYERS, update=20)
    assert updates(file) == [10, 20] and updates(file, "valid") == []
    second.write(30, "train", numbers(2.0))
    run = storage.read(file)
    assert [record.columns["dist_mu"][0] for record in run.records] == [1.0, 1.0, 2.0]
    Writer(file, LAYERS[:1])  # from the start, with another model
    assert storage.read(file).records == [] and storage.read(file).layers == LAYERS[:1]


def test_file_cut_anywhere_loses_what_is_cut_and_goes_on(tmp_path):
    file = tmp_path / "file"
    writer = Writer(file, LAYERS)
    ends = [file.stat().st_size]
    for update in (1, 2):
        writer.write(update, "train", numbers(0.5))
        ends.append(file.stat().st_size)
    content = file.read_bytes()
    for length in range(ends[0], ends[2] + 1):
        file.write_bytes(content[:length])
        whole = [update for update in (1, 2) if length >= ends[update] - 1]  # the line break may be missing
        assert updates(file) == whole
        Writer(file, LAYERS, update=2).write(3, "train", numbers(0.5))
        assert updates(file) == [*whole, 3]


def test_killed_writer_leaves_whole_lines(tmp_path):
    """SIGKILL at any moment, several times; each life goes on after the last record that can be read."""
    file = tmp_path / "file"
    program = (
        "import sys, time; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import storage\n"
        "after = int(sys.argv[3]); writer = storage.Writer(Path(sys.argv[2]), [storage.Layer('a', 'b', 1)], after)\n"
        "for update in range(after + 1, 9**9):\n"
        "    writer.write(update, 'train', {'a': {str(i): update for i in range(500)}}); time.sleep(0.001)"
    )
    after = 0
    for _ in range(4):
        command = [sys.executable, "-c", program, str(Path(storage.__file__).parent), str(file), str(after)]
        size = file.stat().st_size if file.exists() else 0
        process = subprocess.Popen(command)
        while not file.exists() or file.stat().st_size < size + 50000:  # some ten records
            time.sleep(0.001)
            assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        after = updates(file)[-1]
    assert updates(file) == list(range(1, after + 1))
    assert all(record.columns["7"] == [float(f"{record.update:.5g}")] for record in storage.read(file).records)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_full_disk_is_an_error_and_the_next_record_can_be_written(tmp_path):
    file = tmp_path / "file"
    writer = Writer(file, LAYERS)
    writer.path = Path("/dev/full")
    with pytest.raises(OSError):
        writer.write(1, "train", numbers(1.0))
    writer.path = file
    writer.write(2, "train", numbers(1.0))
    assert updates(file) == [2]


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="missing; was the training run with --norm-stats"):
        storage.read(tmp_path)
    (tmp_path / "text").write_text("{}\nhello\n")
    with pytest.raises(ValueError, match="no header"):
        storage.read(tmp_path / "text")
    (tmp_path / "newer").write_text('{"format": 99, "after": 0, "layers": []}\n')
    with pytest.raises(ValueError, match="format 99; this version reads 1"):
        storage.read(tmp_path / "newer")
