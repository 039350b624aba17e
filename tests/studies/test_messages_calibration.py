"""Messages with a server, found from trainings with one and without."""

from dataclasses import replace
from pathlib import Path

import pytest

from command import run_json
from paceline.clusters.profile import Profile
from paceline.clusters.profile_file import read_profile, write_profile
from paceline.costs.recorded import usual_pace
from paceline.records.folder import RunFolder
from paceline.studies.calibrate.messages import calibrate_messages, measure_cipher

COMPANY = 1.5
TIMES = "data=0.1 ms,forward=1 ms,backward=2 ms,apply=0.2 ms"


def profile(*contention: float) -> Profile:
    return Profile(name="here", made="now", versions={}, machine={}, device={}, contention=contention)


def simulated(runs: Path, words: tuple[str, ...], workers: int) -> RunFolder:
    """A training on a host with a stated link inside, whose workers compute longer in contention."""
    speed = 1.0 if workers == 1 else 1 / COMPANY
    host = f"hosts=1,workers={workers},inside-latency=0.3 ms,inside-bandwidth=2 GB/s,speed={speed}"
    steps = words.index("--iterations") + 1
    few = (*words[:steps], "40", *words[steps + 1 :])
    kept = ("--runs", str(runs), "--no-gradients")
    return RunFolder(
        Path(run_json("simulate", *few, "--cluster", f"{host},{TIMES}", *kept, cwd=runs)["run"]["folder"])
    )


def test_the_link_is_found_through_which_the_messages_went(tmp_path):
    (fit,) = calibrate_messages(
        profile(1.0, COMPANY), [2], lambda words, workers: simulated(tmp_path, tuple(words), workers)
    )
    assert (fit.name, fit.workers, fit.points) == ("messages", 2, 2)
    assert fit.bandwidth == pytest.approx(2e9, rel=0.1)
    assert fit.latency == pytest.approx(0.3e-3, rel=0.25), "a server that applies takes its own time as well"


def test_a_pace_is_the_usual_one_of_so_many_steps_in_a_row(tmp_path):
    words = ("--strategy", "local-sgd:period=4", "--iterations", "200", "--evaluate-every", "never")
    cluster = f"hosts=2,latency=10 ms,{TIMES}"
    run = run_json(
        "simulate",
        *(*words, "--cluster", cluster, "--no-gradients", "--runs", str(tmp_path)),
        cwd=tmp_path,
    )
    folder = RunFolder(Path(run["run"]["folder"]))
    assert usual_pace(folder, 4) == pytest.approx(3.3e-3 + 10e-3 / 4, rel=0.05), "a period sends once"


def test_the_rate_of_encryption_is_measured_and_kept(tmp_path):
    """If this failed, predictions across hosts would take every processor for the same."""
    rate = measure_cipher()
    assert 5e7 < rate < 1e11
    write_profile(replace(profile(1.0), cipher=rate), tmp_path / "profile.json")
    assert read_profile(tmp_path / "profile.json").cipher == rate
