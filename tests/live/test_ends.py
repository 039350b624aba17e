"""Runs that end without what they were started for: a loss that is no number, a target that was missed."""

import json
from pathlib import Path

import pytest
import torch

from command import hog, run_paceline
from paceline.cli.main import main
from paceline.errors import Diverged
from paceline.records.load import usable_cores
from paceline.records.tensors import read_tensors

DIVERGES = ("--epochs", "3", "--schedule", "step:at=1,gamma=1e25")
"""The second epoch begins with steps that are far too long."""


@pytest.mark.parametrize("strategy", ["all-reduce", "ps"])
def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path, strategy: str) -> None:
    """If this failed, hours would be spent on a model of NaNs, and a script would take it for a success."""
    done = run_paceline("train", *DIVERGES, "--strategy", strategy, cwd=tmp_path, check=1, seconds=60)
    last = [line for line in done.stderr.splitlines() if line][-3:]
    assert last[0].startswith("paceline: the loss of rank ")
    assert "in step " in last[0]
    assert "at a learning rate of 5e+23; try a lower one" in last[0]
    assert last[1].startswith("Safe: checkpoint of step ")
    assert last[2] == "Resuming would repeat these steps; start a new run with other settings."
    assert "goes on with the others" not in done.stderr
    assert "Traceback" not in done.stderr
    for saved in (tmp_path / "runs").rglob("rank-*.safetensors"):
        assert torch.isfinite(read_tensors(saved)["replica"]["params"]).all(), saved


@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd:period=4", "async"])
def test_a_simulated_run_ends_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], strategy: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", *DIVERGES, "--strategy", strategy]) == 1
    assert "at a learning rate of 5e+23" in capsys.readouterr().err


def test_a_target_that_was_missed_is_a_failed_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If this failed, a script would go on with a model that is not what it asked for.

    Beside it another program computes, and there are more workers than cores: the figures are of no use, and say so.
    """
    workers = str(usable_cores() + 1)
    words = ("--iterations", "200", "--evaluate-every", "200 steps", "--target-accuracy", "1")
    with hog():
        done = run_paceline(
            "train",
            "--workers",
            workers,
            *words,
            "--json",
            cwd=tmp_path,
            check=3,
            seconds=60,
        )
    summary = json.loads(done.stdout)["summary"]
    missed = "The target accuracy of 1.0 was not reached: it was 0."
    assert any(note.startswith(missed) for note in summary["notes"])
    assert any(note.startswith("Other processes used ") for note in summary["notes"]), summary["loads"]
    assert missed in done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "summary.json").read_text())["notes"] == summary["notes"]
    assert (folder / "model.safetensors").exists()
    shared = f"{workers} workers x 1 thread do not fit in {usable_cores()} core"
    assert done.stderr.count(shared) == 1
    monkeypatch.chdir(tmp_path)
    assert (
        main(["simulate", "--iterations", "2", "--evaluate-every", "2 steps", "--target-accuracy", "1"]) == 3
    )
    assert missed in capsys.readouterr().err


def test_the_first_step_blames_no_learning_rate() -> None:
    assert "before any update; look at" in str(Diverged("the loss of rank 0 is inf", 1, 0.1))
