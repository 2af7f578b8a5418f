"""Archives that are damaged or hostile."""

import io
import tarfile
import zipfile
from pathlib import Path
from typing import Callable

import pytest

from data_prep.errors import DataPrepError
from data_prep.extract import check_archive, extract


def make_archive(path: Path, change: Callable[[tarfile.TarFile], None] = lambda tar: None) -> Path:
    with tarfile.open(str(path), "w:gz") as tar:
        add(tar, "corpus/a.de", b"eins\n" * 5000)
        change(tar)
        add(tar, "corpus/a.en", b"one\n" * 5000)
    return path


def add(tar: tarfile.TarFile, name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> None:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data), kind, link
    tar.addfile(info, io.BytesIO(data))


def test_only_the_wanted_files_are_written(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "a.tgz")
    assert extract(archive, tmp_path / "out", ["corpus/a.en"]) == [tmp_path / "out/corpus/a.en"]
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["corpus", "a.en"]
    assert (tmp_path / "out/corpus/a.en").read_bytes() == b"one\n" * 5000


def test_a_leading_dot_is_no_other_place(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "a.tgz", lambda tar: add(tar, "./corpus/b.de", b"b"))
    extract(archive, tmp_path / "out", ["corpus/b.de"])
    assert (tmp_path / "out/corpus/b.de").read_bytes() == b"b"


@pytest.mark.parametrize(
    ("name", "kind", "link"),
    [
        ("../evil", tarfile.REGTYPE, ""),
        ("corpus/../../evil", tarfile.REGTYPE, ""),
        ("/tmp/evil", tarfile.REGTYPE, ""),
        ("..\\evil", tarfile.REGTYPE, ""),
        ("c:/evil", tarfile.REGTYPE, ""),
        ("corpus/link", tarfile.SYMTYPE, "../../etc/passwd"),
        ("corpus/link", tarfile.SYMTYPE, "/etc/passwd"),
        ("corpus/hard", tarfile.LNKTYPE, "../a"),
        ("corpus/hard", tarfile.LNKTYPE, "/etc/passwd"),
        ("corpus/device", tarfile.CHRTYPE, ""),
        ("corpus/fifo", tarfile.FIFOTYPE, ""),
    ],
)
def test_members_that_lead_outside_are_refused(tmp_path: Path, name: str, kind: bytes, link: str) -> None:
    archive = make_archive(tmp_path / "a.tgz", lambda tar: add(tar, name, kind=kind, link=link))
    with pytest.raises(DataPrepError, match="refusing to unpack"):
        extract(archive, tmp_path / "inside/out", ["corpus/a.de", "corpus/a.en"])
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name]


def test_a_file_behind_a_link_does_not_follow_it(tmp_path: Path) -> None:
    def change(tar: tarfile.TarFile) -> None:
        add(tar, "other", kind=tarfile.SYMTYPE, link="corpus")
        add(tar, "other/c.de", b"c")

    archive = make_archive(tmp_path / "a.tgz", change)
    extract(archive, tmp_path / "out", ["other/c.de"])
    assert not (tmp_path / "out/other").is_symlink()
    assert not (tmp_path / "out/corpus/c.de").exists()


def test_a_link_in_place_of_a_wanted_file_does_not_count(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "a.tgz", lambda tar: add(tar, "corpus/c", kind=tarfile.SYMTYPE, link="a.de"))
    assert extract(archive, tmp_path / "out", ["corpus/c"]) == []


def test_the_first_of_two_members_of_one_name_counts(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "a.tgz", lambda tar: add(tar, "corpus/a.de", b"other"))
    extract(archive, tmp_path / "out", ["corpus/a.de"])
    assert (tmp_path / "out/corpus/a.de").read_bytes() == b"eins\n" * 5000


@pytest.mark.parametrize("keep", [0, 5, 40, -200, -8, -1])
def test_a_truncated_archive_is_an_error(tmp_path: Path, keep: int) -> None:
    archive = make_archive(tmp_path / "a.tgz")
    archive.write_bytes(archive.read_bytes()[:keep])
    with pytest.raises(DataPrepError, match="damaged or incomplete"):
        extract(archive, tmp_path / "out", ["corpus/a.de"])


def test_a_changed_byte_is_an_error(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "a.tgz", lambda tar: add(tar, "noise", bytes(range(256)) * 40))
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 0x10
    archive.write_bytes(bytes(data))
    with pytest.raises(DataPrepError, match="damaged or incomplete"):
        extract(archive, tmp_path / "out", ["corpus/a.en"])


def test_something_else_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "a.tgz").write_text("<html>404</html>")
    with pytest.raises(DataPrepError, match="damaged or incomplete"):
        extract(tmp_path / "a.tgz", tmp_path / "out", ["corpus/a.en"])
    with pytest.raises(DataPrepError, match="no such file"):
        extract(tmp_path / "b.tgz", tmp_path / "out", ["corpus/a.en"])


def test_a_full_disk_is_not_a_damaged_archive(tmp_path: Path, tiny_disk: Path) -> None:
    archive = make_archive(tmp_path / "a.tgz", lambda tar: add(tar, "corpus/large", b"1" * 500_000))
    with pytest.raises(DataPrepError, match=r"no space left for .*corpus/large: it needs 500,000 bytes and"):
        extract(archive, tiny_disk, ["corpus/large"])
    with zipfile.ZipFile(str(tmp_path / "a.zip"), "w") as bundle:
        bundle.writestr("large", "1" * 500_000)
    with pytest.raises(DataPrepError, match="no space left for .*large: it needs 500,000 bytes"):
        extract(tmp_path / "a.zip", tiny_disk, ["large"])


def test_archives_are_read_to_their_end(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "a.tgz")
    check_archive(archive, "a.tgz")
    with zipfile.ZipFile(str(tmp_path / "a.zip"), "w") as bundle:
        bundle.writestr("text", "1" * 5000)
    check_archive(tmp_path / "a.zip", "a.zip")
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[100] ^= 1
    (tmp_path / "a.zip").write_bytes(bytes(data))
    for path in (tmp_path / "a.zip", archive):
        with pytest.raises(DataPrepError, match="in it is damaged|it is no whole"):
            check_archive(path, "a.zip")
