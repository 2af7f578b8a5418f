"""Readers of the published files, and the faults that they find."""

import gzip
from pathlib import Path
from typing import List

import pytest

from data_prep.errors import DataPrepError
from data_prep.readers import Text


def lines_of(kind: str, data: bytes, folder: Path) -> List[bytes]:
    (folder / "x.de").write_bytes(data)
    return list(Text("x.{lang}", kind).lines(folder, "de"))


def test_tags_drop_lines_about_the_talk_and_keep_titles(tmp_path: Path) -> None:
    data = (
        b"<url>u</url>\n<talkid>1</talkid>\nx <keywords>\n<title>T</title>\n<description>D</description>\n"
        b"plain\n\n<reviewer>r</reviewer>\na <title>b\n"
    )
    expected = [b"T\n", b"D\n", b"plain\n", b"\n", b"<reviewer>r</reviewer>\n", b"a b\n"]
    assert lines_of("tags", data, tmp_path) == expected


def test_segments_lose_tags_and_blanks_around_them(tmp_path: Path) -> None:
    data = (
        '<doc>\n<seg id="1"> a b </seg>\n<seg id="22">c\u2019d &amp; e</seg>  \r\n  <seg id="3"> f </seg>\n<hl>x</hl>\n'
        '<seg id="x">g</seg>\n'
    ).encode()
    expected = [b"a b\n", b"c'd &amp; e\n", b"  f\n", b'<seg id="x">g\n']
    assert lines_of("segments", data, tmp_path) == expected


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    data = "a\u2028b\x85c\x0bd\re\nf".encode()
    assert lines_of("plain", data, tmp_path) == [data[:-1], b"f"]


def test_compressed_files_are_read_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "x.de.gz").write_bytes(gzip.compress(b"a\nb\n"))
    assert list(Text("x.{lang}.gz").lines(tmp_path, "de")) == [b"a\n", b"b\n"]


def check(folder: Path, german: bytes, english: bytes = b"a\nb\nc\n", **settings: bool) -> int:
    (folder / "x.de").write_bytes(german)
    (folder / "x.en").write_bytes(english)
    return Text("x.{lang}", **settings).check(folder, "de", "en")


@pytest.mark.parametrize(
    ("german", "message"),
    [
        (b"a\n\nc\n", "x.de: line 2 is empty"),
        (b"a\n \t\nc\n", "x.de: line 2 is empty"),
        (b"a\nb\r\nc\n", "x.de: line 2 has a carriage return"),
        (b"\xef\xbb\xbfa\nb\nc\n", "x.de: line 1 begins with a byte order mark"),
        (b"a\nb\nc\xff\n", r"x.de: line 3 is not valid UTF-8 \(byte 2\)"),
        (b"a\nb\nc\xed\xa0\x80\n", "x.de: line 3 is not valid UTF-8"),
        (b"a\nb\n", "x.en has 3 lines of text and .*x.de has 2: line 3 has no counterpart"),
        (b"a\nb\nc\nd\n", "x.de has 4 lines of text and .*x.en has 3: line 4 has no counterpart"),
        (b"", "x.de: line 1 is missing"),
    ],
)
def test_faults_are_named_with_file_and_line(tmp_path: Path, german: bytes, message: str) -> None:
    with pytest.raises(DataPrepError, match=message):
        check(tmp_path, german)


def test_a_good_text_has_its_number_of_lines(tmp_path: Path) -> None:
    assert check(tmp_path, "ä\nb\nc".encode()) == 3


def test_training_text_may_have_empty_lines_and_stray_carriage_returns(tmp_path: Path) -> None:
    assert check(tmp_path, b"a\n\nc\rd\r\n", strict=False) == 3


@pytest.mark.parametrize("german", [b"a\r\nb\r\nc\r\n", b"\xef\xbb\xbfa\nb\nc\n"])
def test_a_converted_training_text_is_an_error(tmp_path: Path, german: bytes) -> None:
    with pytest.raises(DataPrepError, match="line 1"):
        check(tmp_path, german, strict=False)
    assert check(tmp_path, german, strict=False, lenient=True) == 3


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataPrepError, match="x.de: no such file"):
        Text("x.{lang}").check(tmp_path, "de", "en")


@pytest.mark.parametrize("keep", [8, -4])
def test_a_damaged_compressed_file_is_named(tmp_path: Path, keep: int) -> None:
    data = gzip.compress(b"".join(b"line %d\n" % number for number in range(5000)))
    for lang in ("de", "en"):
        (tmp_path / f"x.{lang}.gz").write_bytes(data[:keep] if lang == "en" else data)
    with pytest.raises(DataPrepError, match="x.en.gz is damaged"):
        Text("x.{lang}.gz").check(tmp_path, "de", "en")
    (tmp_path / "x.en.gz").write_bytes(b"no gzip")
    with pytest.raises(DataPrepError, match="x.en.gz is damaged"):
        Text("x.{lang}.gz").check(tmp_path, "de", "en")
