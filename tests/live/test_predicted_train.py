"""``paceline train`` with a profile of the machine in the cache, and without one."""

import socket

import pytest
import torch

from command import run_json, run_paceline
from paceline.clusters.profile import MAKE, LinkFit, Profile, write_profile
from paceline.records.files import read_json
from paceline.studies.calibrate.record import plain_device
from paceline.studies.recorded import read_recorded

TRAIN = ("train", "--model", "mlp", "--iterations", "6", "--threads", "1", "--evaluate-every", "never")
OFFER = f"paceline: no profile of this machine: {MAKE}; then every run is predicted"


def cache(folder):
    """An environment in whose cache there is a profile of this machine."""
    (folder / "paceline").mkdir()
    link = LinkFit(name="memory", bandwidth=4e9, latency=2e-5, spread=0.1, points=9)
    profile = Profile(
        name="here",
        made="2026-11-18T11:00:00Z",
        versions={"torch": str(torch.__version__)},
        machine={"threads": 1, "usable_cores": 2},
        device=plain_device().to_json(),
        links=(link,),
        contention=(1.0, 1.2),
    )
    write_profile(profile, folder / "paceline" / f"profile-{socket.gethostname()}-1.json")
    return {"XDG_CACHE_HOME": str(folder)}


def test_a_run_predicts_itself_and_is_scored_and_so_is_one_that_resumes(tmp_path):
    env = cache(tmp_path)
    done = run_paceline(*TRAIN, cwd=tmp_path, env=env)
    lines = done.stdout.splitlines()
    assert any(line.startswith("predicted: ") for line in lines[:5])
    (step,) = (line for line in lines if line.startswith("  typical step"))
    assert step.endswith(" %)")
    assert OFFER not in done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    run = read_recorded(folder)
    assert run.forecast.row.workers == 2
    assert run.folder.prediction.stat().st_mtime_ns < run.folder.events(0).stat().st_mtime_ns
    more = ("train", "--resume", str(run.folder.path), "--iterations", "9")
    told = run_json(*more, cwd=tmp_path, env=env)
    assert told["prediction"]["row"]["breakdown"]["forward"] == pytest.approx(
        run.forecast.row.breakdown.forward
    )
    assert told["prediction"] == read_json(run.folder.prediction)
    assert "subject" not in told["run"]


def test_without_a_profile_one_line_offers_to_make_it(tmp_path):
    plain = run_paceline(*TRAIN, "--workers", "1", cwd=tmp_path)
    assert plain.stderr.splitlines().count(OFFER) == 1
    assert "predicted" not in plain.stdout
    quiet = run_paceline(*TRAIN, "--workers", "1", "--json", cwd=tmp_path)
    assert OFFER not in quiet.stderr
