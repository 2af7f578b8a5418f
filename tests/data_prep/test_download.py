"""Downloads from a real server that drops connections, ignores ranges and lies."""

import hashlib
import io
import random
import tarfile
from pathlib import Path
from typing import Iterator

import pytest

from data_prep import download as module
from data_prep.download import SUMS, Archive, download, read_sums, verify
from data_prep.errors import DataPrepError
from tests.data_prep.http_server import FaultyServer


def make_tgz(seed: int) -> bytes:
    """An archive of noise, 300 kB long."""
    data = random.Random(seed).getrandbits(8 * 300_000).to_bytes(300_000, "big")
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        info = tarfile.TarInfo("noise")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


DATA = make_tgz(1)
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    monkeypatch.setattr(module, "PAUSE", 0.01)
    with FaultyServer({"a.tgz": DATA}) as running:
        yield running


def archive(*urls: str) -> Archive:
    return Archive("a.tgz", urls)


def test_the_file_arrives_whole_and_its_checksum_is_kept(server: FaultyServer, tmp_path: Path) -> None:
    path = download(archive(server.url + "/a.tgz"), tmp_path / "new/folder")
    assert path.read_bytes() == DATA
    assert read_sums(path.parent) == {"a.tgz": SHA}
    assert sorted(file.name for file in path.parent.iterdir()) == [SUMS, "a.tgz"]


def test_a_file_that_is_there_is_not_fetched_again(server: FaultyServer, tmp_path: Path) -> None:
    for _ in range(2):
        download(archive(server.url + "/a.tgz"), tmp_path)
    assert len(server.requests) == 1


def test_dropped_connections_are_resumed(server: FaultyServer, tmp_path: Path) -> None:
    server.drop_after = [100_000, 50_000, 0, 70_000]
    path = download(archive(server.url + "/a.tgz"), tmp_path)
    assert path.read_bytes() == DATA
    assert server.requests[0] is None
    assert server.requests[1] == "bytes=100000-"
    assert server.requests[2] == "bytes=150000-"


def test_a_later_run_resumes_too(server: FaultyServer, tmp_path: Path) -> None:
    server.drop_after = [100_000] + [0] * 10
    with pytest.raises(DataPrepError, match="broke off"):
        download(archive(server.url + "/a.tgz"), tmp_path)
    assert not (tmp_path / "a.tgz").exists()
    server.drop_after = []
    server.requests.clear()
    assert download(archive(server.url + "/a.tgz"), tmp_path).read_bytes() == DATA
    assert server.requests == ["bytes=100000-"]


def test_a_server_without_ranges_sends_the_file_again(server: FaultyServer, tmp_path: Path) -> None:
    server.ranges = False
    server.drop_after = [100_000, 200_000]
    assert download(archive(server.url + "/a.tgz"), tmp_path).read_bytes() == DATA


def test_a_file_that_changed_in_between_is_not_mixed(server: FaultyServer, tmp_path: Path) -> None:
    server.files["a.tgz"] = DATA[::-1]
    server.drop_after = [100_000] + [0] * 10
    with pytest.raises(DataPrepError):
        download(archive(server.url + "/a.tgz"), tmp_path)
    server.files["a.tgz"] = DATA
    server.drop_after = []
    assert download(archive(server.url + "/a.tgz"), tmp_path).read_bytes() == DATA


def test_a_part_from_another_address_is_not_continued(server: FaultyServer, tmp_path: Path) -> None:
    (tmp_path / "a.tgz.part").write_bytes(b"something else")
    assert download(archive(server.url + "/a.tgz"), tmp_path).read_bytes() == DATA


def test_a_part_longer_than_the_file_starts_again(server: FaultyServer, tmp_path: Path) -> None:
    server.drop_after = [100_000] + [0] * 10
    with pytest.raises(DataPrepError):
        download(archive(server.url + "/a.tgz"), tmp_path)
    server.drop_after = []
    with open(str(tmp_path / "a.tgz.part"), "ab") as stream:
        stream.write(DATA + DATA)
    assert download(archive(server.url + "/a.tgz"), tmp_path).read_bytes() == DATA


def test_mirrors_are_tried_in_turn(server: FaultyServer, tmp_path: Path) -> None:
    urls = (server.url + "/gone.tgz", "http://127.0.0.1:9/a.tgz", server.url + "/a.tgz")
    assert download(archive(*urls), tmp_path).read_bytes() == DATA


def test_mirrors_of_the_user_come_first(server: FaultyServer, tmp_path: Path) -> None:
    download(archive("http://127.0.0.1:9/a.tgz"), tmp_path, [server.url + "/"])
    assert len(server.requests) == 1


def test_a_busy_server_is_asked_again(server: FaultyServer, tmp_path: Path) -> None:
    server.statuses = [503, 429]
    assert download(archive(server.url + "/a.tgz"), tmp_path).read_bytes() == DATA


def test_all_failures_are_named(server: FaultyServer, tmp_path: Path) -> None:
    with pytest.raises(DataPrepError, match=r"a\.tgz could not be fetched .*gone.*404.*lost.*404"):
        download(archive(server.url + "/gone", server.url + "/lost"), tmp_path)
    assert not (tmp_path / "a.tgz").exists()


@pytest.mark.parametrize("bad", [b"<html>Please log in</html>", DATA[:150_000], b""])
def test_what_is_no_archive_is_not_taken_and_the_next_address_is_tried(bad: bytes, server, tmp_path: Path) -> None:
    server.lengths = False  # so that nothing but the archive itself tells that half of it is missing
    server.files["bad/a.tgz"] = bad
    with pytest.raises(DataPrepError, match="bad/a.tgz: it is no whole tgz file"):
        download(archive(server.url + "/bad/a.tgz"), tmp_path)
    assert not list(tmp_path.iterdir())
    assert download(archive(server.url + "/bad/a.tgz", server.url + "/a.tgz"), tmp_path).read_bytes() == DATA
    assert read_sums(tmp_path) == {"a.tgz": SHA}


def test_a_range_of_other_bytes_is_noticed_and_all_is_fetched_again(server: FaultyServer, tmp_path: Path) -> None:
    server.drop_after, server.wrong_bytes = [100_000], True
    assert download(archive(server.url + "/a.tgz"), tmp_path).read_bytes() == DATA
    assert server.requests == [None, "bytes=100000-", None]


def test_a_wrong_checksum_of_an_earlier_file_can_be_put_right(tmp_path: Path) -> None:
    (tmp_path / "a.tgz").write_bytes(DATA)
    (tmp_path / SUMS).write_text("0" * 64 + "  a.tgz\n")
    with pytest.raises(DataPrepError, match="or delete its line there if it is the right one"):
        verify(tmp_path / "a.tgz")


def test_a_full_disk_is_called_so(server: FaultyServer, tiny_disk: Path) -> None:
    message = rf"no space left for .*a.tgz.part: it needs {len(DATA):,} bytes and [0-9,]+ bytes are free in"
    with pytest.raises(DataPrepError, match=message):
        download(archive(server.url + "/a.tgz"), tiny_disk)
    assert len(server.requests) == 1


def test_a_file_changed_after_the_download_is_refused(server: FaultyServer, tmp_path: Path) -> None:
    path = download(archive(server.url + "/a.tgz"), tmp_path)
    path.write_bytes(DATA[:-1] + b"?")
    with pytest.raises(DataPrepError, match="is not the archive it should be.*SHA256SUMS"):
        download(archive(server.url + "/a.tgz"), tmp_path)


def test_a_present_file_is_verified(tmp_path: Path) -> None:
    path = tmp_path / "a.tgz"
    with pytest.raises(DataPrepError, match="no such file"):
        verify(path)
    path.write_bytes(DATA)
    assert verify(path) == SHA
