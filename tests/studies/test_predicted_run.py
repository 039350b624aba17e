"""A run that predicts itself by the profile of its machine, before its first step."""

import json
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.cli.main import main
from paceline.clusters.profile import MAKE, LinkFit, Profile, machine_profile, named_profile, write_profile
from paceline.errors import UsageError
from paceline.jobs.build import build_job
from paceline.jobs.spec import JobSpec
from paceline.records.files import from_document, read_json
from paceline.records.folder import RunFolder, environment
from paceline.records.summary import Started
from paceline.reports.forecast import expect
from paceline.runtimes.config import Placement, write_config
from paceline.runtimes.settings import Settings
from paceline.studies.calibrate.device_fit import DeviceFit
from paceline.studies.calibrate.link_fit import ContentionFit, add_contention
from paceline.studies.calibrate.record import plain_device
from paceline.studies.predict.forecast import RunForecast

SPEC = JobSpec(data="digits", model="mlp")
LINK = LinkFit(name="memory", bandwidth=4e9, latency=2e-5, spread=0.1, points=9)
HERE = Profile(
    name="here",
    made="2026-11-18T11:00:00Z",
    versions={"torch": str(torch.__version__)},
    machine={"threads": 1, "usable_cores": 2, "cpu": environment()["cpu"], "memory_bytes": 8_000_000_000},
    device=plain_device().to_json(),
    links=(LINK,),
    contention=(1.0, 1.2),
)
CPU = {"device": "cpu", "threads": 1}


@pytest.fixture(scope="module")
def job():
    return build_job(SPEC)


@pytest.fixture
def begin(tmp_path, job):
    """What is expected of a run with these settings."""

    def begun(profile=HERE, machinery=CPU, placement=None, subject=job, **changes):
        settings = Settings(**{"job": SPEC, "iterations": 100, **changes})
        folder = RunFolder(tmp_path)
        write_config(folder, settings, "live", machinery, placement=placement)
        if isinstance(profile, Profile):
            write_profile(profile, tmp_path / "profile.json")
        run = Started(
            name="x",
            job="digits-mlp",
            parameters=9,
            strategy=settings.strategy,
            batch_sizes=settings.batch_sizes,
            transport="shm",
            last_step=100,
            steps_per_epoch=10,
            folder=str(tmp_path),
            threads=1,
            cores=2,
            subject=subject,
        )
        return expect(settings, run, tmp_path / "profile.json")

    return begun


def test_the_prediction_is_written_and_said_before_the_first_step(tmp_path, begin):
    expected = begin()
    kept = from_document(read_json(RunFolder(tmp_path).prediction), RunForecast)
    assert kept == expected.forecast
    assert (kept.row.workers, kept.row.batch, kept.codec) == (2, 32, None)
    assert kept.row.breakdown == expected.step
    first, second = expected.before.splitlines()
    assert first.startswith("predicted: ")
    assert " a step (" in first
    assert "100 steps in about" in first
    how = "1 thread per worker; data by a few mini-batches"
    assert second == f"  by profile 'here', measured 2026-11-18T11:00:00Z, {how}"
    assert kept.row.breakdown.data > 0


@pytest.mark.parametrize(
    ("loaders", "words"), [(1, "divided among 1 loader process"), (2, "divided among 2 loader processes")]
)
def test_loader_processes_hide_of_the_data_what_the_rest_of_the_step_takes(
    job, begin, monkeypatch, loaders, words
):
    sample = 1e-3
    monkeypatch.setattr("paceline.studies.predict.predicted_run._loading", lambda *_: sample)
    row = begin(subject=replace(job, loader_workers=loaders)).forecast
    assert row.basis.compute.endswith(f"data by a few mini-batches, {words}")
    assert row.row.breakdown.data > 0
    # 32 samples of 1 ms each, and the contention of two workers: the step takes as long as the loaders do.
    assert row.row.step == pytest.approx(1.2 * 32 * sample / loaders, rel=0.05)
    assert begin(subject=replace(job, loader_workers=1024)).forecast.row.breakdown.data == 0


def test_no_random_number_of_the_run_is_used_up(begin):
    """If this failed, a run would end elsewhere with a profile than without one."""
    torch.manual_seed(3)
    np.random.seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    begin()
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()


@pytest.mark.parametrize("strategy", ["all-reduce", "ps", "ssp", "local-sgd:period=4", "sma:learners=2"])
def test_every_strategy_is_predicted(begin, strategy):
    expected = begin(strategy=strategy)
    assert min(expected.step.forward, expected.step.backward) > 0
    assert expected.step.total == pytest.approx(expected.forecast.row.step)


def test_a_slow_rank_is_waited_for(begin, monkeypatch):
    monkeypatch.setattr(
        "paceline.studies.predict.predicted_run._loading", lambda *_: 0.0
    )  # it differs each time
    even, uneven = begin().forecast.row, begin(slow={1: 3.0}).forecast.row
    computing = even.breakdown.forward + even.breakdown.backward
    assert uneven.step - even.step == pytest.approx(2 * computing, rel=0.1)
    # One rank waits for twice as long as it computes, the other not at all.
    assert uneven.breakdown.wait == pytest.approx(computing, rel=0.1)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"batch_sizes": (48, 16)}, "mini-batches of different sizes"),
        ({"slow": {1: 2.0}, "slow_turns": 3}, "slow ranks take turns"),
        ({"machinery": CPU | {"device": "cuda"}}, "not of cuda"),
        ({"machinery": CPU | {"threads": 2}}, "with 1 threads, and this run has 2"),
        ({"batch_sizes": (8, 8, 8)}, "3 workers x 1 thread do not fit in 2 cores"),
        ({"placement": Placement(workers=(0, 1))}, "the profile has no network"),
        ({"profile": replace(HERE, links=())}, "no links between workers"),
        ({"profile": replace(HERE, machine={"threads": 1, "cpu": "Z80"})}, "another machine, with Z80"),
        ({"profile": replace(HERE, versions={"torch": "1.0"})}, "measured with torch 1.0 and this is torch"),
        ({"buffers": "rank0"}, "rank 0's buffers"),
    ],
)
def test_what_cannot_be_predicted_is_said_in_one_line_and_is_no_error(tmp_path, begin, changes, why):
    expected = begin(**changes)
    assert expected.before.startswith("not predicted: ")
    assert why in expected.before
    assert "\n" not in expected.before
    assert (expected.step, expected.document) == (None, None)
    assert not RunFolder(tmp_path).prediction.exists()


def test_a_profile_of_another_schema_is_not_used(tmp_path, begin):
    (tmp_path / "profile.json").write_text(json.dumps({"schema": 1}))
    assert "is a profile of schema 1, made by another version" in begin(profile=None).before


def test_a_model_that_looks_at_values_is_not_predicted(begin, job):
    class Picky(torch.nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs.flatten(1)) * (1 if float(inputs.sum()) > 0 else 2)

    expected = begin(subject=replace(job, model=lambda: Picky(64, 10)))
    assert expected.before.startswith("not predicted: ")


def test_several_hosts_are_predicted_by_the_network_of_the_profile(begin):
    network = replace(LINK, name="network", bandwidth=1e6)
    placement = Placement(workers=(0, 1))
    row = begin(profile=replace(HERE, links=(LINK, network)), placement=placement).forecast.row
    assert row.breakdown.communicate > 0.01


def test_the_profile_of_the_machine_lies_in_the_cache_by_host_and_threads(tmp_path, monkeypatch):
    host = socket.gethostname()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert machine_profile(2) == tmp_path / "paceline" / f"profile-{host}-2.json"
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")  # which is no absolute path
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert machine_profile(1) == tmp_path / "home" / ".cache" / "paceline" / f"profile-{host}-1.json"


def test_the_word_machine_names_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert named_profile(Path("here.json"), 1) == Path("here.json")
    with pytest.raises(UsageError, match="no profile of this machine"):
        named_profile(Path("machine"), 1)
    assert main(["predict", "mlp", "--profile", "machine"]) == 2
    assert MAKE in capsys.readouterr().err
    (tmp_path / "paceline").mkdir()
    write_profile(HERE, machine_profile(1))
    assert main(["predict", "mlp", "--profile", "machine", "--workers", "1,2"]) == 0
    assert "profile 'here'" in capsys.readouterr().out


def test_one_command_measures_the_machine_and_keeps_its_profile(tmp_path, monkeypatch, capsys):
    """The measurements have tests of their own; here they are stated."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    found = DeviceFit(
        operators=9,
        networks=8,
        layers=1,
        dropped=0,
        flops=1e9,
        bandwidth=1e9,
        residuals={},
        rates={},
        steps=(0.1, 0.2),
        spread=0.1,
    )
    fit = ContentionFit(workers=2, short=1.3, long=1.1, links=(LINK,))

    def add(path: Path, workers: int, *, busy: bool) -> ContentionFit:
        assert (workers, busy) == (2, False)
        write_profile(add_contention(HERE, fit), path)
        return fit

    monkeypatch.setattr("paceline.cli.calibrate._calibrate_device", lambda *_, **__: (HERE, found))
    monkeypatch.setattr("paceline.cli.calibrate._links_apart", add)
    assert main(["calibrate", "machine", "--workers", "2"]) == 0
    out = capsys.readouterr().out
    assert f"written: {machine_profile(1)}" in out
    assert out.endswith("next: paceline train\n")
    assert json.loads(machine_profile(1).read_text())["contention_short"] == [1.0, 1.3]
    assert main(["calibrate", "machine", "--workers", "1"]) == 2
    assert "give 2 or more" in capsys.readouterr().err
