"""Runs with servers, by stand-ins: whose death the run survives, whose it does not, and what the user is told."""

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.errors import RunFailed, UsageError
from paceline.runtimes.live.failures import CompleteSteps, Failure, FailureKind
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.launch_folder import write_servers
from paceline.runtimes.live.launcher.launch import launch
from paceline.runtimes.live.launcher.peers import LauncherGroup
from paceline.runtimes.live.launcher.processes import LaunchPlan
from paceline.runtimes.live.launcher.supervisor import ExitReporter, Supervisor
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.signals import StopRequest
from paceline.runtimes.live.timeouts import PATIENCE
from paceline.runtimes.live.worker.guard import patience_of
from run_folders import saved_run

STAND_IN = Path(__file__).with_name("stand_in_served.py")


def run(behaviour: str, servers: int = 1, say=lambda sentence: None) -> int:
    plan = LaunchPlan(workers=2, servers=servers)
    return launch([sys.executable, str(STAND_IN), behaviour], plan, say=say)


def test_a_run_with_servers_ends_when_all_have_ended() -> None:
    """If this failed, servers would be cut off, or nobody could read the secret."""
    assert run("steps=3", servers=2) == 0


def test_a_worker_that_is_killed_is_told_at_once_and_the_run_ends_well() -> None:
    """If this failed, one dead worker would end what the others could have finished."""
    told: list[tuple[float, str]] = []
    code = run("worker-1=kill@5,steps=100", say=lambda sentence: told.append((time.monotonic(), sentence)))
    assert code == 0
    ((at, sentence),) = told
    assert re.fullmatch(
        r"rank 1 on \S+ died at step 5 \(killed by signal 9, SIGKILL\); the run goes on with the others\.",
        sentence,
    )
    assert time.monotonic() - at > 0.5, "told while the other still trained"


def test_a_worker_that_raises_is_told_and_the_run_ends_well() -> None:
    """If this failed, a user's error on one worker would vanish, because the run as a whole went well."""
    told: list[str] = []
    assert run("worker-0=raise@5,steps=60", say=told.append) == 0
    words = r"rank 0 on \S+ failed at step 5: ValueError: a bad label, 11; the run goes on with the others\."
    assert re.fullmatch(words, told[0])


def test_a_server_that_is_killed_ends_the_run_with_what_is_safe(tmp_path: Path) -> None:
    """If this failed, workers would wait for a server that never answers."""
    saved_run(tmp_path, 4, servers=2)
    begun = time.monotonic()
    with pytest.raises(RunFailed) as failed:
        run(f"server-1=kill@7,worker-0=lost@60,steps=100000,run={tmp_path}", servers=2)
    assert time.monotonic() - begun < 30
    what, safe, resume = str(failed.value).splitlines()
    assert re.match(
        r"server 1 on \S+ died after 7 updates \(killed by signal 9, SIGKILL\); the others stopped after",
        what,
    )
    assert safe.startswith("Safe: checkpoint of step 4")
    assert resume == f"Resume: paceline train --resume {tmp_path}"


def test_a_server_is_the_cause_even_if_a_worker_died_long_before(tmp_path: Path) -> None:
    """If this failed, the user would look for the fault in a worker that the run had survived."""
    with pytest.raises(RunFailed, match=r"^server 0 on \S+ died after 40 updates"):
        run("worker-1=kill@5,server-0=kill@40,steps=100000")


def test_a_worker_that_lost_its_server_is_not_the_cause() -> None:
    """If this failed, the connection that broke would be told, and not the server that died."""
    told: list[str] = []
    with pytest.raises(RunFailed, match=r"^server 0 on \S+ died after 60 updates"):
        run("worker-0=lost@5,server-0=kill@60,steps=100000", say=told.append)
    assert told == []


def test_a_run_that_no_worker_is_left_in_has_failed_with_the_first_cause() -> None:
    """If this failed, a run that trained nothing to its end would count as done."""
    told: list[str] = []
    with pytest.raises(
        RunFailed, match=r"^rank 1 on \S+ failed at step 5: ValueError.*; no worker was left\."
    ):
        run("worker-1=raise@5,worker-0=kill@60,steps=100000", say=told.append)
    assert any(re.match(r"rank 1 on \S+ failed at step 5", sentence) for sentence in told)
    assert not any("rank 0" in sentence for sentence in told)


@pytest.mark.parametrize("what", ["raise", "kill"])
def test_a_worker_that_fails_before_the_run_has_begun_ends_it(what: str) -> None:
    """If this failed, everybody would wait at the start for one who never comes."""
    with pytest.raises(RunFailed, match=r"^rank 1 on \S+ (failed|died) before its first step"):
        run(f"worker-1={what}@0,waits=1")


def test_a_mistake_that_a_worker_finds_at_the_start_is_the_users_to_fix() -> None:
    """If this failed, hosts with different settings would train on, one worker short."""
    with pytest.raises(UsageError, match=r"^'spp' is no strategy; choose another$"):
        run("worker-1=mistake@0,steps=1000")


def test_ctrl_c_reaches_all_and_servers_are_not_ended_before_their_workers(tmp_path: Path) -> None:
    """If this failed, Ctrl-C would end the servers through which the workers agree to stop, or lose the exit code."""
    timer = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    told: list[str] = []
    try:
        assert run("worker-1=kill@5,steps=100000", say=told.append) == 130
    finally:
        timer.cancel()
    assert len(told) == 1, "the death, and not that nobody could save"


class Fake:
    """A meeting of two hosts, of which this one is node rank 1 and has no server."""

    hosts = ("node-a", "node-b")
    unanswered: frozenset[int] = frozenset()

    def __init__(self, silent: int | None = None) -> None:
        self.silent, self.posted_here, self.forgotten = silent, [], []
        self.known: Failure | None = None
        self.told_steps: list[CompleteSteps] = []

    def lost_node(self) -> int | None:
        return self.silent

    def post(self, failure: Failure) -> None:
        self.posted_here.append(failure)

    def forget(self, rank: int) -> None:
        self.forgotten.append(rank)

    def posted(self, patience: float) -> Failure | None:
        return self.known

    def exchange_steps(self, mine: CompleteSteps, *_: object) -> list[CompleteSteps]:
        self.told_steps.append(mine)
        return []


def plan_of(node_rank: int) -> LaunchPlan:
    secret = Path("secret")
    return LaunchPlan(
        nodes=2, workers=1, servers=1, address="127.0.0.1", node_rank=node_rank, secret_file=secret
    )


def test_a_host_whose_workers_have_died_does_not_end_the_run_of_the_others(tmp_path: Path) -> None:
    """If this failed, a host without servers would take the whole run with it."""
    meeting = Fake()
    supervisor = Supervisor(plan_of(1), meeting, tmp_path, lambda _: None)  # type: ignore[arg-type]
    supervisor.host.all[0].ended_at, supervisor.host.all[0].code = 5.0, -9
    with pytest.raises(RunFailed) as failed:
        ExitReporter(supervisor).exit_code()
    assert re.fullmatch(
        r"rank 1 on \S+ died before its first step \(killed by signal 9, SIGKILL\); "
        r"no worker is left on this host, and the run goes on without it\.",
        str(failed.value),
    )
    assert meeting.posted_here == []


@pytest.mark.parametrize("kind", ["lost-peer", "stopped"])
def test_a_host_that_lost_the_servers_is_told_to_join_and_tells_nobody_its_steps(
    tmp_path: Path, kind: FailureKind
) -> None:
    """If this failed, it would be told to resume a run that goes on, and its old steps be taken for new ones later."""
    saved_run(tmp_path / "run", 4, servers=1)
    meeting = Fake()
    supervisor = Supervisor(plan_of(1), meeting, tmp_path, lambda _: None)  # type: ignore[arg-type]
    worker = ProcessInfo(rank=1, workers=2, servers=1, nodes=2, node_rank=1, launch=tmp_path)
    heartbeat = Heartbeat(worker)
    heartbeat.show(tmp_path / "run")
    heartbeat.beat(7)
    Failure(rank=1, host="node-b", kind=kind, step=7, message="no answer", at=5.0).write(worker)
    write_servers(tmp_path, ["tcp://10.0.0.1:4000"])
    supervisor.host.all[0].ended_at, supervisor.host.all[0].code = 5.0, 1
    with pytest.raises(
        RunFailed, match="known where the servers are; if the run goes on there:\nJoin: "
    ) as failed:
        ExitReporter(supervisor).exit_code()
    assert "Resume" not in str(failed.value)
    assert meeting.told_steps == meeting.posted_here == []
    meeting.known = Failure(rank=0, role="server", host="node-a", kind="killed", message="signal 9", at=4.0)
    with pytest.raises(RunFailed, match=r"^server 0 on node-a died"):
        ExitReporter(supervisor).exit_code()
    assert len(meeting.told_steps) == 1, "the run has ended, and all say what is safe"


def test_a_stop_that_nobody_asked_for_names_the_launcher_that_has_gone(tmp_path: Path) -> None:
    """If this failed, a launcher that was killed would look like Ctrl-C to whoever reads the other host's exit code."""
    saved_run(tmp_path / "run", 4)
    meeting = Fake()
    plan = LaunchPlan(nodes=2, workers=1, address="127.0.0.1", secret_file=Path("secret"))
    supervisor = Supervisor(plan, meeting, tmp_path, lambda _: None)  # type: ignore[arg-type]
    worker = ProcessInfo(workers=2, nodes=2, launch=tmp_path)
    heartbeat = Heartbeat(worker)
    heartbeat.show(tmp_path / "run")
    Failure(rank=0, host="node-a", kind="interrupted", step=4).write(worker)
    supervisor.host.all[0].ended_at, supervisor.host.all[0].code = 5.0, 0
    assert ExitReporter(supervisor).exit_code() == 130
    meeting.unanswered = frozenset({1})
    with pytest.raises(RunFailed, match=r"^the launcher of node rank 1 \(node-b\) has gone; all workers"):
        ExitReporter(supervisor).exit_code()


def test_a_launcher_that_still_beats_has_not_gone() -> None:
    """If this failed, one that is slow to verify large checkpoints would be accused of the run's end."""
    peers = LauncherGroup.__new__(LauncherGroup)
    peers._plan = LaunchPlan(nodes=3, address="127.0.0.1", secret_file=Path("secret"))
    peers._store = SimpleNamespace(set=lambda *_: None, read=lambda *_: (), peek=lambda *_: ())  # type: ignore[assignment]
    peers._heard = {1: time.monotonic(), 2: time.monotonic() - 60}
    assert peers.exchange_steps(CompleteSteps(), None, patience=0.1) == []
    assert peers.unanswered == {2}


@pytest.mark.parametrize(("me", "lost", "survived"), [(0, 1, True), (1, 0, False)])
def test_only_a_host_with_servers_is_missed(tmp_path: Path, me: int, lost: int, survived: bool) -> None:
    """If this failed, a host that is cut off would end the run of the others, or be waited for without end."""
    told: list[str] = []
    supervisor = Supervisor(plan_of(me), Fake(silent=lost), tmp_path, told.append)  # type: ignore[arg-type]
    assert supervisor.lost_node() == lost, "before its first step a run can do without nobody"
    worker = ProcessInfo(rank=me, workers=2, servers=1, nodes=2, node_rank=me, launch=tmp_path)
    Heartbeat(worker).beat(1)
    assert supervisor.lost_node() == (None if survived else lost)
    words = ["node rank 1 (node-b) has not answered for 20 s; the run goes on with the others."]
    assert told == (words if survived else [])


def test_a_worker_of_a_dead_launcher_leaves_without_stopping_the_others(tmp_path: Path) -> None:
    """If this failed, kill -9 of one host's launcher would stop the run on all hosts."""
    spared = ProcessInfo(rank=1, workers=2, servers=1, nodes=2, node_rank=1, launch=tmp_path)
    needed = ProcessInfo(rank=0, workers=2, servers=1, nodes=2, node_rank=0, launch=tmp_path)
    assert patience_of(spared)[signal.SIGTERM] == 0
    assert patience_of(needed) == PATIENCE
    ended: list[int] = []
    with StopRequest(ended.append, patience_of(spared)) as stopping:
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + 5
        while not ended and time.monotonic() < deadline:
            assert not stopping()
            time.sleep(0.001)
    assert ended == [signal.SIGTERM]
