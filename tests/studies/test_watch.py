import os
import shutil
import socket
import time
from pathlib import Path

import pytest

from paceline.cli.main import main
from paceline.errors import UsageError
from paceline.records.events import EventWriter, MetricsRow, append_metrics
from paceline.records.files import to_document, write_json
from paceline.records.folder import RunFolder, RunLock, is_locked
from paceline.records.spans import Span, StepRecord
from paceline.records.summary import Started
from paceline.studies.watch import SECONDS, RunWatcher

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run that goes on, of which nothing is recorded yet."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    write_json(folder.config, {"settings": {"epochs": 4, "iterations": None}})
    return folder


def step(number: int, start: float, forward: float, wait: float = 0.0, **more) -> StepRecord:
    spans = [Span("forward", start, forward), Span("wait", start + forward, wait)]
    return StepRecord(number, 32, spans, **more)


def append(folder: RunFolder, rank: int, *records: StepRecord) -> None:
    with EventWriter(folder.events(rank)) as writer:
        for record in records:
            writer.append(record)


def test_rates_parts_and_the_rank_that_is_waited_for(run):
    for rank, (forward, wait) in enumerate(((0.1, 0.3), (0.4, 0.0))):
        append(run, rank, *(step(n + 1, 0.4 * n, forward, wait) for n in range(50)))
    state = RunWatcher(run).look()
    assert state.status == "running"
    assert [one.step for one in state.ranks] == [50, 50]
    assert state.samples_per_second == pytest.approx(2 * 32 / 0.4)
    assert state.last_steps.total == pytest.approx(0.4)
    assert state.last_steps.wait == pytest.approx(0.15)
    assert state.waited_for.rank == 1
    assert (state.waited_for.waiting, state.waited_for.others) == (0.0, pytest.approx(0.75))


def test_only_the_last_seconds_count_and_pauses_slow_the_rate(run):
    append(run, 0, *(step(n + 1, 0.5 * n, 0.5) for n in range(100)))
    watcher = RunWatcher(run)
    watcher.look()
    pause = StepRecord(100, 0, [Span("evaluate", 50.0, 1.0)], is_step=False)
    append(run, 0, pause, *(step(101 + n, 51 + 0.25 * n, 0.25) for n in range(4 * SECONDS)))
    state = watcher.look()
    assert state.last_steps.total == pytest.approx(0.25, rel=0.1)
    assert state.last_steps.wait == 0
    assert 3.5 < state.ranks[0].steps_per_second <= 4.0


def test_the_budget_is_known_from_the_start_or_from_evaluations_and_gives_the_time_left(run):
    append(run, 0, *(step(n + 1, 0.1 * n, 0.1) for n in range(20)))
    watcher = RunWatcher(run)
    assert (watcher.look().last_step, watcher.look().epochs) == (None, 4)
    append_metrics(run.metrics, MetricsRow(10, 0.5, 1.0, None, {}, 0.1, 1.0))
    state = watcher.look()
    assert state.last_step == 80
    assert state.seconds_left == pytest.approx(60 * 0.1)
    assert [row.step for row in state.rows] == [10]
    started = Started(
        name="run",
        job="digits",
        parameters=1,
        strategy="all-reduce",
        batch_sizes=(32,),
        transport="",
        last_step=84,
        steps_per_epoch=21,
    )
    write_json(run.start, to_document(started))
    assert watcher.look().last_step == 84


def test_silence_an_end_and_a_resumption_are_told_apart(run, monkeypatch):
    watcher = RunWatcher(run)
    assert watcher.look().status == "starting"
    append(run, 0, step(1, 0.0, 0.5))
    assert watcher.look().status == "running"
    now = time.time()
    os.utime(run.events(0), (now - 60, now - 60))
    state = watcher.look()
    assert state.status == "silent"
    assert state.silence == pytest.approx(60, abs=5)
    shutil.copy(GOLDEN / "served" / "summary.json", run.summary)
    assert watcher.look().status == "ended"
    assert watcher.look().summary.steps == 60
    os.utime(run.summary, (now - 60, now - 60))
    append(run, 0, step(2, 0.5, 0.5))
    assert watcher.look().status == "running", "it was resumed, and its summary is of the time before"


def test_steps_that_take_longer_than_the_silence_are_not_silence(run):
    append(run, 0, step(1, 0.0, 30.0))
    os.utime(run.events(0), (time.time() - 60, time.time() - 60))
    assert RunWatcher(run).look().status == "running"


def test_a_failed_run_names_the_traceback(run):
    append(run, 0, step(1, 0.0, 0.5))
    run.failure("rank-0").write_text("Traceback")
    state = RunWatcher(run).look()
    assert (state.status, state.failures) == ("failed", (str(run.failure("rank-0")),))


def test_a_lock_is_seen_without_being_touched(run):
    assert is_locked(run) is False
    with RunLock.own(run, 0):
        assert is_locked(run) is True
        assert RunWatcher(run).look().locked is True
    assert is_locked(run) is False


def test_workers_and_servers_of_a_real_run(tmp_path):
    path = shutil.copytree(GOLDEN / "served", tmp_path / "run")
    (path / "summary.json").unlink()
    state = RunWatcher(RunFolder(path)).look()
    assert [one.step for one in state.ranks] == [61, 59]
    assert [one.usage.pid for one in state.ranks] == [5412, 5413]
    assert state.waited_for.rank == 1, "it was slowed down"
    (server,) = state.servers
    assert server.version == 65
    assert 0 < server.staleness < 2
    assert state.last_step == 60


def test_a_folder_that_is_gone_is_a_mistake(run):
    watcher = RunWatcher(run)
    shutil.rmtree(run.path)
    with pytest.raises(UsageError, match="there is no such folder"):
        watcher.look()


def test_what_is_held_does_not_grow_with_the_run(run):
    watcher = RunWatcher(run)
    for block in range(30):
        append(run, 0, *(step(block * 100 + n, block * 100 + n, 1.0) for n in range(100)))
        watcher.look()
    work, _ = watcher._ranks[0]
    assert len(work._seconds) == SECONDS


def test_a_silent_run_of_this_host_that_no_process_uses_is_over(run, capsys):
    """If this failed, whoever watches a run that was killed would wait for ever."""
    append(run, 0, step(1, 0.0, 0.5))
    os.utime(run.events(0), (time.time() - 60, time.time() - 60))
    with RunLock.own(run, 0):
        write_json(run.env, {"host": "elsewhere"})
        assert not RunWatcher(run).look().over
        write_json(run.env, {"host": socket.gethostname()})
        assert not RunWatcher(run).look().over, "a process of this host uses it"
    state = RunWatcher(run).look()
    assert (state.status, state.abandoned, state.over) == ("silent", True, True)
    assert main(["watch", str(run.path)]) == 0
    told = capsys.readouterr().out
    assert told.count("silent for") == 1
    assert "no process of this host, which recorded it, uses it: it was killed" in told
    run.lock(1).touch()
    assert not RunWatcher(run).look().over, "processes of another host have used it"
