"""A host's processes that stand still: they are named, with their stack, and ended after a stated time."""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.runtimes.live.failures import Failure
from paceline.runtimes.live.heartbeat import Pulse, read_pulse
from paceline.runtimes.live.launcher.processes import Process, activity
from paceline.runtimes.live.launcher.stalls import Limits, Stall, StallDetector
from paceline.runtimes.live.process_info import host_name
from paceline.runtimes.live.stacks import FRAMES, ask_for_stack, users_frame
from paceline.runtimes.live.timeouts import AFTER_END, HANG_LOOK, HELD_UP
from paceline.units import show_seconds


@dataclass
class Episode:
    """From when a process was found to stand still until it goes on or ends."""

    process: Process
    stall: Stall
    pulse: Pulse
    frames: list[str] = field(default_factory=list)
    told: float = 0.0
    """When it was mentioned, by the monotonic clock."""

    def failure(self) -> Failure:
        """What to tell of it when it is ended."""
        since, lasted = _clock_time(self.stall.since), show_seconds(time.monotonic() - self.stall.since)
        how = "was stopped by a signal" if self.stall.stopped else f"stood still in {self.stall.phase}"
        return Failure(
            rank=self.process.rank,
            role=self.process.role,
            host=host_name(),
            kind="hung",
            step=self.pulse.step,
            message=f"{how} since {since} and was ended after {lasted}",
            where=users_frame(self.frames),
            run=str(self.pulse.run) if self.pulse.run else None,
            at=time.time() - (time.monotonic() - self.stall.since),
        )


class HangWatch:
    """Looks at what this host's processes are doing; called in the launcher's loop."""

    def __init__(
        self,
        processes: Sequence[Process],
        folder: Path,
        limits: Limits,
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
        self._detectors: dict[Process, StallDetector] = {}
        self._first: dict[Process, Pulse] = {}
        self._looked = 0.0
        self.episodes: dict[Process, Episode] = {}
        """Of those who stand still now."""

    def look(self, over_at: float | None = None) -> list[Episode]:
        """Say who stands still and who goes on; those whose time is over, for the caller to end.

        ``over_at`` is since when the run is over, by the monotonic clock.
        """
        now = time.monotonic()
        if now - self._looked < HANG_LOOK:
            return []
        if now - self._looked > HELD_UP:
            self._restart(now)
        for process in self._processes:
            if process.alive:
                self._look_at(process, now, over_at is not None)
            else:
                self.episodes.pop(process, None)
        self._looked = time.monotonic()  # after it: asking for stacks takes time, and holds no process up
        return [one for one in self.episodes.values() if now > self._ends(one, over_at)]

    def end(self, episode: Episode, *, over: bool) -> None:
        """End a process and leave the note of it that it cannot leave itself."""
        process = episode.process
        del self.episodes[process]
        failure = episode.failure()
        failure.write(self._folder)
        if over:
            self._say(f"{process.describe()} {failure.message}; the run was over")
        process.kill()

    def _ends(self, episode: Episode, over_at: float | None) -> float:
        """When a process is ended that does not go on; never before its user had time to read of it."""
        return max(self._due(episode, over_at), episode.told + self._limits.notice)

    def _due(self, episode: Episode, over_at: float | None) -> float:
        stall = episode.stall
        if over_at is None:
            return stall.until
        soon = stall.stopped or episode.process.role == "server"
        wait = min(AFTER_END, self._limits.hang) if soon else self._limits.hang
        return max(over_at, stall.since) + wait

    def _restart(self, now: float) -> None:
        """Nothing could go on until now; who stands still is found anew."""
        self.episodes.clear()
        for detector in self._detectors.values():
            detector.restart(now)

    def _look_at(self, process: Process, now: float, over: bool) -> None:
        pulse = read_pulse(self._folder, process.rank, process.role)
        detector = self._detectors.setdefault(process, StallDetector(self._limits))
        stall = detector.look(pulse, activity(process.pid), now, alone=over)
        if stall is not None and not (self._trains or stall.stopped):
            stall = None
        if pulse.at:
            self._first.setdefault(process, pulse)
        episode = self.episodes.get(process)
        if stall is None:
            if episode is not None:
                self._goes_on(episode, now)
            return
        if episode is not None and episode.stall.stopped == stall.stopped:
            episode.stall = stall
        elif stall.stopped or not self._follows(process):
            self._begin(Episode(process, stall, pulse, told=now), now)

    def _follows(self, process: Process) -> bool:
        """Whether somebody else stands still already: this one may well do so because of that."""
        return any(other is not process for other in self.episodes)

    def _begin(self, episode: Episode, now: float) -> None:
        process, stall = episode.process, episode.stall
        if not stall.stopped:
            episode.frames = ask_for_stack(self._folder, process.rank, process.role, process.pid)
        self.episodes[process] = episode
        sentence = self._sentence(episode)
        ends = ""
        if stall.stopped and process.role == "worker" and self._silence is not None:
            given_up = max(0.0, stall.since + self._silence - now)
            ends = f"; the servers give it up in {given_up:.0f} s (--silence) unless it goes on"
        elif (until := self._ends(episode, None)) < float("inf"):
            ends = f"; ended in {until - now:.0f} s unless it goes on"
        stack = "".join(f"\n  {frame}" for frame in episode.frames[:FRAMES])
        self._say(f"{sentence}{ends}{stack}")
        self._tell_others(f"{sentence}{ends}")

    def _sentence(self, episode: Episode) -> str:
        process, stall, pulse = episode.process, episode.stall, episode.pulse
        who, since = process.describe(), _clock_time(stall.since)
        if stall.stopped:
            cont = f"'kill -{signal.SIGCONT.name[3:]} {process.pid}' lets it go on"
            return f"{who} (process {process.pid}) is stopped by a signal since {since}{_at(process, pulse)}; {cont}"
        if not pulse.at:
            return f"{who} has not finished its first step yet, in {stall.phase} since {since}"
        pace = self._pace(process, pulse)
        return f"{who} stands still since {since} ({_at(process, pulse)[2:]}, {stall.phase}{pace})"

    def _pace(self, process: Process, pulse: Pulse) -> str:
        """How long its steps took, as far as its launcher has seen some."""
        first = self._first.get(process, pulse)
        steps = pulse.step - first.step
        if process.role == "server" or steps < 1:
            return ""
        return f"; its steps took {show_seconds((pulse.at - first.at) / steps)} until then"

    def _goes_on(self, episode: Episode, now: float) -> None:
        del self.episodes[episode.process]
        sentence = (
            f"{episode.process.describe()} goes on again after {show_seconds(now - episode.stall.since)}"
        )
        self._say(sentence)
        self._tell_others(sentence)


def _at(process: Process, pulse: Pulse) -> str:
    return f", {'update' if process.role == 'server' else 'step'} {pulse.step}"


def _clock_time(moment: float) -> str:
    """A reading of the monotonic clock as the time of day."""
    return time.strftime("%H:%M:%S", time.localtime(time.time() - (time.monotonic() - moment)))
