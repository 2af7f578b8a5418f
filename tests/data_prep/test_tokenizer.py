"""The command line of the tokeniser."""

import os
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

from data_prep.tokenizer import tokenize_lines

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "data_prep" / "tokenizer.py"


def run(flags: List[str], data: bytes, folder: Path) -> "subprocess.CompletedProcess[bytes]":
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, str(SCRIPT), *flags]
    return subprocess.run(command, input=data, capture_output=True, cwd=str(folder), env=environment)


def test_standard_input_to_standard_output(tmp_path: Path) -> None:
    done = run(["-l", "de", "--workers", "1"], "Das ist's usw.\n\n\u00c4pfel-Birnen...\n".encode(), tmp_path)
    assert done.stdout.decode() == "Das ist &apos; s usw .\n\n\u00c4pfel-Birnen ...\n"
    assert done.returncode == 0


def test_all_flags(tmp_path: Path) -> None:
    data = "Er sagt \u201eJa-Nein.\u201c\n\u039f\u03a3\n".encode()
    done = run(["-l", "de", "-a", "--lowercase", "--normalize", "--workers", "1"], data, tmp_path)
    assert done.stdout.decode() == "er sagt &quot; ja @-@ nein &quot; .\n\u03bf\u03c3\n"


def test_the_number_of_workers_does_not_matter(tmp_path: Path) -> None:
    data = "".join(f"Zeile {number}, usw. Dr. {number}.\n" for number in range(20_000)).encode()
    one = run(["-l", "de", "--workers", "1"], data, tmp_path).stdout
    assert one == run(["-l", "de", "--workers", "2"], data, tmp_path).stdout
    assert one.count(b"\n") == 20_000


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", b""),
        (b"a.", b"a .\n"),
        (b" ", b" "),
        (b"a\n \t", b"a\n \t"),
        (b"a\r\nb\x0bc\n", b"a\nb c\n"),
        (b"\n", b"\n"),
    ],
)
def test_ends_of_lines_and_files_are_those_of_the_script(tmp_path: Path, data: bytes, expected: bytes) -> None:
    assert run(["--workers", "1"], data, tmp_path).stdout == expected


def test_what_is_not_utf8_is_an_error_with_its_line(tmp_path: Path) -> None:
    done = run(["--workers", "2"], b"a\n" * 9000 + b"\xff\n" + b"b\n" * 9000, tmp_path)
    assert done.returncode == 1
    assert done.stderr == b"error: line 9001 of the input is not valid UTF-8\n"


def test_help(tmp_path: Path) -> None:
    done = run(["--help"], b"", tmp_path)
    assert done.returncode == 0
    for flag in (b"-l", b"-a", b"--lowercase", b"--normalize", b"--workers"):
        assert flag in done.stdout


def test_the_script_can_be_run_by_its_name() -> None:
    assert os.access(str(SCRIPT), os.X_OK)


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    command = f"yes Wort. | head -200000 | {sys.executable} {SCRIPT} --workers 1 | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, cwd=str(tmp_path))
    assert done.stdout == b"Wort .\n"
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "expected"), [(b"a.\n\x01", b"a .\n\n"), (b"\x01\x02", b"\n"), (b"a\n  ", b"a\n  "), (b"\x1c", b"\n")]
)
def test_a_last_line_of_control_characters_ends_as_from_the_script(text: bytes, expected: bytes, tmp_path) -> None:
    assert run(["--workers", "1"], text, tmp_path).stdout == expected


def test_an_unknown_language_is_pointed_out(tmp_path: Path) -> None:
    for lang in ("xx", "german"):  # Moses knows codes only
        done = run(["-l", lang, "--workers", "1"], b"Art. 5 usw. No. Foo\n", tmp_path)
        assert done.stdout == b"Art. 5 usw . No . Foo\n"
        assert f"no known abbreviations for the language '{lang}'".encode() in done.stderr
    assert run(["-l", "de", "--workers", "1"], b"No. Foo usw. Da\n", tmp_path).stderr == b""


def test_from_python() -> None:
    assert tokenize_lines(["Das ist usw.", ""], "de") == ["Das ist usw .", ""]
    assert tokenize_lines([]) == []
    assert tokenize_lines(["A-B\x01"], aggressive=True, printing=True, lower_first=True) == ["a @-@ b"]


def test_lines_at_the_end_of_a_file_equal_the_scripts_themselves(tmp_path: Path, perl) -> None:
    folder = Path(os.environ["MOSES_SCRIPTS"]) / "tokenizer"
    for text in ('Er sagt "ja."', 'a\n"ja."', "a. b", "x'", " ", "a\r", "(a", "5\u00a0000", "\x01", "a\n\x02"):
        pipe = f"perl {folder}/normalize-punctuation.perl -l de | perl {folder}/tokenizer.perl -q -l de"
        expected = subprocess.run(pipe, shell=True, input=text.encode(), stdout=subprocess.PIPE).stdout
        assert run(["-l", "de", "--normalize", "--workers", "1"], text.encode(), tmp_path).stdout == expected
