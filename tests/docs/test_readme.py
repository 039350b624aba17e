"""The README's commands: all are understood, and the quick ones run; benchmarks/readme.py runs them all."""

import shlex
import sys
from pathlib import Path

import pytest

from command import run_paceline
from paceline.cli.main import make_app

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
from readme import IN_CI, RUNS, commands, prepare  # noqa: E402

COMMANDS = commands((ROOT / "README.md").read_text())
OURS = [words[words.index("paceline") + 1 :] for words in map(shlex.split, COMMANDS) if "paceline" in words]
QUICK = [
    words
    for words in OURS
    if words[0] in ("predict", "explain")
    and not any("runs/" in word or word == "--profile" for word in words)
]


def test_every_block_was_read():
    assert len(COMMANDS) > 25
    assert {"make train", IN_CI} < set(COMMANDS)
    assert all(
        f"paceline {command}" in " ".join(COMMANDS) for command in ("train", "simulate", "bench", "calibrate")
    )


@pytest.mark.parametrize("words", OURS, ids=" ".join)
def test_every_option_is_understood(words):
    """If this failed, a command of the README would be refused as it is written."""
    make_app().parse_args(words, exit_on_error=False, print_error=False)


@pytest.mark.parametrize(
    "words", [words for words in OURS if any("runs/" in word for word in words)], ids=" ".join
)
def test_every_run_folder_that_is_named_can_be_made(words):
    place = next(place for place, word in enumerate(words) if word.startswith("runs/"))
    assert {words[place - 1], f"{words[0]} {words[place - 1]}"} & set(RUNS)


@pytest.mark.parametrize("words", QUICK, ids=" ".join)
def test_the_quick_ones_run_as_written(words, tmp_path):
    prepare(tmp_path)
    run_paceline(*words, cwd=tmp_path)
