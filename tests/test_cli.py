"""The command line ``powernorm``: one table, and the scripts are the same functions."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from powernorm_fairseq import cli

TOP = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_answers_help(name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["powernorm"])
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("usage: ")


def test_commands_are_listed_where_none_is_given_or_known(capsys):
    assert cli.main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed and about in listed for name, (_, about) in cli.COMMANDS.items())
    assert cli.main([]) == 2 and "choose one of them" in capsys.readouterr().err
    assert cli.main(["trian"]) == 2 and "powernorm: trian is no command; choose one" in capsys.readouterr().err


def test_the_status_of_a_command_is_that_of_the_program(tmp_path):
    command = [sys.executable, "-m", "powernorm_fairseq", "score", "--sys", str(tmp_path / "none"), "--ref", "none"]
    done = subprocess.run(command, stderr=subprocess.PIPE, cwd=str(tmp_path))
    assert done.returncode == 1 and done.stderr.startswith(b"score: ") and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("path", sorted((TOP / "scripts").rglob("*.py")), ids=lambda path: path.name)
def test_scripts_call_the_functions_of_the_table(path):
    (imported,) = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)]
    assert imported.module in [module for module, _ in cli.COMMANDS.values()]
    assert [alias.name for alias in imported.names] == ["main"]
