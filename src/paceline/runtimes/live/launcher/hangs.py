"""A host's processes without progress: they are reported, with their stack, and ended after a stated time.

A process that waits for others is not the one that hangs, however long it waits. One that is stopped by a signal hangs
in any phase. A script may take as long as it likes between two steps, unless all others of the host wait for it: then
it is reported, and ended when they give up waiting. Of the rest, one hangs whose phase lasts much longer than ever
before; one that writes a file hangs only while it uses no processor time, and is not ended while the disk works.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.runtimes.live import timeouts
from paceline.runtimes.live.failures import Failure
from paceline.runtimes.live.heartbeat import ProcessPhase, Progress, ask_for_stack, users_frame
from paceline.runtimes.live.launcher.processes import Activity, LaunchPlan, Process, activity
from paceline.units import show_seconds

_FRAMES = 8
_WRITING: tuple[ProcessPhase, ...] = ("checkpoint", "finishing")
_NEVER = float("inf")


class Stall(NamedTuple):
    since: float
    until: float
    """When it is ended unless it goes on; infinity where it is only reported."""
    phase: ProcessPhase
    stopped: bool
    """By a signal; it can be continued."""


@dataclass
class StallDetector:
    """Looks at one process again and again; all times are of the monotonic clock."""

    hang: float = timeouts.HANG
    first: Progress = Progress()
    """As it was found when it had first made some."""
    _phase: ProcessPhase = "starting"
    _since: float = 0.0
    _longest: dict[ProcessPhase, float] = field(default_factory=lambda: defaultdict(float))
    _stopped_at: float | None = None
    _was_stopped: bool = False
    _system: Activity | None = None
    _busy_at: float = 0.0
    _awaited_at: float = _NEVER
    """Since when all others wait."""
    _counts_from: float = 0.0
    """The time before it does not count: the process could not go on."""

    @property
    def notice(self) -> float:
        return min(timeouts.HANG_NOTICE, self.hang / 2)

    def look(
        self, progress: Progress, system: Activity, now: float, *, alone: bool = False, awaited: bool = False
    ) -> Stall | None:
        """Whether the process makes no progress.

        ``alone``: there is no other process that it could wait for; ``awaited``: all others of the host wait for some.
        """
        self._remember(progress, system, now)
        self._awaited_at = min(self._awaited_at, now) if awaited else _NEVER
        if system.stopped:
            self._stopped_at = now if self._stopped_at is None else self._stopped_at
            if now - self._stopped_at < timeouts.STOPPED:
                return None
            return Stall(self._stopped_at, self._stopped_at + self.hang, progress.phase, True)
        if self._stopped_at is not None:
            self.restart(now)
        writing = progress.phase in _WRITING
        since = max(progress.since, self._counts_from, self._busy_at if writing else 0.0)
        in_script = progress.phase == "script"
        if in_script:
            since = max(since, self._awaited_at)
        if not progress.since or now - since < self._limit(progress, alone):
            return None
        if not progress.at or in_script or (system.disk and writing):
            return Stall(since, _NEVER, progress.phase, False)
        compiles = progress.phase == "evaluate" and progress.phase not in self._longest  # perhaps once more
        until = (max(since, self._busy_at) if compiles else since) + self.hang
        return Stall(since, until, progress.phase, False)

    def restart(self, now: float) -> None:
        self._stopped_at, self._counts_from, self._was_stopped = None, now, True

    def _remember(self, progress: Progress, system: Activity, now: float) -> None:
        """How long phases last, and when the process last used a processor or had its answer from a disk."""
        if not self.first.at:
            self.first = progress
        self._was_stopped = self._was_stopped or system.stopped
        if progress.since != self._since:
            prepares = self._phase == "script" and not progress.at  # before its first step
            if self._since and not self._was_stopped and not prepares:
                self._longest[self._phase] = max(self._longest[self._phase], progress.since - self._since)
            self._phase, self._since, self._was_stopped = progress.phase, progress.since, system.stopped
        before, self._system = self._system, system
        if before is None or system.ticks != before.ticks or (before.disk and not system.disk):
            self._busy_at = now

    def _limit(self, progress: Progress, alone: bool) -> float:
        if progress.phase == "exchange":
            return self.notice if alone else _NEVER
        if progress.phase == "starting" and progress.step:
            return _NEVER
        if not progress.at:
            return timeouts.STARTING
        if progress.phase == "script":
            usual = timeouts.HANG_FACTOR * self._longest.get("script", 0.0)
            return max(min(timeouts.FIRST_TIME, self.hang / 2), usual)
        if progress.phase not in self._longest:
            return min(timeouts.FIRST_TIME, self.hang / 2)
        return max(self.notice, timeouts.HANG_FACTOR * self._longest[progress.phase])


@dataclass
class Hang:
    process: Process
    stall: Stall
    progress: Progress
    first: Progress = Progress()
    reported: float = 0.0
    frames: list[str] = field(default_factory=list)

    def failure(self) -> Failure:
        lasted = time.monotonic() - self.stall.since
        how = "been stopped by a signal" if self.stall.stopped else f"made no progress in {self.stall.phase}"
        since = _clock_time(self.stall.since)
        message = f"had {how} since {since} and was ended after {show_seconds(lasted)}"
        where, at = users_frame(self.frames), time.time() - lasted
        return Failure.of(self.process.info, "hung", self.progress.step, message, at=at, where=where)

    def __str__(self) -> str:
        process, stall, progress = self.process, self.stall, self.progress
        since = _clock_time(stall.since)
        at = f"{'update' if process.info.role == 'server' else 'step'} {progress.step}"
        if stall.stopped:
            return (
                f"{process} (process {process.pid}) has been stopped by a signal since {since}, {at}; "
                f"'kill -CONT {process.pid}' lets it go on"
            )
        if not progress.at:
            return f"{process} has not finished its first step yet, in {stall.phase} since {since}"
        pace, steps = "", progress.step - self.first.step
        if process.info.role != "server" and self.first.at and steps:
            pace = f"; its steps took {show_seconds((progress.at - self.first.at) / steps)} until then"
        return f"{process} has made no progress since {since} ({at}, {stall.phase}{pace})"


class HangWatch:
    def __init__(
        self,
        processes: Sequence[Process],
        plan: LaunchPlan,
        say: Callable[[str], None],
        tell_others: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``tell_others`` passes a sentence to other hosts. Only what trains hangs, or is stopped."""
        self._processes, self._plan, self._hang = processes, plan, plan.hang
        self._say, self._tell_others = say, tell_others
        self._detectors = {process: StallDetector(plan.hang) for process in processes}
        self._looked = 0.0
        self._over_at: float | None = None
        self.hangs: dict[Process, Hang] = {}

    def run_is_over(self) -> None:
        """From now on a process has no others to wait for."""
        self._over_at = self._over_at or time.monotonic()

    def look(self) -> list[Hang]:
        """Report processes that hang or go on; return those to end."""
        now = time.monotonic()
        if now - self._looked < timeouts.HANG_LOOK:
            return []
        if now - self._looked > timeouts.HELD_UP:  # nothing could go on until now: begin anew
            self.hangs.clear()
            for detector in self._detectors.values():
                detector.restart(now)
        waiting = self._waiting()
        for process in self._processes:
            if process.alive:
                self._look_at(process, now, waiting)
            else:
                self.hangs.pop(process, None)
        self._looked = time.monotonic()  # after it: asking for stacks takes time, and holds no process up
        return [hang for hang in self.hangs.values() if now > self._ends(hang)]

    def end(self, hang: Hang) -> None:
        del self.hangs[hang.process]
        failure = hang.failure()
        failure.write(hang.process.info)
        if self._over_at is not None:
            hang.process.spared = self._plan.servers > 0
            self._say(f"{hang.process} {failure.message}; the run was over")
        hang.process.kill()

    def _ends(self, hang: Hang) -> float:
        """When a process is ended that does not go on; never before its user had time to read of it."""
        stall, due = hang.stall, hang.stall.until
        if self._over_at is not None:
            soon = stall.stopped or hang.process.info.role == "server"
            due = max(self._over_at, stall.since) + (
                min(timeouts.AFTER_END, self._hang) if soon else self._hang
            )
        return max(due, hang.reported + min(timeouts.HANG_NOTICE, self._hang / 2))

    def _waiting(self) -> Collection[Process]:
        """The workers that wait, where that are all but one; else none."""
        workers = [one for one in self._processes if one.alive and one.info.role == "worker"]
        waiting = {one for one in workers if one.progress().phase == "exchange"}
        return waiting if len(waiting) == len(workers) - 1 else ()

    def _look_at(self, process: Process, now: float, waiting: Collection[Process]) -> None:
        progress = process.progress()
        stall = self._detectors[process].look(
            progress,
            activity(process.pid),
            now,
            alone=self._over_at is not None,
            awaited=bool(waiting) and process.info.role == "worker" and process not in waiting,
        )
        hang = self.hangs.get(process)
        watched = self._plan.kind == "training" or (self._plan.kind == "script" and progress.at > 0)
        if stall is None or not (watched or stall.stopped):
            if hang is not None:
                del self.hangs[process]
                self._report(f"{process} goes on again after {show_seconds(now - hang.stall.since)}")
        elif hang is not None and hang.stall.stopped == stall.stopped:
            hang.stall = stall
        elif stall.stopped or not any(other is not process for other in self.hangs):
            # While another process hangs already, this one may well hang because of that.
            self._begin(Hang(process, stall, progress, self._detectors[process].first, now), now)

    def _begin(self, hang: Hang, now: float) -> None:
        process, stall = hang.process, hang.stall
        if not stall.stopped:
            hang.frames = ask_for_stack(process.info, process.pid)
        self.hangs[process] = hang
        ends = ""
        if stall.stopped and process.info.role == "worker" and self._plan.servers:
            given_up = max(0.0, stall.since + self._plan.silence - now)
            ends = f"; the servers give it up in {given_up:.0f} s of silence unless it goes on"
        elif (until := self._ends(hang)) < _NEVER:
            ends = f"; ended in {until - now:.0f} s unless it goes on"
        self._report(f"{hang}{ends}", hang.frames[:_FRAMES])

    def _report(self, sentence: str, frames: Sequence[str] = ()) -> None:
        self._say("\n  ".join([sentence, *frames]))
        self._tell_others(sentence)


def _clock_time(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time.time() - (time.monotonic() - moment)))
