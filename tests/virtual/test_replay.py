"""A recorded run again: the same messages in the same order make the same parameters, and a forged log is noticed."""

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import torch
from test_company import company
from virtual_helpers import Kept, StepTimes, make_job, prepared_of, random_model, settings_of, with_gradients

from paceline.cli.main import main
from paceline.clusters.cluster import Cluster, Host, Link
from paceline.costs.topology import Topology
from paceline.errors import RunFailed, UsageError
from paceline.records.folder import RunFolder
from paceline.records.servers import Received, Updated
from paceline.records.spans import StepBreakdown
from paceline.records.tensors import read_tensors, write_tensors
from paceline.runtimes.settings import Cadence, Settings
from paceline.runtimes.virtual.replay import Recording, read_recording, replay

SPECS = ("async", "ssp:staleness=1", "ps:backup=1", "async:every=2.5,damped=true")
JITTER = StepTimes(step=StepBreakdown(forward=1.0, backward=2.0, apply=0.1), serve=0.05, jitter=0.8)


def uneven() -> Cluster:
    """One dies, one comes late, one comes late and leaves again."""
    link = Link(bandwidth=20e3, latency=0.05)
    lives = ({}, {"dies": 21.0}, {"start": 8.0}, {"start": 12.0, "steps": 3}, {})
    hosts = tuple(Host(name=f"h{rank}", link=link, **life) for rank, life in enumerate(lives))
    return Cluster.of(hosts, times=JITTER)


def recorded(cluster: Cluster, spec: str, servers: int = 1, **changes) -> tuple[Recording, Kept, Settings]:
    changes = {"iterations": 14, "evaluate": Cadence(4, "steps"), "servers": servers} | changes
    _, kept = with_gradients(make_job(random_model), cluster, strategy_name=spec, **changes)
    settings = settings_of(cluster.workers, strategy=spec, **changes)
    founders = tuple(
        rank for rank, host in enumerate(Topology(cluster).workers) if not cluster.hosts[host].start
    )
    logs = {rank: list(log) for rank, log in kept.logs.items()}
    recording = Recording(
        folder=RunFolder(Path("recorded")),
        settings=settings,
        gradients=True,
        threads=1,
        initial_workers=founders,
        logs=logs,
    )
    return recording, kept, settings


def repeated(recording: Recording) -> Kept:
    settings, job = recording.settings, make_job(random_model)
    kept = Kept()
    replay(recording, prepared_of(settings, job), observer=kept, recorder=kept)
    return kept


def check_same(one: Kept, other: Kept) -> None:
    assert one.model is not None
    assert all(torch.equal(one.model[name], other.model[name]) for name in one.model)
    assert [replace(row, seconds=0.0) for row in one.rows] == [
        replace(row, seconds=0.0) for row in other.rows
    ]


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("spec", SPECS)
def test_a_replay_ends_with_the_same_parameters_to_the_bit(spec: str, servers: int) -> None:
    recording, kept, _ = recorded(uneven(), spec, servers)
    again = repeated(recording)
    check_same(kept, again)
    assert again.logs == recording.logs


@pytest.mark.parametrize("seed", range(12))
def test_any_company_can_be_replayed(seed: int) -> None:
    draw = random.Random(seed)
    recording, kept, _ = recorded(company(draw), SPECS[seed % len(SPECS)], 1 + seed % 2, seed=seed)
    check_same(kept, repeated(recording))


def test_another_order_of_the_same_messages_is_another_run() -> None:
    """Else the order would not be what a replay follows."""
    recording, _, _ = recorded(uneven(), "async")
    log = list(recording.logs[0])
    places = [
        place for place, entry in enumerate(log) if isinstance(entry, Received) and entry.kind == "Push"
    ]
    one, other = next((a, b) for a, b in pairwise(places) if log[a].worker != log[b].worker)
    log[one], log[other] = log[other], log[one]
    with pytest.raises(RunFailed, match=r"update .* of server 0 was made of worker"):
        repeated(replace(recording, logs={0: log}))


@pytest.mark.parametrize("spec", SPECS)
def test_a_forged_log_is_noticed_at_the_first_update_that_differs(spec: str) -> None:
    recording, _, _ = recorded(uneven(), spec)
    log = list(recording.logs[0])
    place, update = [(place, entry) for place, entry in enumerate(log) if isinstance(entry, Updated)][5]
    log[place] = msgspec.structs.replace(
        update, used=(update.used[0]._replace(staleness=7), *update.used[1:])
    )
    with pytest.raises(RunFailed, match=rf"update {update.version} of server 0 .*staleness 7"):
        repeated(replace(recording, logs={0: log}))
    log[place : place + 1] = []
    with pytest.raises(RunFailed, match=f"update {update.version} of server 0"):
        repeated(replace(recording, logs={0: log}))
    forged = [
        msgspec.structs.replace(entry, clock=99)
        if isinstance(entry, Received) and entry.kind == "Push"
        else entry
        for entry in recording.logs[0]
    ]
    with pytest.raises(RunFailed, match=r"a Push of worker . at clock 99 on version 0 .*never arrives"):
        repeated(replace(recording, logs={0: forged}))


def test_a_run_without_servers_cannot_be_replayed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no config\.json"):
        read_recording(RunFolder(tmp_path))


def test_the_command_says_whether_the_parameters_are_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    runs = ("--runs", str(tmp_path / "runs"))
    where = ("--workers", "3", "--slow", "1=2.5", "--model", "mlp:hidden=4")
    assert main(["simulate", "--strategy", "async", *where, "--epochs", "1", *runs]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    capsys.readouterr()
    assert main(["simulate", "--replay", str(folder), *runs]) == 0
    told = capsys.readouterr().out
    assert "equal to the last bit" in told
    assert "async over a replay of" in told, "the strategy is shown with settings that are as usual"
    assert "steps a worker, 1 epoch" in told
    assert "where a step went" not in told, "nothing was timed"
    assert "samples/s" not in told.rpartition("steps a worker")[2]
    model = read_tensors(folder / "model.safetensors")
    model["1.bias"][2] += 0.125
    write_tensors(folder / "model.safetensors", model)
    assert main(["simulate", "--replay", str(folder), *runs]) == 3
    assert "the parameters differ: by 0.125 at most, in 1.bias" in capsys.readouterr().out
    assert main(["simulate", "--replay", str(folder), "--lr", "0.1", *runs]) == 2
    assert "--lr has no place" in capsys.readouterr().err
