"""Whether a process stands still, as its heartbeat and the system tell.

A process that waits for others does not stand still, however long it waits: somebody else does. One that is stopped by
a signal does, whatever it was doing. Of the rest, one does whose phase lasts much longer than ever before. A file may
be of any size: who writes one stands still only while it uses no processor time, and is not ended while the disk works.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.runtimes.live.heartbeat import Phase, Pulse
from paceline.runtimes.live.launcher.processes import Activity
from paceline.runtimes.live.timeouts import (
    FIRST_TIME,
    HANG,
    HANG_FACTOR,
    HANG_NOTICE,
    STARTING,
    STOPPED,
)

_WRITING: tuple[Phase, ...] = ("checkpoint", "finishing")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a process stands still, in seconds; with a short ``hang`` it is mentioned sooner too."""

    hang: float = HANG
    """Until it is ended."""
    notice: float = HANG_NOTICE
    first_time: float = FIRST_TIME
    starting: float = STARTING

    @classmethod
    def of(cls, hang: float) -> "Limits":
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

    limits: Limits
    _phase: Phase = "starting"
    _since: float = 0.0
    _longest: dict[Phase, float] = field(default_factory=lambda: defaultdict(float))
    _stopped_at: float | None = None
    _was_stopped: bool = False
    _system: Activity | None = None
    _busy_at: float = 0.0
    _counts_from: float = 0.0
    """Whatever lasted until then counts for nothing: the process could not go on."""

    def look(self, pulse: Pulse, system: Activity, now: float, *, alone: bool = False) -> Stall | None:
        """Whether the process stands still; ``alone`` says that there is nobody left for it to wait for."""
        self._remember(pulse, system, now)
        if system.stopped:
            self._stopped_at = now if self._stopped_at is None else self._stopped_at
            if now - self._stopped_at < STOPPED:
                return None
            return Stall(self._stopped_at, self._stopped_at + self.limits.hang, pulse.phase, True)
        if self._stopped_at is not None:
            self.restart(now)
        since = max(pulse.since, self._counts_from, self._busy_at if pulse.phase in _WRITING else 0.0)
        if not pulse.since or now - since < self._limit(pulse, alone):
            return None
        return Stall(since, self._until(pulse, system, since), pulse.phase, False)

    def restart(self, now: float) -> None:
        """The process could not go on until now."""
        self._stopped_at, self._counts_from, self._was_stopped = None, now, True

    def _until(self, pulse: Pulse, system: Activity, since: float) -> float:
        """When a process that stands still is ended."""
        if not pulse.at or (system.disk and pulse.phase in _WRITING):
            return float("inf")
        if (
            pulse.phase == "evaluate" and pulse.phase not in self._longest
        ):  # it may compile the model once more
            since = max(since, self._busy_at)
        return since + self.limits.hang

    def _remember(self, pulse: Pulse, system: Activity, now: float) -> None:
        """How long phases last, and when the process last used a processor or had its answer from a disk."""
        self._was_stopped = self._was_stopped or system.stopped
        if pulse.since != self._since:
            if self._since and not self._was_stopped:
                self._longest[self._phase] = max(self._longest[self._phase], pulse.since - self._since)
            self._phase, self._since, self._was_stopped = pulse.phase, pulse.since, system.stopped
        before, self._system = self._system, system
        if before is None or system.ticks != before.ticks or (before.disk and not system.disk):
            self._busy_at = now

    def _limit(self, pulse: Pulse, alone: bool) -> float:
        """Seconds that this phase may last."""
        if pulse.phase == "exchange":
            return self.limits.notice if alone else float("inf")
        if pulse.phase == "starting":
            return float("inf") if pulse.step else self.limits.starting
        if not pulse.at:
            return self.limits.starting
        if pulse.phase not in self._longest:
            return self.limits.first_time
        return max(self.limits.notice, HANG_FACTOR * self._longest[pulse.phase])
