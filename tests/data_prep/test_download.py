"""Downloads from a real server that drops connections, ignores ranges and lies."""

import hashlib
import random
from pathlib import Path
from typing import Iterator

import pytest

from data_prep import download as module
from data_prep.download import SUMS, Archive, download, read_sums, verify
from data_prep.errors import DataPrepError
from tests.data_prep.http_server import FaultyServer

DATA = bytes(random.Random(1).getrandbits(8) for _ in range(300_000))
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    monkeypatch.setattr(module, "PAUSE", 0.01)
    with FaultyServer({"a.tgz": DATA}) as running:
        yield running


def archive(*urls: str, **known: object) -> Archive:
    return Archive("a.tgz", urls, **known)


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
    path = download(archive(server.url + "/a.tgz", size=len(DATA), sha256=SHA), tmp_path)
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
    assert download(archive(server.url + "/a.tgz", sha256=SHA), tmp_path).read_bytes() == DATA


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


def test_another_file_of_that_name_is_refused(server: FaultyServer, tmp_path: Path) -> None:
    server.files["bad/a.tgz"] = DATA[:-1] + b"?"
    good = archive(server.url + "/bad/a.tgz", server.url + "/a.tgz", sha256=SHA)
    assert download(good, tmp_path / "1").read_bytes() == DATA
    with pytest.raises(DataPrepError, match="SHA-256"):
        download(archive(server.url + "/bad/a.tgz", sha256=SHA), tmp_path / "2")
    assert not (tmp_path / "2/a.tgz").exists()


def test_a_file_of_another_size_is_refused(server: FaultyServer, tmp_path: Path) -> None:
    with pytest.raises(DataPrepError, match="should have 5"):
        download(archive(server.url + "/a.tgz", size=5), tmp_path)


def test_a_file_changed_after_the_download_is_refused(server: FaultyServer, tmp_path: Path) -> None:
    path = download(archive(server.url + "/a.tgz"), tmp_path)
    path.write_bytes(DATA[:-1] + b"?")
    with pytest.raises(DataPrepError, match="is not the archive it should be.*SHA256SUMS"):
        download(archive(server.url + "/a.tgz"), tmp_path)


def test_a_present_file_is_verified(tmp_path: Path) -> None:
    path = tmp_path / "a.tgz"
    with pytest.raises(DataPrepError, match="no such file"):
        verify(archive(), path)
    path.write_bytes(DATA)
    assert verify(archive(sha256=SHA, size=len(DATA)), path) == SHA
    with pytest.raises(DataPrepError, match="should have 7"):
        verify(archive(size=7), path)
    with pytest.raises(DataPrepError, match="publisher"):
        verify(archive(sha256="0" * 64), path)
