"""``paceline --install-completion``: scripts for the shells, made without torch, that complete commands and options."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli.main import main

MAKE = """
import sys
from paceline.cli.main import main
for shell in ("bash", "zsh", "fish"):
    assert main(["--install-completion", "--shell", shell, "--output", shell]) == 0
assert main(["--install-completion", "--shell", "bash"]) == 0
assert "torch" not in sys.modules
"""
COMPLETE = """
source ./bash
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _paceline; echo "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """A folder with a script for each shell, which is also a home whose shell was set up."""
    folder = tmp_path_factory.mktemp("home")
    env = {**os.environ, "HOME": str(folder)}
    subprocess.run([sys.executable, "-c", MAKE], cwd=folder, env=env, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("paceline tra", "train"),
        ("paceline bench sc", "scaling"),
        ("paceline train --strat", "--strategy"),
        ("paceline predict --collect", "--collective"),
        ("paceline calibrate mach", "machine"),
    ],
)
def test_bash_completes_commands_and_options(scripts, typed, found):
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE.format(words=typed)],
        cwd=scripts,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [found]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts_are_valid(scripts, shell):
    text = (scripts / shell).read_text()
    assert all(command in text for command in ("train", "predict", "simulate"))
    if shutil.which(shell):
        subprocess.run([shell, "-n", shell], cwd=scripts, check=True)


def test_without_a_file_the_shell_is_set_up(scripts):
    made = scripts / ".local/share/bash-completion/completions/paceline"
    assert made.read_text() == (scripts / "bash").read_text()
    assert str(made) in (scripts / ".bashrc").read_text()


def test_a_file_that_cannot_be_written_is_refused(tmp_path, capsys):
    (tmp_path / "taken").mkdir()
    assert main(["--install-completion", "--shell", "bash", "--output", str(tmp_path / "taken")]) == 2
    assert "name a file with --output" in capsys.readouterr().err
    assert list(Path(tmp_path / "taken").iterdir()) == []
