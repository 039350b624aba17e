"""Heartbeats, stop requests and failure notes, each alone and in this process."""

import os
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from paceline.errors import RunFailed, UsageError, users_line
from paceline.loop.script import Script
from paceline.runtimes.live import signals
from paceline.runtimes.live.failures import (
    Failure,
    FailureKind,
    read_note,
    root_cause,
    sentence,
    what_next,
)
from paceline.runtimes.live.heartbeat import Heartbeat, read_progress
from paceline.runtimes.live.launcher.processes import LaunchPlan, Process
from paceline.runtimes.live.launcher.supervisor import ExitReporter, Supervisor
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.signals import StopRequest
from paceline.runtimes.live.timeouts import AFTER_INTERRUPT, PATIENCE, RESCUE
from paceline.runtimes.live.worker.guard import _Notes, lost_peer, run_guarded
from run_folders import saved_run

GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234"


def worker(rank: int, launch: Path) -> ProcessInfo:
    return ProcessInfo(rank=rank, workers=2, launch=launch)


def failure(kind: FailureKind, rank: int, at: float) -> Failure:
    return Failure(rank=rank, host="node-b", kind=kind, at=at, step=812)


def test_a_heartbeat_can_be_read_after_the_worker_has_died(tmp_path: Path) -> None:
    """If this failed, nobody would know at which step a killed worker died."""
    assert read_progress(worker(1, tmp_path)).step == 0
    child = os.fork()
    if child == 0:
        heartbeat = Heartbeat(worker(1, tmp_path))
        heartbeat.show(tmp_path / "runs" / "a run")
        heartbeat.beat(812)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    pulse = read_progress(worker(1, tmp_path))
    assert (pulse.step, pulse.run) == (812, tmp_path / "runs" / "a run")
    assert time.time() - pulse.at < 10


def test_the_cause_is_the_first_failure_that_has_one() -> None:
    """If this failed, the survivors' broken connections would be told as the cause."""
    killed, error = failure("killed", 1, 5.0), failure("error", 2, 4.0)
    lost, stopped = failure("lost-peer", 0, 1.0), failure("stopped", 3, 0.0)
    assert root_cause([stopped, lost, killed]) is killed
    assert root_cause([stopped, lost, killed, error]) is error
    assert root_cause([stopped, lost]) is lost


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError(GLOO), True),
        (RuntimeError("Socket Timeout"), True),
        (ConnectionResetError("Connection reset by peer"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("connection closed by peer"), False),
    ],
)
def test_a_lost_peer_is_told_from_an_error_here(error: Exception, expected: bool) -> None:
    """If this failed, a user's own error would be taken for a network failure, or the other way round."""
    assert lost_peer(error) is expected


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("raise RuntimeError('upload to S3 failed: Broken pipe')", False),
        ("import socket\nsocket.create_connection(('127.0.0.1', 1), 5)", False),
        ("raise RuntimeError(f'step 3: {GLOO}')", True),
        ("import torch\ntorch.distributed.exchange(RuntimeError('Broken pipe'))", True),
        ("import torch\ntorch.distributed.exchange(lambda: load())", False),
    ],
)
def test_a_scripts_own_connection_is_not_that_between_workers(
    script: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this failed, the other workers would be blamed for it, and its traceback be lost."""
    inside = {"__name__": "torch.distributed.stand_in"}
    code = "def exchange(found):\n    if callable(found):\n        found()\n    raise found"
    exec(compile(code, torch.distributed.__file__, "exec"), inside)
    monkeypatch.setattr(torch.distributed, "exchange", inside["exchange"], raising=False)
    own = "def load():\n    raise ConnectionResetError('Connection reset by peer')\n"
    names = {"__name__": "__main__", "GLOO": GLOO}
    with pytest.raises((RuntimeError, ConnectionError)) as raised:
        exec(compile(own + script, tmp_path / "script.py", "exec"), names)
    assert lost_peer(raised.value) is expected


def test_a_script_that_cannot_be_compiled_is_told_as_python_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """If this failed, a user would read this package's frames in place of the line."""
    path = tmp_path / "script.py"
    path.write_text("x = 1\ny = = 2\n")
    assert run_guarded(ProcessInfo(), lambda *_: Script(path=str(path)).run()) == 1  # type: ignore[arg-type,return-value]
    told = capsys.readouterr().err.splitlines()
    assert told[0] == f'  File "{path}", line 2'
    assert "SyntaxError: invalid syntax" in told
    assert "failed before its first step: SyntaxError: invalid syntax (script.py, line 2)" in told[-1]


def test_a_cause_that_ended_a_moment_after_its_consequence_is_still_told(tmp_path: Path) -> None:
    """If this failed, a worker that is slow to end would leave the user with "lost contact" and no cause."""
    failure("error", 0, 2.0).write(worker(0, tmp_path))
    failure("lost-peer", 1, 1.0).write(worker(1, tmp_path))
    posted: list[Failure] = []
    meeting = SimpleNamespace(post=posted.append)
    supervisor = Supervisor(LaunchPlan(workers=2), meeting, tmp_path, lambda _: None)  # type: ignore[arg-type]
    supervisor.host.all[1].ended_at, supervisor.host.all[1].code = 1.0, 1
    with pytest.raises(RunFailed, match=r"^rank 0 on node-b failed at step 812"):
        ExitReporter(supervisor).exit_code()
    assert [note.rank for note in posted] == [0], "other hosts would only hear that a worker is gone"


def test_an_error_that_no_line_of_the_user_is_in_is_told_with_the_line_of_torch() -> None:
    """If this failed, a model of torch's own layers whose shapes do not fit would be told without any place."""
    with pytest.raises(RuntimeError) as raised:
        torch.nn.Sequential(torch.nn.Linear(3, 4))(torch.ones(2, 5))
    inside = raised.value.with_traceback(raised.value.__traceback__.tb_next)  # without this file's own line
    assert re.fullmatch(r"linear\.py:\d+ in forward", users_line(inside))


def test_a_run_that_diverged_before_its_first_checkpoint_is_not_told_to_start_alike() -> None:
    told = what_next(
        "Safe: no checkpoint yet; start again with the same command.", failure("diverged", 0, 1.0)
    )
    assert told == "Safe: no checkpoint yet; start again with other settings or data.", (
        "in the first step no learning rate is to blame"
    )


def test_a_workers_first_note_stands(tmp_path: Path) -> None:
    """If this failed, the note of a cause would be overwritten while the worker is being ended."""
    failure("error", 0, 1.0).write(worker(0, tmp_path))
    failure("stopped", 0, 2.0).write(worker(0, tmp_path))
    note = read_note(worker(0, tmp_path))
    assert note == failure("error", 0, 1.0)
    assert sentence(note).startswith("rank 0 on node-b failed at step 812")


def test_a_stop_request_is_a_flag_and_the_old_handlers_come_back() -> None:
    """If this failed, Ctrl-C would break a worker out of a collective and lose its last checkpoint."""
    before = signal.getsignal(signal.SIGINT)
    with StopRequest(lambda _: None) as stopping:
        assert not stopping()
        os.kill(os.getpid(), signal.SIGINT)
        _wait_for(stopping)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("sent", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT]])
def test_a_worker_that_does_not_stop_is_ended(sent: list[signal.Signals]) -> None:
    """If this failed, a worker stuck in a collective would stay for half an hour."""
    ended: list[int] = []
    with StopRequest(ended.append, patience={signal.SIGTERM: 0.05, signal.SIGINT: 60.0}):
        for signum in sent:
            os.kill(os.getpid(), signum)
        _wait_for(lambda: bool(ended))
    assert ended == [sent[0]]


def test_what_is_kept_in_memory_is_rescued_before_a_worker_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this failed, a worker that is ended hard would lose its record, or a dead disk would keep it alive."""
    monkeypatch.setattr(signals, "RESCUE", 0.1)
    told: list[object] = []
    with StopRequest(told.append, patience={signal.SIGTERM: 0.05}) as stopping:
        stopping.before_hard_end(lambda: told.append("written"))
        stopping.before_hard_end(lambda: time.sleep(3))
        os.kill(os.getpid(), signal.SIGTERM)
        _wait_for(lambda: len(told) == 2)
    assert told == ["written", signal.SIGTERM]


def test_a_worker_that_is_ended_says_what_is_safe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this failed, a user of another launcher would not know whether anything was saved."""
    monkeypatch.setattr(os, "_exit", lambda code: None)
    saved_run(tmp_path, 4, workers=1)
    place = ProcessInfo(host="node-a")
    heartbeat = Heartbeat(place)
    heartbeat.show(tmp_path)
    heartbeat.beat(6)
    _Notes(place, heartbeat).end_hard(signal.SIGINT)
    what, safe, resume = capsys.readouterr().err.splitlines()
    assert what == "paceline: rank 0 on node-a could not stop in time after SIGINT, at step 6"
    assert safe.startswith("Safe: checkpoint of step 4")
    assert resume == f"Resume: paceline train --resume {tmp_path}"


def test_workers_give_up_before_their_launcher_gives_them_up() -> None:
    """If this failed, workers would be killed while they still wait for the end of a round."""
    assert PATIENCE[signal.SIGINT] + RESCUE < AFTER_INTERRUPT


def test_a_worker_of_another_launcher_prints_its_own_cause(capsys: pytest.CaptureFixture[str]) -> None:
    """If this failed, torchrun would end a run without saying why."""

    def fail(heartbeat: Heartbeat, stopping: StopRequest) -> None:
        heartbeat.beat(7)
        raise ValueError("a bad label")

    def err(heartbeat: Heartbeat, stopping: StopRequest) -> None:
        raise UsageError("'spp' is no strategy")

    place = ProcessInfo(rank=1, workers=2, host="node-b")
    assert run_guarded(place, fail) == 1  # type: ignore[arg-type]
    last = capsys.readouterr().err.splitlines()[-1]
    line = sys._getframe().f_lineno
    assert last.startswith(
        "paceline: rank 1 on node-b failed at step 7: ValueError: a bad label (test_launch_notes.py:"
    )
    assert int(last.rpartition(":")[2].split()[0]) < line
    assert run_guarded(place, err) == 2  # type: ignore[arg-type]
    assert capsys.readouterr().err == "paceline: 'spp' is no strategy\n"


def _wait_for(condition: object) -> None:
    deadline = time.monotonic() + 5
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_kill_that_is_seen_after_its_consequence_is_still_the_cause(tmp_path: Path) -> None:
    """If this failed, a loaded machine would now and then blame the worker that only noticed."""
    process = Process(worker(0, tmp_path))

    def kind(code: int, after: float, *, killed: bool = False) -> str:
        process.code, process.ended_at, process.killed = code, 100.0 + after, killed
        return process.failure(100.0).kind  # type: ignore[union-attr]

    assert kind(-9, 0.0003) == kind(-9, -1.0) == "killed"
    assert kind(-9, 9.0) == "killed", "out of memory while the others ended"
    assert kind(-9, 9.0, killed=True) == "stopped", "the launcher's own, after it asked in vain"
    assert kind(-15, 0.2) == "stopped"
    assert kind(-15, -0.2) == "killed"
    assert kind(1, 0.2) == "exited"
