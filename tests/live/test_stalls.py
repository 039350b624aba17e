"""When a process counts as standing still: by its phases, by the system, and not because others wait."""

from pathlib import Path

import pytest

from paceline.runtimes.live import heartbeat, timeouts
from paceline.runtimes.live.heartbeat import (
    Heartbeat,
    ProcessPhase,
    Progress,
    SilenceWatch,
    frames_of,
    users_frame,
)
from paceline.runtimes.live.launcher import hangs, peers
from paceline.runtimes.live.launcher.hangs import Hang, HangWatch, Stall, StallDetector
from paceline.runtimes.live.launcher.processes import Activity, LaunchPlan, Process
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.timeouts import AFTER_END, HANG

RUNNING = Activity(stopped=False, ticks=1)


def pulse(phase: ProcessPhase, since: float, step: int = 5) -> Progress:
    return Progress(step=step, at=1.0 if step else 0.0, phase=phase, since=since)


def trained(longest: float) -> StallDetector:
    """One that has seen a process be in forward for so long."""
    detector = StallDetector()
    assert detector.look(pulse("forward", 100.0), RUNNING, 100.1) is None
    assert detector.look(pulse("exchange", 100.0 + longest), RUNNING, 100.2 + longest) is None
    return detector


@pytest.mark.parametrize(("longest", "limit"), [(0.03, 8.0), (3.0, 12.0)])
def test_a_phase_that_lasts_much_longer_than_ever_is_a_stall(longest: float, limit: float) -> None:
    """If this failed, a job whose steps take 3 s would be accused after each longer one, or a hang never told."""
    detector = trained(longest)
    now = pulse("forward", 200.0)
    assert detector.look(now, RUNNING, 200.0 + limit - 0.1) is None
    found = detector.look(now, RUNNING, 200.0 + limit + 0.1)
    assert found == Stall(200.0, 320.0, "forward", stopped=False)
    assert detector.look(pulse("backward", 213.0), RUNNING, 213.1) is None, "it goes on"


def test_waiting_for_others_is_no_stall_and_neither_is_a_long_start() -> None:
    """If this failed, the healthy ranks would be accused, or whoever compiles for a minute."""
    detector = trained(0.03)
    waits = pulse("exchange", 200.0)
    assert detector.look(waits, RUNNING, 10_000.0) is None
    assert detector.look(waits, RUNNING, 10_000.0, alone=True) is not None, "there is nobody to wait for"
    fresh = StallDetector()
    assert fresh.look(pulse("forward", 200.0, step=0), RUNNING, 300.0) is None
    told = fresh.look(pulse("starting", 200.0, step=0), RUNNING, 330.0)
    assert told is not None
    assert told.until == float("inf"), "told, and never ended for it"


def test_a_script_may_take_its_time_between_steps_unless_all_others_wait() -> None:
    """If this failed, an evaluation by one rank would be told, or one that hangs in its data never be named."""
    detector = trained(0.03)
    evaluates = pulse("script", 200.0)
    assert detector.look(evaluates, RUNNING, 10_000.0) is None
    assert detector.look(evaluates, RUNNING, 10_010.0, awaited=True) is None, "they wait only since then"
    assert detector.look(evaluates, RUNNING, 10_039.0, awaited=True) is None
    told = detector.look(evaluates, RUNNING, 10_041.0, awaited=True)
    assert told == Stall(10_010.0, float("inf"), "script", stopped=False), "told, and not ended for it"
    assert detector.look(evaluates, RUNNING, 10_042.0) is None


def test_the_first_checkpoint_may_take_longer_than_what_is_known() -> None:
    """If this failed, a large model's first checkpoint would be called a hang."""
    detector = trained(0.03)
    assert detector.look(pulse("checkpoint", 200.0), RUNNING, 220.0) is None
    assert detector.look(pulse("checkpoint", 200.0), RUNNING, 231.0) is not None


@pytest.mark.parametrize("phase", ["finishing", "checkpoint"])
def test_a_process_that_computes_while_it_writes_is_not_standing_still(phase: ProcessPhase) -> None:
    """If this failed, a worker would be ended while it writes a long trace or a checkpoint of many gigabytes."""
    detector = trained(0.03)
    busy = [Activity(stopped=False, ticks=ticks) for ticks in range(3)]
    assert all(
        detector.look(pulse(phase, 200.0), one, 200.0 + 100.0 * at) is None for at, one in enumerate(busy)
    )
    assert detector.look(pulse(phase, 200.0), busy[-1], 431.0) is not None, "idle for 31 s"


def test_who_waits_for_a_disk_in_a_checkpoint_is_mentioned_and_ended_only_when_the_disk_has_answered() -> (
    None
):
    """If this failed, a worker would be killed while gigabytes go to a slow disk, or a hang after that be missed."""
    detector = trained(0.03)
    syncing = Activity(stopped=False, ticks=1, disk=True)
    found = [detector.look(pulse("checkpoint", 200.0), syncing, now) for now in (200.1, 400.0)]
    assert found[0] is None
    assert found[1] is not None
    assert found[1].until == float("inf")
    assert detector.look(pulse("checkpoint", 200.0), RUNNING, 401.0) is None, "it goes on"
    found = [detector.look(pulse("checkpoint", 200.0), RUNNING, 432.0)]
    assert found == [Stall(401.0, 521.0, "checkpoint", stopped=False)]


def test_a_first_evaluation_is_not_ended_while_it_computes() -> None:
    """If this failed, a model that is compiled once more for its first evaluation would end the run."""
    detector = trained(0.03)
    for ticks, now in enumerate((200.1, 250.0, 320.0)):
        found = detector.look(pulse("evaluate", 200.0), Activity(False, ticks), now)
    assert found == Stall(200.0, 440.0, "evaluate", stopped=False)


@pytest.mark.parametrize("phase", ["starting", "data", "forward", "backward", "apply"])
def test_nobody_is_ended_before_its_first_step(phase: ProcessPhase) -> None:
    """If this failed, a model that takes three minutes to compile would be killed the moment it is mentioned."""
    detector = StallDetector()
    assert detector.look(pulse(phase, 200.0, step=0), RUNNING, 310.0) is None
    found = detector.look(pulse(phase, 200.0, step=0), RUNNING, 330.0)
    assert found == Stall(200.0, float("inf"), phase, stopped=False)


def test_time_in_which_a_process_was_stopped_does_not_count_once_it_goes_on() -> None:
    """If this failed, a worker that was let go on after 110 s would be killed ten seconds later."""
    detector = trained(0.03)
    here = pulse("forward", 200.0)
    stopped = Activity(stopped=True, ticks=1)
    assert detector.look(here, stopped, 200.0) is None
    assert detector.look(here, stopped, 310.0) is not None
    assert detector.look(here, RUNNING, 310.1) is None
    assert detector.look(here, RUNNING, 318.0) is None
    assert detector.look(here, RUNNING, 318.2) == Stall(310.1, 430.1, "forward", stopped=False)


def test_a_stopped_process_stands_still_whatever_it_was_doing() -> None:
    """If this failed, SIGSTOP of a worker that waits would never be noticed."""
    detector = trained(0.03)
    stopped = Activity(stopped=True, ticks=1)
    assert detector.look(pulse("exchange", 200.0), stopped, 200.0) is None
    assert detector.look(pulse("exchange", 200.0), stopped, 200.6) == Stall(
        200.0, 320.0, "exchange", stopped=True
    )
    assert detector.look(pulse("exchange", 200.0), RUNNING, 201.0) is None
    assert detector.look(pulse("forward", 260.0), RUNNING, 260.1) is None
    assert detector.look(pulse("forward", 260.0), RUNNING, 268.2) is not None, (
        "the stop is no measure of its pace"
    )


def test_phases_are_read_back(tmp_path: Path) -> None:
    """If this failed, a launcher would not know what its processes do."""
    from paceline.runtimes.live.heartbeat import read_progress

    info = ProcessInfo(rank=1, workers=2, launch=tmp_path)
    heartbeat = Heartbeat(info)
    assert read_progress(info).phase == "starting"
    heartbeat.enter("backward")
    heartbeat.beat(7)
    found = read_progress(info)
    assert (found.phase, found.step) == ("backward", 7)
    assert found.since > 0


def test_once_the_run_is_over_a_stopped_process_has_ten_seconds_and_one_that_works_has_more(
    tmp_path: Path,
) -> None:
    """If this failed, a stopped worker would hold a finished run for ever, or a long trace would be cut off."""
    watch = HangWatch([], LaunchPlan(), lambda _: None)
    worker, server = (Process(ProcessInfo(role=role, servers=1)) for role in ("worker", "server"))

    def ends(process: Process, stopped: bool, over_at: float | None) -> float:
        stall = Stall(200.0, 320.0, "finishing", stopped)
        watch._over_at = over_at
        return watch._ends(Hang(process, stall, Progress()))

    assert ends(worker, True, None) == 320.0
    assert ends(worker, True, 210.0) == 210.0 + AFTER_END
    assert ends(server, False, 210.0) == 210.0 + AFTER_END
    assert ends(worker, False, 210.0) == 210.0 + HANG


def test_only_the_first_to_stand_still_is_accused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this failed, everybody who is held up by a hang would be told as one more."""
    told: list[str] = []
    places = [ProcessInfo(rank=rank, workers=2, launch=tmp_path) for rank in (0, 1)]
    processes = [Process(place) for place in places]
    for process in processes:
        process.pid = 1
    monkeypatch.setattr(hangs, "activity", lambda pid: RUNNING)
    monkeypatch.setattr(timeouts, "HANG_LOOK", 0.0)
    watch = HangWatch(processes, LaunchPlan(hang=0.0), told.append)
    beats = [Heartbeat(place) for place in places]
    for each in beats:
        each.beat(3)
        each.enter("forward")
    watch.look()
    assert len(told) == 1
    beats[0].enter("exchange")
    watch.look()
    assert "rank 0" in told[1]
    assert "goes on again" in told[1]
    assert told[2].startswith("rank 1 on")


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Watched":
    """One process in forward, and the clock of its launcher."""
    process = Process(ProcessInfo(launch=tmp_path), pid=1)
    monkeypatch.setattr(hangs, "activity", lambda pid: RUNNING)
    monkeypatch.setattr(hangs, "ask_for_stack", lambda *_: [])
    heartbeat = Heartbeat(process.info)
    heartbeat.beat(3)
    heartbeat.enter("forward")
    made = Watched(heartbeat.progress().since)
    made.watch = HangWatch([process], LaunchPlan(), made.told.append)
    monkeypatch.setattr(hangs.time, "monotonic", lambda: made.now)
    return made


class Watched:
    watch: HangWatch

    def __init__(self, since: float) -> None:
        self.since, self.now, self.told = since, since, list[str]()

    def at(self, seconds: float) -> int:
        """How many are to be ended after so many seconds in the phase."""
        self.now = self.since + seconds
        return len(self.watch.look())

    def until(self, seconds: float) -> int:
        """Look once a second until then."""
        begun = int(self.now - self.since) + 1
        return sum(self.at(float(second)) for second in range(begun, int(seconds) + 1))


def test_nobody_is_named_and_ended_in_one_look(watched: Watched) -> None:
    """If this failed, a phase that usually takes 50 s and once 200 s would be killed without a notice."""
    assert watched.at(0.5) == 0
    watched.watch._detectors[watched.watch._processes[0]]._longest["forward"] = 50.0
    assert watched.until(199.0) == 0
    assert watched.told == []
    assert watched.until(201.0) == 0
    assert "ended in 8 s unless it goes on" in watched.told[0]
    assert watched.until(207.0) == 0
    assert watched.at(210.0) == 1


def test_time_in_which_the_launcher_was_frozen_too_does_not_count(watched: Watched) -> None:
    """If this failed, the first look after a container was frozen or a machine suspended would end the run."""
    assert watched.until(3.0) == 0
    assert watched.at(400.0) == 0
    assert watched.told == []
    assert watched.until(439.0) == 0
    assert len(watched.told) == 1, "it does stand still"
    assert watched.at(700.0) == 0, "frozen again, after it was named"
    assert watched.until(819.0) == 0
    assert watched.at(821.0) == 1


def test_a_launcher_that_was_frozen_hears_the_other_hosts_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this failed, the first look after a container was frozen would give up every other host."""
    clock = [100.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: clock[0])
    board = object.__new__(peers.LauncherGroup)
    board._watch, board._heard = SilenceWatch(20.0), {0: 100.0, 2: float("inf")}
    clock[0] = 400.0
    assert board.lost_node() is None
    for clock[0] in (409.0, 418.0):
        assert board.lost_node() is None
    clock[0] = 421.0
    assert board.lost_node() == 0, "it says nothing while this launcher listens"


STACK = """Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007f02 (most recent call first):
  File "/home/me/job.py", line 42 in loss
  File "/home/me/other.py", line 7 in forward
"""


def test_the_stack_of_the_main_thread_is_found_and_the_users_line_in_it() -> None:
    """If this failed, a user would see some helper thread that waits, as it always does."""
    frames = frames_of(STACK)
    assert frames == ["/home/me/job.py:42 in loss", "/home/me/other.py:7 in forward"]
    assert users_frame(frames) == "job.py:42 in loss"
    assert frames_of("") == []
