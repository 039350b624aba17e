"""What a strategy leaves open of its learners is measured before a live run, and part of it from then on."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from command import run_json
from paceline.jobs.build import build_job
from paceline.jobs.spec import JobSpec
from paceline.records.files import read_sealed
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.worker import learners
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.runtimes.prepare import Prepared, prepare, prepare_job
from paceline.runtimes.settings import Settings
from paceline.strategies import build_strategy


class Phases(Heartbeat):
    def __init__(self) -> None:
        self.entered: list[str] = []

    def enter(self, phase) -> None:
        self.entered.append(phase)


def settings_of(strategy: str, **changes: Any) -> Settings:
    job = JobSpec(model="mlp:hidden=8", schedule="constant:warmup=1")
    return Settings(job=job, strategy=strategy, batch_sizes=(4,), epochs=1, **changes)


def decide(strategy: str, notes: list[str], prepared: Prepared | None = None, **changes: Any) -> Prepared:
    settings = settings_of(strategy, **changes)
    cpu = torch.device("cpu")
    prepared = prepared or prepare(settings)
    return learners.decide_learners(settings, prepared, SoloComm(), cpu, Phases(), notes.append)


@pytest.fixture(autouse=True)
def short_trials(monkeypatch):
    monkeypatch.setattr(learners, "ENOUGH", 0.005)


def test_what_is_stated_is_not_measured():
    notes: list[str] = []
    prepared = prepare(settings_of("sma:learners=4,compute=in-turn"))
    assert decide("sma:learners=4,compute=in-turn", notes, prepared) is prepared
    assert notes == []


def test_the_faster_way_is_taken_and_told(monkeypatch):
    rates = {"in-turn": 100.0, "together": 150.0}
    monkeypatch.setattr(learners.LearnerTrials, "_rate", lambda _, plan: rates[plan.compute])
    notes: list[str] = []
    decided = decide("sma:learners=4", notes)
    assert decided.settings.strategy == "sma:learners=4,compute=together"
    assert decided.shards.batch_sizes == (16,)
    assert notes == ["4 learners a worker, computed together: samples/s were 100 in turn, 150 together"]


def test_as_many_learners_as_pay_are_taken_and_told(monkeypatch):
    monkeypatch.setattr(
        learners.LearnerTrials,
        "_rate",
        lambda _, plan: 90.0 * min(4, plan.count) if plan.compute == "together" else 100.0,
    )
    notes: list[str] = []
    decided = decide("sma:learners=auto", notes)
    assert decided.settings.strategy == "sma:learners=4,compute=together"
    assert notes == [
        "4 learners a worker, computed together: samples/s were 100 in turn with 1, 180 together with 2, 100 in turn "
        "with 4, 360 together with 4, 360 together with 8, 360 together with 16"
    ]


def test_the_learning_rate_is_scaled_for_the_learners_that_were_found(monkeypatch):
    """As a run with as many learners from the start has it: a resumed run is one, and must have the same rate."""
    monkeypatch.setattr(learners.LearnerTrials, "_rate", lambda _, plan: 90.0 * plan.count)
    decided = decide("sma:learners=auto", [], scale_lr="linear")
    count = decided.learners
    assert count > 1
    resumed = prepare(decided.settings)
    assert decided.rate_factor == resumed.rate_factor == count
    assert [decided.job.schedule(epoch) for epoch in (0, 0.5, 1)] == [1, (1 + count) / 2, count]
    assert [resumed.job.schedule(epoch) for epoch in (0, 0.5, 1)] == [1, (1 + count) / 2, count]


class Looks(nn.Sequential):
    def forward(self, pictures: Tensor) -> Tensor:
        scores = super().forward(pictures)
        return scores if scores.sum() > 0 else -scores


def test_learners_that_cannot_be_computed_together_are_computed_in_turn_and_the_note_says_why():
    """As it is measured, but shortly; random streams stay where they are."""
    settings = settings_of("sma:learners=2")
    job = build_job(settings.job)
    object.__setattr__(job, "model", lambda: Looks(nn.Flatten(), nn.Linear(64, 10)))
    before, notes = torch.get_rng_state(), list[str]()
    prepared = prepare_job(settings, job, build_strategy(settings.strategy))
    decided = decide(settings.strategy, notes, prepared)
    assert decided.settings.strategy == "sma:learners=2,compute=in-turn"
    (note,) = notes
    assert note.startswith("2 learners a worker, computed in turn: samples/s were ")
    assert "cannot be computed together: RuntimeError" in note
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_that_was_measured_keeps_what_was_found(tmp_path):
    words = ("train", "--model", "mlp:hidden=8", "--workers", "1", "--batch-size", "4", "--iterations", "3")
    document = run_json(*words, "--strategy", "sma:learners=2", cwd=tmp_path)
    spec = read_sealed(tmp_path / document["run"]["folder"] / "config.json")["settings"]["strategy"]
    assert spec.startswith(("sma:learners=2,compute=together", "sma:learners=2,compute=in-turn"))
    resumed = run_json("train", "--resume", document["run"]["folder"], "--iterations", "5", cwd=tmp_path)
    assert resumed["run"]["strategy"] == document["run"]["strategy"]
    assert resumed["run"]["first_step"] == 3
