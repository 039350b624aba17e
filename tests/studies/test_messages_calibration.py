"""Messages with a server, found from trainings with one and without."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from command import run_json
from paceline.clusters.profile import Profile, read_profile, write_profile
from paceline.costs.recorded import usual_pace
from paceline.records.folder import RunFolder
from paceline.studies.calibrate.links import calibrate_messages
from paceline.studies.calibrate.measure import measure_cipher

CONTENTION = 1.5
TIMES = "data=0.1 ms,forward=1 ms,backward=2 ms,apply=0.2 ms"


def profile(*contention: float) -> Profile:
    return Profile(name="here", made="now", versions={}, machine={}, device={}, contention=contention)


def simulated(runs: Path, settings: Mapping[str, str]) -> RunFolder:
    """A training on a host with a stated link inside, whose workers slow each other down."""
    workers = int(settings["workers"])
    speed = 1.0 if workers == 1 else 1 / CONTENTION
    host = f"hosts=1,workers={workers},inside-latency=0.3 ms,inside-bandwidth=2 GB/s,speed={speed}"
    few = {name: value for name, value in settings.items() if name not in ("workers", "threads")}
    few |= {"iterations": "40", "cluster": f"{host},{TIMES}", "runs": str(runs)}
    words = [word for name, value in few.items() for word in (f"--{name.replace('_', '-')}", value)]
    return RunFolder(Path(run_json("simulate", *words, "--no-gradients", cwd=runs)["run"]["folder"]))


def test_the_link_is_found_through_which_the_messages_went(tmp_path):
    (fit,) = calibrate_messages(profile(1.0, CONTENTION), [2], partial(simulated, tmp_path))
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
