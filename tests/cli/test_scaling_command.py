"""``paceline bench scaling`` and its relatives as a user runs them: a small sweep, Ctrl-C, refusals."""

import contextlib
import io
import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from command import start_python
from paceline.cli.main import main
from paceline.clusters.profile import Profile, machine_profile, make_room, write_profile
from paceline.errors import UsageError
from refusals import check_refused

SMALL = ["--model", "mlp", "-b", "16", "-i", "12", "--repeats", "1"]
FORKS = """
import sys
from command import start_python
from paceline.cli import scaling
from paceline.cli.main import main
from paceline.commands.train import train_options
scaling.start_training = lambda machinery, settings, runs, words: start_python(
    "-m", "paceline", "train", *train_options(settings, machinery, runs), stdout=words, stderr=words
)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def forks(monkeypatch):
    """Trainings are forks of the tests, which have torch already."""
    from paceline.cli import scaling
    from paceline.commands.train import train_options

    monkeypatch.setattr(
        scaling,
        "start_training",
        lambda machinery, settings, runs, words: start_python(
            *("-m", "paceline", "train", *train_options(settings, machinery, runs)),
            stdout=words,
            stderr=words,
        ),
    )


def run(*words: str, code: int = 0) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["bench", *words]) == code
    return out.getvalue()


@pytest.mark.parametrize(
    ("options", "found"),
    [({}, "held"), ({"schedule": "cosine"}, "cosine"), ({"job": "my_job:build"}, "constant")],
    ids=["usual", "one that was given", "a job of one's own"],
)
def test_cells_compute_on_the_same_values_unless_told_otherwise(options, found):
    """Else a cell would be faster for what it has learned: a max-pool's time depends on its inputs."""
    from paceline.cli.scaling import SweepOptions

    assert SweepOptions(**options).base().job.schedule == found


@pytest.mark.usefixtures("forks")
def test_checkpoints_and_processes_are_measured_and_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    saved = json.loads(
        run("checkpoint", *SMALL, "--checkpoint-every", "4 steps", "--chart", "c.svg", "--json")
    )
    never, often = saved["rows"]
    assert never["checkpoint"] == never["checkpoint_bytes"] == 0
    assert often["checkpoint"] > 0
    assert often["checkpoints"] == pytest.approx(3 / 12), "after steps 4, 8 and 12"
    assert (never["checkpoint_every"], often["checkpoint_every"]) == (0, 4)
    assert often["checkpoint_bytes"] > 4 * saved["parameters"]
    assert saved["chart"] is None
    noted = capsys.readouterr().err
    assert "no profile of this machine, so nothing is predicted: 'paceline calibrate machine'" in noted
    assert "c.svg is not written: this sweep has no speed-up that can be drawn as a line" in noted
    several = run("processes", *SMALL, "--processes", "2", "--out", "mine")
    assert several.splitlines()[-1] == "kept in mine; chart: mine/chart.svg"
    assert Path("mine/chart.svg").exists()
    assert run("processes", "--resume", "mine") == several, "nothing is measured again"
    Path("full.svg").mkdir()
    shown = run("processes", "--resume", "mine", "--chart", "full.svg", code=2)
    assert shown.splitlines()[:-1] == several.splitlines()[:-1], "what was measured is shown all the same"
    assert "cannot write full.svg" in capsys.readouterr().err


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(tmp_path):
    script = tmp_path / "forks.py"
    script.write_text(FORKS)
    words = ["bench", "batch", *SMALL[:-1], "40", "--out", "mine"]
    env = {"PYTHONPATH": f"{Path(__file__).parents[1]}"}
    with start_python(str(script), *words, cwd=tmp_path, env=env) as process:
        cells, end = tmp_path / "mine" / "cells", time.monotonic() + 60
        while not list(cells.glob("[!.]*.json")) and time.monotonic() < end and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert out == ""
    kept = len(list(cells.glob("[!.]*.json")))
    assert 1 <= kept < 40
    assert err.splitlines()[-1] == (
        f"interrupted: {kept} of 40 runs are done and kept in mine; go on with 'paceline bench batch --resume mine'"
    )


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("scaling --strategy spp", "unknown strategy 'spp'; did you mean"),
        ("scaling --codec in8", "unknown codec 'in8'; did you mean"),
        ("scaling --workers none", "workers none: 'none' is no count"),
        ("scaling -b 16,x", "--batch-size 16,x: write whole numbers such as 16,64,256"),
        ("scaling -b 5000", "batch"),
        ("scaling --scaling strong -b 33", "cannot be divided evenly among 2 workers"),
        ("scaling --data-loading maybe", "maybe"),
        ("scaling --repeats 0", "repeats 0 is out of range"),
        ("batch --seconds 0", "0 seconds a run are out of range"),
        ("scaling --seconds 2 --epochs 1", "--epochs and --seconds both say how long a run is"),
        ("scaling --profile nothing.json", "cannot read the profile"),
        ("scaling --chart none/c.svg", "--chart none/c.svg: there is no folder none; make it"),
        ("scaling --servers 4", "servers 4: no cell of this sweep has servers; leave the setting out"),
        ("processes --servers 2", "servers 2: no cell of this sweep has servers"),
        ("batch --collective ring", "collective ring: no cell of this sweep has several workers that reduce"),
        ("scaling --strategy ps --collective ring", "collective ring: no cell"),
        ("scaling --chart c.png", "--chart c.png: name a file that ends in .svg"),
        ("scaling --resume nowhere", "nowhere is not the folder of a study"),
        ("scaling --resume nowhere --workers 2", "so --workers has no place"),
        ("batch --resume nowhere --model mlp", "so --model has no place"),
        ("checkpoint --checkpoint-every never", "is measured in any case"),
        ("checkpoint --checkpoint-every now", "'now' is not a value for --checkpoint-every"),
        ("processes --processes 0", "workers 0 is out of range"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(command, told, tmp_path, monkeypatch, capsys):
    check_refused(f"bench {command}", told, tmp_path, monkeypatch, capsys)


def test_a_sweep_of_another_kind_is_not_resumed(tmp_path, capsys):
    golden = Path(__file__).parents[1] / "golden" / "scaling"
    assert main(["bench", "batch", "--resume", str(golden)]) == 2
    assert f"use 'paceline bench scaling --resume {golden}'" in capsys.readouterr().err


class Notes:
    """Keeps what a screen would show."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, sentence: str) -> None:
        self.said.append(sentence)


@pytest.mark.parametrize(
    ("machinery", "measured", "why"),
    [
        ({"threads": 1, "device": "cuda"}, {"threads": 1}, "the profile is of a CPU, not of cuda"),
        ({"threads": 2}, {"threads": 1}, "of workers with 1 threads, and this run has 2"),
        ({"threads": 1}, {"threads": 1, "cpu": "Z80"}, "another machine, with Z80"),
    ],
)
def test_a_profile_of_other_workers_predicts_nothing(tmp_path, monkeypatch, machinery, measured, why):
    """Else a sweep on a GPU would be predicted by how fast the CPU is."""
    from paceline.cli import scaling

    profile = Profile(
        name="other", made="now", versions={"torch": str(torch.__version__)}, machine=measured, device={}
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = make_room(machine_profile(machinery["threads"]))
    write_profile(profile, kept)
    notes = Notes()
    assert scaling._profile(None, machinery, notes) is None
    (said,) = notes.said
    assert said.startswith("nothing is predicted: ")
    assert why in said
    with pytest.raises(UsageError, match=f"{why}.*; name another profile, or leave --profile out"):
        scaling._profile(kept, machinery, notes)


def test_a_link_is_measured_by_bench_collectives(monkeypatch):
    from paceline.cli import scaling

    asked: list[list[str]] = []

    def answer(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, len(asked) - 1, '{"cells": [{"busbw": 5e8}]}', "")

    monkeypatch.setattr(subprocess, "run", answer)
    assert scaling.measure_link("shm", 2, 1000) == 5e8
    assert scaling.measure_link("shm", 2, 1000) is None, "where it fails, the rate is unknown"
    assert asked[0][4:8] == ["bench", "collectives", "--workers", "2"]
