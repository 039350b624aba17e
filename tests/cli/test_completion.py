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
for shell in ("bash", "zsh"):
    assert main(["--install-completion", "--shell", shell]) == 0
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
    own = {name: value for name, value in os.environ.items() if not name.startswith("ZSH")}  # of oh-my-zsh
    env = {**own, "HOME": str(folder)}
    subprocess.run([sys.executable, "-c", MAKE], cwd=folder, env=env, check=True, capture_output=True)
    return folder


typed_words = pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("paceline tra", "train"),
        ("paceline bench sc", "scaling"),
        ("paceline train --strat", "--strategy"),
        ("paceline predict --collect", "--collective"),
        ("paceline calibrate mach", "machine"),
    ],
)


def said_by(shell, *words, cwd):
    """What a shell prints; skipped where it is not installed."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here: apt-get install {shell}")
    env = {**os.environ, "HOME": str(cwd)}
    done = subprocess.run([shell, *words], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@typed_words
def test_bash_completes_commands_and_options(scripts, typed, found):
    assert said_by("bash", "--norc", "-c", COMPLETE.format(words=typed), cwd=scripts).split() == [found]


@typed_words
def test_fish_completes_commands_and_options(scripts, typed, found):
    said = said_by("fish", "--no-config", "-c", f"source ./fish; complete -C '{typed}'", cwd=scripts)
    assert {line.partition("\t")[0] for line in said.splitlines()} == {found}


def test_zsh_finds_its_script(scripts):
    """If this failed, what the command says to put into .zshrc would complete nothing."""
    begin = "source .zshrc; autoload -Uz compinit; compinit -u -D"
    said = said_by(
        "zsh", "-f", "-c", f"{begin}; $_comps[paceline] 2>&-; whence -w $_comps[paceline]", cwd=scripts
    )
    assert said.split() == ["_cyclopts_paceline:", "function"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts_are_valid(scripts, shell):
    text = (scripts / shell).read_text()
    assert all(command in text for command in ("train", "predict", "simulate"))
    said_by(shell, "-n", shell, cwd=scripts)


def test_without_a_file_the_shell_is_set_up(scripts):
    made = scripts / ".local/share/bash-completion/completions/paceline"
    assert made.read_text() == (scripts / "bash").read_text()
    assert str(made) in (scripts / ".bashrc").read_text()
    assert (scripts / ".zsh/completions/_cyclopts_paceline").read_text() == (scripts / "zsh").read_text()


def test_a_file_that_cannot_be_written_is_refused(tmp_path, capsys):
    (tmp_path / "taken").mkdir()
    assert main(["--install-completion", "--shell", "bash", "--output", str(tmp_path / "taken")]) == 2
    assert "name a file with --output" in capsys.readouterr().err
    assert list(Path(tmp_path / "taken").iterdir()) == []
