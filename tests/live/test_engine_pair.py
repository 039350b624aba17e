"""Two real workers on the loopback go through all scenarios once; the tests look at what they left."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import engine_jobs
import pytest
import torch
from engine_pair import SETTINGS, Pulse

from paceline.collectives import SCHEDULES
from paceline.jobs.sharding import Shards
from paceline.records.events import read_events
from paceline.records.files import from_document
from paceline.records.folder import RunFolder
from paceline.records.spans import TimeLedger, Totals
from paceline.records.tensors import read_tensors
from paceline.runtimes.config import read_live
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.request import LiveOptions, ProcessTask
from paceline.runtimes.live.worker.start import run_worker
from run_folders import checkpoints_of


@pytest.fixture(scope="module")
def out(run_ranks: Callable[..., Path]) -> Path:
    return run_ranks("engine_pair.py")


def run_of(out: Path, name: str) -> RunFolder:
    (path,) = (out / name).iterdir()
    return RunFolder(path)


def last(out: Path, name: str, rank: int, step: int) -> dict[str, Any]:
    return checkpoints_of(run_of(out, name)).load(step, rank)


def facts(out: Path, name: str, rank: int = 0) -> dict[str, Any]:
    return json.loads((out / f"{name}-{rank}.json").read_text())


def rows(out: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in run_of(out, name).metrics.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def one_worker(tmp_path: Path, name: str) -> RunFolder:
    """The same job on one worker with the batches of both."""
    chosen = SETTINGS[name]
    alone = replace(chosen, batch_sizes=(sum(chosen.batch_sizes),), slow={})
    pulse = Pulse()
    run_worker(
        ProcessTask(
            settings=alone,
            options=LiveOptions(threads=1),
            info=ProcessInfo(),
            runs=tmp_path,
            heartbeat=pulse,
            stop_requested=lambda: False,
        ),
        pulse,
    )
    return RunFolder(pulse.run)


@pytest.mark.parametrize("name", ["cnn", "leftover", "uneven", "partial"])
def test_two_workers_do_what_one_of_both_batches_does(out: Path, tmp_path: Path, name: str) -> None:
    alone = read_tensors(one_worker(tmp_path, name).model)
    together = read_tensors(run_of(out, name).model)
    assert alone.keys() == together.keys()
    for key, value in alone.items():
        assert torch.allclose(value, together[key], atol=1e-5), key


@pytest.mark.parametrize("name", ["cnn", "norm"])
def test_parameters_and_buffers_are_those_of_ddp(out: Path, name: str) -> None:
    theirs = read_tensors(out / f"{name}-ddp.safetensors")
    ours = last(out, name, 0, 30)["replica"]
    flat = torch.cat(
        [value.reshape(-1) for key, value in theirs.items() if "running" not in key and "num" not in key]
    )
    assert (ours["params"] - flat).abs().max() <= 1e-6
    for key, value in ours["model"].items():
        assert torch.allclose(value.float(), theirs[key].float(), atol=1e-6), key


@pytest.mark.parametrize(("name", "step"), [("cnn", 30), ("leftover", 9), ("uneven", 12), ("partial", 5)])
def test_replicas_are_equal_to_the_last_bit(out: Path, name: str, step: int) -> None:
    first, second = (last(out, name, rank, step)["replica"]["params"] for rank in range(2))
    assert torch.equal(first, second)


def test_local_sgd_replicas_differ_in_a_round_and_not_after_it(out: Path) -> None:
    first, second = (last(out, "period", rank, 30)["replica"]["params"] for rank in range(2))
    assert not torch.equal(first, second), "step 30 lies in a round of 7, and the workers saw other samples"
    assert [last(out, "period", rank, 30)["worker"]["samples_since_sync"] for rank in range(2)] == [16, 16]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["cnn", "uneven", "period", "seconds", "stopped", "killed"])
def test_every_moment_belongs_to_one_span(out: Path, name: str, rank: int) -> None:
    run = run_of(out, name)
    end = None
    for record in read_events(run.events(rank)):
        for span in record.spans:
            # The host's ranks agree on a moment first, and begin their records a little later.
            gap = 0.0 if end is None and 0 <= span.start < 0.1 else span.start - (end or 0.0)
            # Where a run was stopped, or killed, and went on, time without a record lies between two spans.
            assert gap == pytest.approx(0, abs=1e-8) or (name in ("stopped", "killed") and gap > 0)
            end = span.start + span.length
    assert end == pytest.approx(json.loads(run.summary.read_text())["seconds"], abs=0.1), (
        "clocks start together"
    )


def test_totals_are_the_sum_of_the_events(out: Path) -> None:
    run = run_of(out, "killed")
    for rank, totals in enumerate(json.loads(run.summary.read_text())["totals"]):
        ledger = TimeLedger()
        for record in read_events(run.events(rank)):
            ledger.add(record)
        added = ledger.totals()
        assert added.steps == totals["steps"] == 30
        assert added.sent == totals["sent"]
        assert added.seconds == pytest.approx(totals["seconds"], abs=1e-6)
        assert added.warm_up_steps == totals["warm_up_steps"] == 2, "the run was killed once, and resumed"
        told = from_document(totals, Totals)
        assert added.typical.total == pytest.approx(told.typical.total, abs=1e-6)
        whole = told.in_steps.total + told.in_warm_up.total + sum(told.outside.values())
        assert whole == pytest.approx(sum(totals["seconds"].values())), "no time disappears"
        assert whole == pytest.approx(json.loads(run.summary.read_text())["seconds"], abs=0.1)


def test_bytes_counted_are_the_bytes_on_the_sockets(out: Path) -> None:
    for name in ("uneven-gloo", "cnn-gloo"):
        counted = facts(out, name)["totals"][0]["sent"]
        assert facts(out, name)["acknowledged"] == pytest.approx(counted, rel=0.02), name
    assert facts(out, "cnn")["acknowledged"] < 0.1 * facts(out, "cnn-gloo")["acknowledged"]  # through memory


@pytest.mark.parametrize(("name", "step"), [("cnn", 30), ("uneven", 12), ("partial", 5)])
def test_shared_memory_changes_nothing_but_the_way(out: Path, name: str, step: int) -> None:
    shared, wired = (last(out, run, 0, step)["replica"]["params"] for run in (name, f"{name}-gloo"))
    assert torch.equal(shared, wired)
    assert facts(out, name)["totals"][0]["sent"] == facts(out, f"{name}-gloo")["totals"][0]["sent"]


@pytest.mark.parametrize("name", SCHEDULES)
def test_training_by_a_schedule_is_training_by_the_backend(out: Path, name: str) -> None:
    native, *ranks = (
        last(out, run, rank, 30)["replica"]["params"]
        for run, rank in (("cnn", 0), (f"cnn-{name}", 0), (f"cnn-{name}", 1))
    )
    assert torch.equal(*ranks), "replicas are equal to the last bit"
    assert (ranks[0] - native).abs().max() <= 1e-6
    assert read_live(run_of(out, f"cnn-{name}")).settings.collective == name, (
        "so that it goes on with --resume"
    )


@pytest.mark.parametrize("name", SCHEDULES)
def test_bytes_of_a_schedule_are_the_bytes_on_the_sockets(out: Path, name: str) -> None:
    found = facts(out, f"cnn-{name}")
    assert found["acknowledged"] == pytest.approx(found["totals"][0]["sent"], rel=0.05)


def test_a_worker_that_is_left_in_the_middle_of_a_schedule_notices(out: Path) -> None:
    assert facts(out, "left-ring", 0)["error"] == "scripted failure at step 5"
    assert "peer" in facts(out, "left-ring", 1)["error"]


def test_a_slow_worker_makes_the_other_wait(out: Path) -> None:
    fast, slow = (totals["seconds"] for totals in facts(out, "slowed")["totals"])
    assert slow["backward"] > fast["backward"]
    assert fast["wait"] > slow["wait"]
    assert fast["communicate"] == pytest.approx(slow["communicate"], rel=0.01)


def test_traffic_runs_behind_a_slow_backward(out: Path) -> None:
    assert facts(out, "slowed")["totals"][1]["typical"]["hidden"] > 0


def test_a_vote_to_stop_stops_all_at_the_same_step_and_a_damaged_file_is_refused_by_name(out: Path) -> None:
    for rank in range(2):
        found = facts(out, "stopped", rank)
        assert (found["ending"], found["at"], found["again"]) == ("interrupted", 9, "budget")
    notes = facts(out, "stopped")["notes"]
    assert any("step-00000009/rank-1.safetensors" in note for note in notes)
    assert facts(out, "stopped", 1)["notes"] == [], "only rank 0 talks"


def test_workers_stop_at_the_same_step_where_no_reduction_carries_a_vote(out: Path) -> None:
    first, second = (facts(out, "baton", rank) for rank in range(2))
    assert (first["ending"], second["ending"]) == ("interrupted", "interrupted")
    assert first["at"] == second["at"] >= 50
    resumed, unstopped = (read_tensors(run_of(out, name).model) for name in ("baton", "baton-not"))
    assert all(torch.equal(resumed[key], unstopped[key]) for key in unstopped)


def test_what_comes_before_the_first_step_is_on_the_disk_before_the_second(out: Path) -> None:
    """If this failed, steps behind it would be kept in memory until the next exchange, however far."""
    assert all(facts(out, "baton", rank)["lines"] >= 1 for rank in range(2))


def test_a_worker_without_samples_still_takes_a_step(out: Path) -> None:
    for rank in range(2):
        steps = [record for record in read_events(run_of(out, "leftover").events(rank)) if record.is_step]
        assert [record.step for record in steps] == list(range(1, 10))
        assert facts(out, "leftover")["totals"][rank]["steps"] == 9


@pytest.mark.parametrize("name", ["stopped", "killed"])
def test_a_resumed_run_is_the_run_that_was_never_stopped(out: Path, name: str) -> None:
    assert rows(out, name) == rows(out, f"{name}-not")
    for rank in range(2):
        resumed, unstopped = (last(out, which, rank, 30)["replica"] for which in (name, f"{name}-not"))
        assert torch.equal(resumed["params"], unstopped["params"])
        assert torch.equal(resumed["rng"]["torch"], unstopped["rng"]["torch"])
        assert torch.equal(
            resumed["optimizer"]["0"]["momentum_buffer"], unstopped["optimizer"]["0"]["momentum_buffer"]
        )


def test_a_failure_reaches_both_workers_and_leaves_their_records(out: Path) -> None:
    assert facts(out, "killed", 0)["error"] == "scripted failure at step 17"
    assert facts(out, "killed", 1)["error"] == "rank 0 has left (during all_reduce)"
    steps = [record.step for record in read_events(out / "killed-events-0.jsonl")]
    assert steps[-1] == 17


def test_the_last_checkpoints_are_kept(out: Path) -> None:
    names = sorted(path.name for path in run_of(out, "stopped-not").checkpoints.glob("step-*"))
    assert names == ["step-00000021", "step-00000028", "step-00000030"]


def test_seconds_let_workers_differ_in_steps_and_still_end_together(out: Path) -> None:
    ends = [facts(out, "seconds", rank) for rank in range(2)]
    assert ends[0]["steps"] == ends[1]["steps"] >= 30
    shards = Shards(samples=len(engine_jobs.dropout().train), batch_sizes=(8, 8), seed=1)
    assert shards.steps_through(ends[0]["samples"]) == ends[0]["steps"]
