"""A host's processes that stand still: they are named, with their stack, and ended after a stated time.

A process that waits for others does not stand still, however long it waits: another one does. One that is stopped by
a signal does, whatever it was doing. Of the rest, one does whose phase lasts much longer than ever before. A file may
be of any size: a process that writes one stands still only while it uses no processor time, and is not ended while the
disk works.
"""

import signal
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from paceline.runtimes.live.failures import Failure
from paceline.runtimes.live.heartbeat import Phase, Progress, ask_for_stack, read_progress, users_frame
from paceline.runtimes.live.launcher.processes import Activity, Process, activity
from paceline.runtimes.live.process_info import host_name
from paceline.runtimes.live.timeouts import (
    AFTER_END,
    FIRST_TIME,
    HANG,
    HANG_FACTOR,
    HANG_LOOK,
    HANG_NOTICE,
    HELD_UP,
    STARTING,
    STOPPED,
)
from paceline.units import show_seconds

_FRAMES = 8
"""That are shown."""
_WRITING: tuple[Phase, ...] = ("checkpoint", "finishing")
_NEVER = float("inf")


@dataclass(frozen=True, kw_only=True)
class HangLimits:
    """When a process stands still, in seconds; with a short ``hang`` it is mentioned sooner too."""

    hang: float = HANG
    """Until it is ended."""
    notice: float = HANG_NOTICE
    first_time: float = FIRST_TIME
    starting: float = STARTING

    @classmethod
    def of(cls, hang: float) -> "HangLimits":
        """The usual ones, where a process is ended after so many seconds: it is mentioned in half of that."""
        return cls(hang=hang, notice=min(HANG_NOTICE, hang / 2), first_time=min(FIRST_TIME, hang / 2))


class Stall(NamedTuple):
    """A process stands still."""

    since: float
    """By the monotonic clock."""
    until: float
    """When it is ended unless it goes on; infinity where it is only mentioned."""
    phase: Phase
    stopped: bool
    """By a signal; it can be let go on."""


@dataclass
class StallDetector:
    """Looks at one process again and again; all times are of the monotonic clock."""

    limits: HangLimits
    _phase: Phase = "starting"
    _since: float = 0.0
    _longest: dict[Phase, float] = field(default_factory=lambda: defaultdict(float))
    _stopped_at: float | None = None
    _was_stopped: bool = False
    _system: Activity | None = None
    _busy_at: float = 0.0
    _counts_from: float = 0.0
    """Whatever lasted until then counts for nothing: the process could not go on."""

    def look(self, progress: Progress, system: Activity, now: float, *, alone: bool = False) -> Stall | None:
        """Whether the process stands still; ``alone`` says that there is no process left for it to wait for."""
        self._remember(progress, system, now)
        if system.stopped:
            self._stopped_at = now if self._stopped_at is None else self._stopped_at
            if now - self._stopped_at < STOPPED:
                return None
            return Stall(self._stopped_at, self._stopped_at + self.limits.hang, progress.phase, True)
        if self._stopped_at is not None:
            self.restart(now)
        since = max(progress.since, self._counts_from, self._busy_at if progress.phase in _WRITING else 0.0)
        if not progress.since or now - since < self._limit(progress, alone):
            return None
        return Stall(since, self._until(progress, system, since), progress.phase, False)

    def restart(self, now: float) -> None:
        """The process could not go on until now."""
        self._stopped_at, self._counts_from, self._was_stopped = None, now, True

    def _until(self, progress: Progress, system: Activity, since: float) -> float:
        """When a process that stands still is ended."""
        if not progress.at or (system.disk and progress.phase in _WRITING):
            return _NEVER
        if (
            progress.phase == "evaluate" and progress.phase not in self._longest
        ):  # it may compile the model again
            since = max(since, self._busy_at)
        return since + self.limits.hang

    def _remember(self, progress: Progress, system: Activity, now: float) -> None:
        """How long phases last, and when the process last used a processor or had its answer from a disk."""
        self._was_stopped = self._was_stopped or system.stopped
        if progress.since != self._since:
            if self._since and not self._was_stopped:
                self._longest[self._phase] = max(self._longest[self._phase], progress.since - self._since)
            self._phase, self._since, self._was_stopped = progress.phase, progress.since, system.stopped
        before, self._system = self._system, system
        if before is None or system.ticks != before.ticks or (before.disk and not system.disk):
            self._busy_at = now

    def _limit(self, progress: Progress, alone: bool) -> float:
        """Seconds that this phase may last."""
        if progress.phase == "exchange":
            return self.limits.notice if alone else _NEVER
        if progress.phase == "starting":
            return _NEVER if progress.step else self.limits.starting
        if not progress.at:
            return self.limits.starting
        if progress.phase not in self._longest:
            return self.limits.first_time
        return max(self.limits.notice, HANG_FACTOR * self._longest[progress.phase])


@dataclass
class Hang:
    """From when a process was found to stand still until it goes on or ends."""

    process: Process
    stall: Stall
    progress: Progress
    frames: list[str] = field(default_factory=list)
    told: float = 0.0
    """When it was mentioned, by the monotonic clock."""

    def failure(self) -> Failure:
        """The note of the process once it is ended."""
        lasted = time.monotonic() - self.stall.since
        how = "was stopped by a signal" if self.stall.stopped else f"stood still in {self.stall.phase}"
        since = _clock_time(self.stall.since)
        return Failure(
            rank=self.process.rank,
            role=self.process.role,
            host=host_name(),
            kind="hung",
            step=self.progress.step,
            message=f"{how} since {since} and was ended after {show_seconds(lasted)}",
            where=users_frame(self.frames),
            run=str(self.progress.run) if self.progress.run else None,
            at=time.time() - lasted,
        )


class HangWatch:
    """Looks at what this host's processes are doing; called in the launcher's loop."""

    def __init__(
        self,
        processes: Sequence[Process],
        folder: Path,
        limits: HangLimits,
        *,
        say: Callable[[str], None],
        tell_others: Callable[[str], None] = lambda _: None,
        trains: bool = True,
        silence: float | None = None,
    ) -> None:
        """``tell_others`` passes a sentence to other hosts. What does not train is judged only where it is stopped.

        ``silence`` is after how many seconds the servers give a worker up that does not beat, where there are servers.
        """
        self._silence = silence
        self._processes, self._folder, self._limits = processes, folder, limits
        self._say, self._tell_others, self._trains = say, tell_others, trains
        self._detectors = {process: StallDetector(limits) for process in processes}
        self._first: dict[Process, Progress] = {}
        self._looked = 0.0
        self.hangs: dict[Process, Hang] = {}
        """Of the processes that stand still now."""

    def look(self, over_at: float | None = None) -> list[Hang]:
        """Say which processes stand still and which go on; those whose time is over, for the caller to end.

        ``over_at`` is since when the run is over, by the monotonic clock.
        """
        now = time.monotonic()
        if now - self._looked < HANG_LOOK:
            return []
        if now - self._looked > HELD_UP:  # nothing could go on until now: find anew what stands still
            self.hangs.clear()
            for detector in self._detectors.values():
                detector.restart(now)
        for process in self._processes:
            if process.alive:
                self._look_at(process, now, over_at is not None)
            else:
                self.hangs.pop(process, None)
        self._looked = time.monotonic()  # after it: asking for stacks takes time, and holds no process up
        return [hang for hang in self.hangs.values() if now > self._ends(hang, over_at)]

    def end(self, hang: Hang, *, over: bool) -> None:
        """End a process and leave the note that it cannot leave itself."""
        del self.hangs[hang.process]
        failure = hang.failure()
        failure.write(self._folder)
        if over:
            self._say(f"{hang.process.describe()} {failure.message}; the run was over")
        hang.process.kill()

    def _ends(self, hang: Hang, over_at: float | None) -> float:
        """When a process is ended that does not go on; never before its user had time to read of it."""
        stall, due = hang.stall, hang.stall.until
        if over_at is not None:
            soon = stall.stopped or hang.process.role == "server"
            wait = min(AFTER_END, self._limits.hang) if soon else self._limits.hang
            due = max(over_at, stall.since) + wait
        return max(due, hang.told + self._limits.notice)

    def _look_at(self, process: Process, now: float, over: bool) -> None:
        progress = read_progress(self._folder, process.rank, process.role)
        stall = self._detectors[process].look(progress, activity(process.pid), now, alone=over)
        if stall is not None and not (self._trains or stall.stopped):
            stall = None
        if progress.at:
            self._first.setdefault(process, progress)
        hang = self.hangs.get(process)
        if stall is None:
            if hang is not None:
                self._goes_on(hang, now)
        elif hang is not None and hang.stall.stopped == stall.stopped:
            hang.stall = stall
        elif stall.stopped or not any(other is not process for other in self.hangs):
            # While another process stands still already, this one may well do so because of that.
            self._begin(Hang(process, stall, progress, told=now), now)

    def _begin(self, hang: Hang, now: float) -> None:
        process, stall = hang.process, hang.stall
        if not stall.stopped:
            hang.frames = ask_for_stack(self._folder, process.rank, process.role, process.pid)
        self.hangs[process] = hang
        sentence, ends = self._sentence(hang), ""
        if stall.stopped and process.role == "worker" and self._silence is not None:
            given_up = max(0.0, stall.since + self._silence - now)
            ends = f"; the servers give it up in {given_up:.0f} s of silence unless it goes on"
        elif (until := self._ends(hang, None)) < _NEVER:
            ends = f"; ended in {until - now:.0f} s unless it goes on"
        self._say(f"{sentence}{ends}" + "".join(f"\n  {frame}" for frame in hang.frames[:_FRAMES]))
        self._tell_others(f"{sentence}{ends}")

    def _sentence(self, hang: Hang) -> str:
        process, stall, progress = hang.process, hang.stall, hang.progress
        who, since = process.describe(), _clock_time(stall.since)
        at = f"{'update' if process.role == 'server' else 'step'} {progress.step}"
        if stall.stopped:
            resume = f"'kill -{signal.SIGCONT.name[3:]} {process.pid}' lets it go on"
            return f"{who} (process {process.pid}) is stopped by a signal since {since}, {at}; {resume}"
        if not progress.at:
            return f"{who} has not finished its first step yet, in {stall.phase} since {since}"
        return f"{who} stands still since {since} ({at}, {stall.phase}{self._pace(process, progress)})"

    def _pace(self, process: Process, progress: Progress) -> str:
        """How long its steps took, where its launcher has seen some."""
        first = self._first.get(process, progress)
        steps = progress.step - first.step
        if process.role == "server" or steps < 1:
            return ""
        return f"; its steps took {show_seconds((progress.at - first.at) / steps)} until then"

    def _goes_on(self, hang: Hang, now: float) -> None:
        del self.hangs[hang.process]
        sentence = f"{hang.process.describe()} goes on again after {show_seconds(now - hang.stall.since)}"
        self._say(sentence)
        self._tell_others(sentence)


def _clock_time(moment: float) -> str:
    """A reading of the monotonic clock as the time of day."""
    return time.strftime("%H:%M:%S", time.localtime(time.time() - (time.monotonic() - moment)))
