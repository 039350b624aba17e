"""One launch of a run on all hosts, with its faults: each at its moment, as far as the run comes to it."""

import os
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from _fault_hosts import Host, Launched, Site
from _fault_scenarios import HANG, SILENCE, Fault, Kind, Moment, Scenario

STARTING, TRAINING = 40.0, 15.0
"""Seconds that a launch may take until its first step, and from there to its end, where nothing is wrong."""

ENDING: dict[Kind, float] = {
    "kill": 12,
    "stop": HANG + 12,
    "interrupt": 15,
    "full disk": 20,
    "cut link": SILENCE + 12,
    "delete folder": 20,
}
"""Seconds from a fault that ends a run to the end of every launcher."""

SPARED = 256 << 10
"""Bytes of a full disk that may still be free at most."""


@dataclass
class Ended:
    """How a launch ended."""

    codes: list[int]
    texts: list[str]
    fired: list[Fault]
    hung: str = ""
    """What still ran when the time was up."""


@dataclass
class Launch:
    """A launch under way."""

    scenario: Scenario
    site: Site
    commands: Sequence[Sequence[str]]
    faults: Sequence[Fault]
    slack: float = 1.0
    """By how much all limits are longer, for a machine that is busy."""
    fired: list[Fault] = field(default_factory=list)
    seen: dict[Moment, float] = field(default_factory=dict)
    """When what has no delay was first observed."""
    saved: set[tuple[int, str]] = field(default_factory=set)
    """The checkpoints that were begun in this launch."""
    stopped: dict[str, int] = field(default_factory=dict)
    """Processes that were stopped: a launcher that was killed no longer has them as children."""
    undo: list[tuple[float, Fault]] = field(default_factory=list)
    """What is undone by itself, and when."""

    def run(self) -> Ended:
        """Launch, inject, and wait for the end of all launchers and of all that is undone by itself."""
        self.known = set(self.site.hosts[0].folders)
        self.old = self._step_folders()
        self.launched = [
            host.start(words) for host, words in zip(self.site.hosts, self.commands, strict=True)
        ]
        self.began = time.monotonic()
        self.last_fault = self.began
        self.deadline = self.began + self.slack * (STARTING + TRAINING)
        pending, hung = list(self.faults), ""
        while not hung and (self.running or any(fault.kind == "stop" for _, fault in self.undo)):
            self._look()
            pending = [fault for fault in pending if not self._fire(fault)]
            self._undo_due(all_of_them=False)
            if time.monotonic() > self.deadline:
                seconds = time.monotonic() - self.last_fault
                hung = f"{seconds:.0f} s after the last fault alive: {self.site.describe()}"
            time.sleep(0.002 if self.begun else 0.01)
        if hung:
            self.site.kill_all()
        self._undo_due(all_of_them=True)
        codes = [launched.process.wait() for launched in self.launched]
        return Ended(codes, [launched.text for launched in self.launched], self.fired, hung)

    @property
    def running(self) -> list[Launched]:
        """The launchers that have not ended."""
        return [launched for launched in self.launched if launched.process.poll() is None]

    @property
    def begun(self) -> bool:
        """Whether training has begun."""
        return Moment("folder") in self.seen or Moment("checkpoint", 1) in self.seen

    def _step_folders(self) -> set[tuple[int, str]]:
        """Checkpoints on the first host that are there or begun; a folder that is made anew is another one."""
        found: set[tuple[int, str]] = set()
        for folder in self.site.hosts[0].folders:
            with suppress(OSError):
                found |= {(entry.inode(), entry.name) for entry in os.scandir(folder / "checkpoints")}
        return found

    def _look(self) -> None:
        """Note what has come to pass."""
        now = time.monotonic()
        self.seen.setdefault(Moment("start"), self.began)
        if Moment("processes") not in self.seen and all(map(self._complete, self.site.hosts)):
            self.seen[Moment("processes")] = now
        if Moment("folder") not in self.seen and self._has_folder():
            self.seen[Moment("folder")] = now
        self.saved |= self._step_folders() - self.old
        for number in range(1, len(self.saved) + 1):
            self.seen.setdefault(Moment("checkpoint", number), now)

    def _complete(self, host: Host) -> bool:
        servers = len(range(host.number, self.scenario.servers, self.scenario.hosts))
        return len(host.launches[-1].crew()) == self.scenario.workers + servers

    def _has_folder(self) -> bool:
        host = self.site.hosts[0]
        made = [folder for folder in host.folders if folder not in self.known]
        return any((folder / "config.json").exists() for folder in made) or (
            "resumed at" in host.launches[-1].text
        )

    def _fire(self, fault: Fault) -> bool:
        """Inject a fault if its moment has come and its target is there."""
        seen = self.seen.get(Moment(fault.moment.event, fault.moment.number))
        if seen is None or time.monotonic() < seen + fault.moment.delay or not self._inject(fault):
            return False
        self.last_fault = now = time.monotonic()
        self.fired.append(fault)
        if fault.lasts is not None:
            self.undo.append((now + fault.lasts, fault))
        limit = ENDING[fault.kind] + (fault.lasts or 0)
        limit += 0 if _ends_at_once(fault, self.scenario) else TRAINING
        limit += 0 if self.begun else STARTING
        earlier = self.deadline if len(self.fired) > 1 else 0
        self.deadline = max(earlier, now + self.slack * limit)
        return True

    def _inject(self, fault: Fault) -> bool:
        host = self.site.hosts[self.scenario.host_of(fault.target)]
        match fault.kind:
            case "kill":
                return self._signal(fault.target, signal.SIGKILL)
            case "stop":
                return self._signal(fault.target, signal.SIGSTOP)
            case "interrupt":
                return self._signal(fault.target, signal.SIGINT)
            case "full disk":
                host.fill_disk(int(fault.place * SPARED))
            case "cut link":
                host.link("down")
            case "delete folder":
                return _delete([folder for folder in host.folders if (folder / "checkpoints").exists()][-1:])
            case _:
                raise AssertionError(fault.kind)
        return True

    def _undo_due(self, *, all_of_them: bool) -> None:
        for entry in [entry for entry in self.undo if all_of_them or entry[0] < time.monotonic()]:
            self.undo.remove(entry)
            self._undo(entry[1])
        if all_of_them:
            for fault in self.fired:
                self._undo(fault)

    def _undo(self, fault: Fault) -> None:
        host = self.site.hosts[self.scenario.host_of(fault.target)]
        match fault.kind:
            case "stop" if fault.lasts is not None:
                self._signal(fault.target, signal.SIGCONT)
            case "full disk":
                host.free_disk()
            case "cut link":
                host.link("up")

    def _signal(self, target: str, signum: int) -> bool:
        """Whether the target was there."""
        role, _, number = target.partition("-")
        launched = self.site.hosts[self.scenario.host_of(target)].launches[-1]
        if role == "launcher":
            pid = launched.process.pid if launched.process.poll() is None else None
        else:
            before = self.scenario.workers if role == "server" else 0
            of = self.scenario.hosts if role == "server" else self.scenario.workers
            local = before + (int(number) // of if role == "server" else int(number) % of)
            pid = self.stopped.get(target) or launched.crew().get(local)
        if pid is None or pid not in self.site.alive():
            return False
        if signum == signal.SIGSTOP:
            self.stopped[target] = pid
        with suppress(ProcessLookupError):
            os.kill(pid, signum)
        return True


def _ends_at_once(fault: Fault, scenario: Scenario) -> bool:
    """Whether a run cannot go on after a fault; without servers it needs every process."""
    if fault.kind == "interrupt":
        return True
    for_good = fault.kind == "kill" or (fault.kind in ("stop", "cut link") and fault.lasts is None)
    return for_good and (scenario.deterministic or fault.target.startswith("server"))


def _delete(folders: Sequence[Path]) -> bool:
    """As ``rm -rf`` would, while the run goes on writing into it."""
    for folder in folders:
        for _ in range(5):
            shutil.rmtree(folder, ignore_errors=True)
    return bool(folders)
