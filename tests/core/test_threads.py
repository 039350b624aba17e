"""With how many threads workers compute, and how many such workers a host has cores for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from command import run_paceline
from paceline.clusters.profile import LinkFit, Profile, write_profile
from paceline.errors import UsageError
from paceline.records.load import usable_cores
from paceline.runtimes.live.request import LiveOptions
from paceline.runtimes.threads import HostCapacity, too_many, usual_threads
from paceline.studies.calibrate.device import check_threads
from paceline.studies.calibrate.links import check_profile
from paceline.studies.calibrate.record import plain_device
from paceline.studies.predict.deployment import find_deployment
from paceline.studies.predict.request import PredictRequest


def test_the_usual_number_is_one_or_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If this failed, one worker would compute with all cores and two with one each."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert LiveOptions().threads == check_threads(None) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")
    assert LiveOptions().threads == 2
    assert LiveOptions(threads=3).threads == 3
    with pytest.raises(UsageError, match=r"OMP_NUM_THREADS=2 does not go with links"):
        check_profile(tmp_path / "p.json", tmp_path / "p.json")
    with pytest.raises(UsageError, match="OMP_NUM_THREADS=many is not a number of threads"):
        usual_threads({"OMP_NUM_THREADS": "many"})
    monkeypatch.setenv("OMP_NUM_THREADS", "4096")
    with pytest.raises(UsageError, match="OMP_NUM_THREADS=4096 does not fit this machine"):
        check_threads(None)


def test_a_room_is_as_many_workers_as_have_cores_or_were_measured() -> None:
    assert not too_many(2, 1, 2)
    assert too_many(1, 4, 2) == "1 worker x 4 threads do not fit in 2 cores"
    room = HostCapacity(source="a run", threads=2, cores=4)
    room.check(2, "--workers 2")
    with pytest.raises(
        UsageError, match=r"--workers 3: 3 workers x 2 threads do not fit in 4 cores of the host of a run"
    ):
        room.check(3, "--workers 3")
    HostCapacity(source="a run", threads=1, cores=2, measured=4).check(4, "--workers 4")


def profile(threads: int) -> Profile:
    memory = LinkFit(name="memory", bandwidth=4e9, latency=2e-5, spread=0.1, points=9)
    return Profile(
        name="here",
        made="2026-11-16T03:40:00Z",
        versions={"torch": str(torch.__version__)},
        machine={"threads": threads, "usable_cores": 2},
        device=plain_device().to_json(),
        links=(memory,),
        contention=(1.0, 1.2) if threads == 1 else (),
    )


def test_a_profile_holds_for_as_many_workers_as_its_machine_has_cores_for() -> None:
    """If this failed, workers of two threads each would be predicted as if two of them had two cores each."""
    words = PredictRequest(model="mlp", profile=Path("p.json"), workers=(1, 2))
    assert find_deployment(words, profile(threads=1)).most == 2
    with pytest.raises(
        UsageError, match=r"2 workers: 2 workers x 2 threads do not fit in 2 cores of .* profile 'here'"
    ):
        find_deployment(words, profile(threads=2))
    apart = PredictRequest(model="mlp", profile=Path("p.json"), network="10gbit", per_host=2)
    find_deployment(apart, profile(threads=1))
    with pytest.raises(UsageError, match=r"2 workers per host: 2 workers x 2 threads do not fit"):
        find_deployment(apart, profile(threads=2))


def afresh(home: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Train in a new interpreter."""
    command = [sys.executable, "-m", "paceline", "train", *words]
    env = {**os.environ, "NO_COLOR": "1", **variables}
    return subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, check=True, timeout=100)


def test_a_run_keeps_its_threads_and_predictions_mind_them(tmp_path: Path) -> None:
    """One live run: what it computes with is shown, recorded, carried on, and all that its times hold for."""
    if usable_cores() < 2:
        pytest.skip("one core has no room for two threads")
    keep = ("--runs", str(tmp_path / "runs"), "--iterations", "6", "--evaluate-every", "never")
    done = run_paceline("train", "--workers", "1", *keep, cwd=tmp_path)
    assert f"1 thread of {usable_cores()} cores" in done.stdout
    (one,) = (tmp_path / "runs").iterdir()
    assert json.loads((one / "config.json").read_text())["machinery"]["threads"] == 1
    threads = str(usable_cores())
    # New interpreters: OpenMP's threads do not survive a fork of a process that has used them, as tests may have.
    wide = json.loads(afresh(tmp_path, "--workers", "1", "--threads", threads, *keep, "--json").stdout)
    run = wide["run"]["folder"]
    assert wide["run"]["threads"] == int(threads)
    resumed = afresh(tmp_path, "--resume", run, "--iterations", "8", OMP_NUM_THREADS="1")
    assert f"{threads} threads of {threads} cores" in resumed.stdout
    assert f"OMP_NUM_THREADS=1 is not used: the run goes on with --threads {threads}" in resumed.stderr
    write_profile(profile(threads=1), tmp_path / "p.json")
    ask = ("predict", "--profile", "p.json", "--workers", "1,2", "--times")
    told = run_paceline(*ask, str(one), cwd=tmp_path)
    assert ", 1 thread a worker" in told.stdout
    refused = run_paceline(*ask, run, cwd=tmp_path, check=2)
    assert (
        f"2 workers x {threads} threads do not fit in {threads} cores of the host of the run"
        in refused.stderr
    )
    cluster = ("--cluster", "hosts=1,workers=2,bandwidth=1 Gbit/s,latency=50 us")
    refused = run_paceline("simulate", *cluster, "--times", run, "-i", "3", cwd=tmp_path, check=2)
    assert f"2 workers x {threads} threads do not fit" in refused.stderr
    refused = run_paceline("calibrate", "record", run, "--profile", "p.json", cwd=tmp_path, check=2)
    assert f"was run with {threads} threads a worker, and 1 are in the profile p.json" in refused.stderr
