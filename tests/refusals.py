"""What every mistake on the command line must look like."""

import shlex
import sys
from pathlib import Path

import pytest

from paceline.cli.main import main


def check_refused(
    command: str, says: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence on stderr, exit code 2, and nothing written."""
    monkeypatch.chdir(folder)
    words = shlex.split(command)
    monkeypatch.setattr(sys, "argv", ["paceline", *words])  # a launcher starts its own command line again
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("paceline: ")
    assert printed.err.count("\n") == 1, printed.err
    assert says in printed.err
    assert list(folder.iterdir()) == []
