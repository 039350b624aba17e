"""Plays a scenario to its end, a run that is complete, and says which invariants did not hold on the way."""

import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from _fault_commands import SECRET, fresh_words, patience_words, place_words
from _fault_hosts import Host, Site, site
from _fault_inject import Ended, Launch
from _fault_invariants import (
    check_codes,
    check_complete,
    check_leftovers,
    check_safe,
    check_words,
    killed_launchers,
    lost_workers,
    named_safe,
)
from _fault_records import Records, Said, damage
from _fault_scenarios import Scenario

LAUNCHES = 5
"""Launches of a scenario at most: with faults, with others, refused, resumed."""


@dataclass
class Verdict:
    """What became of a scenario."""

    scenario: Scenario
    violations: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    """One entry a launch."""
    fired: Counter[str] = field(default_factory=Counter)
    """Faults by kind that the run came to."""
    seconds: float = 0.0


@dataclass
class Play:
    """A scenario under way."""

    scenario: Scenario
    site: Site
    reference: Callable[[Scenario], str]
    """The digest of the model of a run that nothing disturbs."""
    slack: float
    verdict: Verdict
    excused: set[str] = field(default_factory=set)
    """Workers that a run with servers may have gone on without."""
    damaged: dict[str, tuple[Path, bytes]] = field(default_factory=dict)
    """Kind of file to the file and what it held."""
    folders: list[Path] = field(default_factory=list)
    """The run folder on each host."""
    expected: set[int | None] = field(default_factory=lambda: {None})
    """The steps from which the next launch may go on; None is a new run."""
    may_refuse: bool = False
    """Whether the next launch may refuse to resume because of what was damaged."""

    def to_the_end(self) -> None:
        """Launch, resume and start again until the run is complete."""
        (self.site.root / SECRET).write_text("0f" * 32)
        (self.site.root / SECRET).chmod(0o600)
        commands = [fresh_words(self.scenario, host) for host in self.site.hosts]
        for number in range(LAUNCHES):
            ended = self._launch(number, commands)
            if ended.codes[0] == 0 or not self.records.incomplete():
                compared = self.scenario.deterministic and self.scenario.faults
                reference = self.reference(self.scenario.undisturbed) if compared else None
                self.verdict.violations += check_complete(self.records, self.damaged, reference)
                return
            if not ended.fired and not self.may_refuse:
                return  # a violation, and noted as such
            commands = self._next(ended, number)
        self.verdict.violations.append(f"not complete after {LAUNCHES} launches")

    @property
    def records(self) -> Records:
        """What is in the run folders now."""
        return Records(self.scenario, self.folders)

    def _launch(self, number: int, commands: list[list[str]]) -> Ended:
        """One launch with its faults, and what must hold at its end."""
        faults = [fault for fault in self.scenario.faults if fault.launch == number and fault.live]
        if faults:
            commands = [[*words, *patience_words(words)] for words in commands]
        before = [set(host.folders) for host in self.site.hosts]
        ended = Launch(self.scenario, self.site, commands, faults, self.slack).run()
        self.folders = [self._folder(host, before[host.number]) for host in self.site.hosts]
        self.verdict.fired.update(fault.kind for fault in ended.fired)
        self.verdict.story.append(_words(ended))
        for fault in ended.fired:
            self.excused |= lost_workers(fault, self.scenario)
        if ended.hung:  # all were killed at once, and nobody could clean up
            for host in self.site.hosts:
                host.clean_up(shm=True, disk=True)
        self.verdict.violations += check_words(ended, self.expected)
        self.verdict.violations += check_codes(ended, self.records, self.excused, self.may_refuse)
        self.verdict.violations += check_leftovers(self.site, killed_launchers(ended.fired), self.slack)
        self.verdict.violations += check_safe(ended, self.records, self.excused)
        return ended

    def _folder(self, host: Host, before: set[Path]) -> Path:
        """The run folder of the last launch: a new one, or the one that it was told to resume."""
        made = [folder for folder in host.folders if folder not in before]
        return (made or self.folders[host.number : host.number + 1] or [host.runs / "none"])[-1]

    def _next(self, ended: Ended, number: int) -> list[list[str]]:
        """The commands that go on, as printed where any are; damage that is due comes first."""
        if self.may_refuse:
            for path, before in self.damaged.values():
                path.write_bytes(before)
            self.damaged.clear()
            self.may_refuse = False
        newest = self.records.newest_whole(self.excused)
        whole = [step for step in named_safe(ended) if self.records.whole(step, self.excused)]
        self.expected = {max(whole, default=newest)}
        if number == 0:
            self._damage()
        if self.expected == {None} and not self.may_refuse:
            self.folders = []
            return [fresh_words(self.scenario, host) for host in self.site.hosts]
        return [
            Said(text).resume or self._resume_words(host)
            for host, text in zip(self.site.hosts, ended.texts, strict=True)
        ]

    def _resume_words(self, host: Host) -> list[str]:
        folder = self.folders[host.number].relative_to(host.home)
        return ["train", "--resume", str(folder), *place_words(self.scenario, host)]

    def _damage(self) -> None:
        """Damage files of the stopped run, and note what may follow from it."""
        for fault in self.scenario.faults:
            path = None if fault.live else self.records.victim(fault.target, fault.place)
            if path is None or path in [earlier for earlier, _ in self.damaged.values()]:
                continue
            had_checkpoint = self.expected != {None}
            self.damaged[fault.target] = (path, damage(path, fault.kind, fault.place))
            self.verdict.fired[fault.kind] += 1
            self.verdict.story[-1] += f", {fault.kind} {path.name}"
            if fault.target == "checkpoint":
                # With servers, a worker whose file is damaged may start anew at that step, or all go back.
                lost = {path.stem} if self.scenario.servers and path.stem.startswith("rank") else set()
                self.expected = {self.records.newest_whole(self.excused | more) for more in (set(), lost)}
            self.may_refuse |= fault.target == "config" or (had_checkpoint and None in self.expected)


def _words(ended: Ended) -> str:
    fired = " + ".join(fault.kind for fault in ended.fired)
    at = [f"from {step} " for text in ended.texts[:1] if (step := Said(text).resumed_at)]
    safe = "".join(f", safe {step}" for step in named_safe(ended))
    return f"{''.join(at)}{fired + ' ' if fired else ''}exit {'/'.join(map(str, ended.codes))}{safe}"


def play(
    scenario: Scenario, reference: Callable[[Scenario], str], slack: float = 1.0, keep: Path | None = None
) -> Verdict:
    """Play a scenario; what a failed one has left is copied to ``keep``."""
    verdict, began = Verdict(scenario), time.monotonic()
    small = any(fault.kind == "full disk" for fault in scenario.faults)
    with site(str(scenario.seed), scenario.hosts, small) as place:
        try:
            Play(scenario, place, reference, slack, verdict).to_the_end()
        except Exception as error:
            verdict.violations.append(f"the soak itself failed: {error!r}")
        if keep is not None and verdict.violations:
            subprocess.run(["cp", "-a", str(place.root), str(keep)], check=True)
    verdict.seconds = time.monotonic() - began
    return verdict


def undisturbed_digest(scenario: Scenario, slack: float = 1.0) -> str:
    """The digest of the model at the end of a run without faults; anything but a whole run is an error."""
    verdict = Verdict(scenario)
    with site("reference", scenario.hosts, False) as place:
        run = Play(scenario, place, lambda _: "", slack, verdict)
        run.to_the_end()
        if verdict.violations:
            raise RuntimeError(f"{scenario}: {verdict.violations}")
        return run.records.model_digest()
