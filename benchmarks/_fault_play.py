"""Plays a scenario to its end, a run that is complete, and says which invariants did not hold on the way."""

import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from _fault_hosts import Host, Site, site
from _fault_inject import Ended, Launch
from _fault_records import TRACEBACK, Records, Said, damage
from _fault_scenarios import HANG, SILENCE, Fault, Scenario

SECRET = "secret"
LAUNCHES = 5
"""Launches of a scenario at most: with faults, with others, refused, resumed."""
GRACE, ORPHANED = 5.0, 20.0
"""Seconds from a launcher's end to that of its last process; and from a launcher's death."""


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


@cache
def offered() -> str:
    """The help of ``paceline train``, which says which options there are."""
    command = [sys.executable, "-m", "paceline", "train", "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def place_words(scenario: Scenario, host: Host) -> list[str]:
    """What a launcher is told about its place, whether a run is new or goes on."""
    if scenario.hosts == 1:
        return []
    words = ["-n", str(scenario.hosts), "-np", str(scenario.workers), "-a", "10.78.0.1", "-p", "29500"]
    words += ["-nr", str(host.number)]
    only_with_servers = "run with servers" in " ".join(offered().split())
    needs_secret = scenario.servers or not only_with_servers
    return [*words, "--secret-file", str(host.home.parent / SECRET)] if needs_secret else words


def patience_words(words: Sequence[str]) -> list[str]:
    """How soon silence and hanging are acted on, where that can be said and is not yet."""
    values = {"--hang-timeout": HANG, "--silence": SILENCE}
    missing = {name: value for name, value in values.items() if name in offered() and name not in words}
    return [word for name, value in missing.items() for word in (name, str(value))]


def fresh_words(scenario: Scenario, host: Host) -> list[str]:
    """The command that starts the run."""
    words = ["train", "--strategy", scenario.strategy, "--model", scenario.model, "-i", str(scenario.steps)]
    words += ["--checkpoint-every", f"{scenario.every} steps", "--evaluate-every", "100 steps"]
    if scenario.servers:
        words += ["--servers", str(scenario.servers)]
    if scenario.hosts == 1:
        words += ["--workers", str(scenario.workers)]
    return [*words, *place_words(scenario, host), *patience_words(words)]


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
    """Workers of a run with servers that a fault has hit: the others go on without them."""
    damaged: dict[str, tuple[Path, bytes]] = field(default_factory=dict)
    """Kind of file to the file and what it held."""
    folders: list[Path] = field(default_factory=list)
    expected: int | None = None
    """The step from which the next launch must go on."""
    may_refuse: bool = False
    unswept: set[int] = field(default_factory=set)
    """Hosts whose launcher was killed, with nothing launched since."""

    def to_the_end(self) -> None:
        """Launch, resume and start again until the run is complete."""
        (self.site.root / SECRET).write_text("0f" * 32)
        (self.site.root / SECRET).chmod(0o600)
        commands = [fresh_words(self.scenario, host) for host in self.site.hosts]
        for number in range(LAUNCHES):
            faults = [
                fault
                for fault in self.scenario.faults
                if fault.launch == number and fault.moment.event != "stopped"
            ]
            before = {folder for host in self.site.hosts for folder in host.folders}
            if faults:
                commands = [[*words, *patience_words(words)] for words in commands]
            ended = Launch(self.scenario, self.site, commands, faults, self.slack).run()
            self._take_note(ended, before)
            self._judge(ended)
            if ended.codes[0] == 0 or not self.records.incomplete():
                self._judge_complete()
                return
            if not ended.fired and not self.may_refuse:
                return  # said already
            commands = self._next(ended, number)
        self._violate(f"not complete after {LAUNCHES} launches")

    def _violate(self, sentence: str) -> None:
        self.verdict.violations.append(sentence)

    def _take_note(self, ended: Ended, before: set[Path]) -> None:
        self.verdict.fired.update(fault.kind for fault in ended.fired)
        self.verdict.story.append(_words(ended))
        made = [
            [folder for folder in host.folders if folder not in before][-1:] or self.folders[at : at + 1]
            for at, host in enumerate(self.site.hosts)
        ]
        self.folders = [
            found[0] if found else self.site.hosts[at].runs / "none" for at, found in enumerate(made)
        ]
        for fault in ended.fired if self.scenario.servers else []:
            self.excused |= _hit_workers(fault, self.scenario)
        killed = {
            self.scenario.host_of(fault.target)
            for fault in ended.fired
            if fault.kind == "kill" and fault.target.startswith("launcher")
        }
        self.unswept = killed
        if ended.hung:
            self._clean_up()

    def _clean_up(self) -> None:
        """Remove what all processes of a launch have left because they were ended for hanging, all at once."""
        self.unswept = set(range(self.scenario.hosts))
        for host in self.site.hosts:
            names = [*host.shm.iterdir()] if host.shm else []
            for path in [*names, *(host.home / "tmp").glob("paceline-*"), *host.runs.glob("*/*secret*")]:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    @property
    def records(self) -> Records:
        """What is in the run folders now."""
        return Records(self.scenario, self.site.hosts, self.folders)

    def _judge(self, ended: Ended) -> None:
        """Every invariant that holds at the end of any launch."""
        if ended.hung:
            self._violate(f"hang: {ended.hung} beyond the limit")
        self._judge_codes(ended)
        self._judge_leftovers()
        said = [Said(text) for text in ended.texts]
        if any(TRACEBACK in text for text in ended.texts):
            self._violate("a traceback is printed")
        if said[0].resumed_at != self.expected and (said[0].resumed_at or ended.codes[0] == 0):
            self._violate(f"went on from step {said[0].resumed_at}, not {self.expected}")
        self._judge_safe(said, ended)

    def _judge_codes(self, ended: Ended) -> None:
        kinds = {fault.kind for fault in ended.fired}
        survivable = all(fault.harmless for fault in ended.fired) and not self.may_refuse
        for host, (code, text) in enumerate(zip(ended.codes, ended.texts, strict=True)):
            allowed = {0} if survivable else {0, 1}
            allowed |= {130} if "interrupt" in kinds else set()
            allowed |= {2} if self.may_refuse else set()
            allowed |= {-9} if host in self.unswept else set()
            if code not in allowed:
                self._violate(f"exit code {code} on host {host}: {Said(text).last_line}")
            elif code in (1, 2) and not text.strip():
                self._violate(f"exit code {code} on host {host} without a word")
            if code == 0 and not self.records.whole(self.scenario.steps, self.excused, host):
                self._violate(f"exit code 0 on host {host}, and the last checkpoint is not whole there")

    def _judge_leftovers(self) -> None:
        limit = time.monotonic() + self.slack * (ORPHANED if self.unswept else GRACE)
        while (left := self.site.alive()) and time.monotonic() < limit:
            time.sleep(0.05)
        if left:
            self._violate(f"{len(left)} processes left")
            self.site.kill_all()
        for host in self.site.hosts:
            names = [path.name for path in host.shm.iterdir()] if host.shm else []
            if names:
                self._violate(f"left in /dev/shm: {', '.join(sorted(names)[:3])}")
            for name in names:
                (host.shm or host.home).joinpath(name).unlink(missing_ok=True)
            secrets = [path for folder in host.folders for path in folder.glob("*secret*")]
            temporary = [path.name for path in (host.home / "tmp").glob("paceline-*")]
            if host.number not in self.unswept and (secrets or temporary):
                self._violate(f"left on host {host.number}: {[path.name for path in secrets] + temporary}")

    def _judge_safe(self, said: Sequence[Said], ended: Ended) -> None:
        """What is called safe is whole on every rank and server, and is the newest that is."""
        newest = self.records.newest_whole(self.excused)
        steps = {one.safe for one in said if one.safe is not None}
        for step in steps:
            if not self.records.whole(step, self.excused):
                self._violate(f"false Safe: step {step} is not whole (step {newest} is)")
            elif self.scenario.deterministic and step != newest:
                self._violate(f"Safe: step {step}, though step {newest} is whole")
        if len(steps) > 1:
            self._violate(f"hosts name different steps: {sorted(steps)}")
        if any(one.nothing_safe for one in said) and newest is not None and self.scenario.deterministic:
            self._violate(f"says that nothing is safe, though step {newest} is whole")
        if ended.codes[0] == 0 and any(one.resume for one in said[1:]):
            self._violate("another host is told to resume a run that went on")
        self.expected = max(
            (step for step in steps if self.records.whole(step, self.excused)), default=newest
        )

    def _next(self, ended: Ended, number: int) -> list[list[str]]:
        """The commands that go on: as printed where something is, after what damage was due."""
        refused, self.may_refuse = self.may_refuse and not ended.fired, False
        if refused:
            for path, before in self.damaged.values():
                path.write_bytes(before)
            self.damaged.clear()
            self.expected = self.records.newest_whole(self.excused)
        if number == 0:
            self._damage()
        if self.expected is None and not self.may_refuse:
            self.folders = []
            return [fresh_words(self.scenario, host) for host in self.site.hosts]
        return [
            (Said(text).resume if not refused else None) or self._resume_words(host)
            for host, text in zip(self.site.hosts, ended.texts, strict=True)
        ]

    def _resume_words(self, host: Host) -> list[str]:
        folder = self.folders[host.number].relative_to(host.home)
        return ["train", "--resume", str(folder), *place_words(self.scenario, host)]

    def _damage(self) -> None:
        """Damage files of the stopped run, and say what may follow from it."""
        for fault in self.scenario.faults:
            path = self.records.victim(fault.target, fault.place) if fault.moment.event == "stopped" else None
            if path is None or path in [earlier for earlier, _ in self.damaged.values()]:
                continue
            held = self.expected is not None
            self.damaged[fault.target] = (path, damage(path, fault.kind, fault.place))
            self.verdict.fired[fault.kind] += 1
            self.verdict.story[-1] += f", {fault.kind} {path.name}"
            if fault.target == "checkpoint":
                self.expected = self.records.newest_whole(self.excused)
            self.may_refuse |= fault.target == "config" or (held and self.expected is None)

    def _judge_complete(self) -> None:
        """The invariants of a run that has come to its end."""
        records = self.records
        wrong = records.incomplete()
        for sentence in wrong or records.doubled(self.damaged):
            self._violate(sentence)
        comparable = not wrong and self.scenario.deterministic and self.scenario.faults
        if comparable and records.model_digest() != self.reference(self.scenario.undisturbed):
            self._violate("the model differs from that of an undisturbed run")


def _hit_workers(fault: Fault, scenario: Scenario) -> set[str]:
    """The workers that a run with servers may lose by a fault."""
    if fault.target.startswith("rank"):
        return {fault.target}
    first = scenario.host_of(fault.target) * scenario.workers
    whole_host = fault.target.startswith(("launcher", "host"))
    return {f"rank-{rank}" for rank in range(first, first + scenario.workers)} if whole_host else set()


def _words(ended: Ended) -> str:
    fired = " + ".join(fault.kind for fault in ended.fired)
    at = [f"from {step} " for text in ended.texts[:1] if (step := Said(text).resumed_at)]
    safe = [f", safe {step}" for text in ended.texts if (step := Said(text).safe) is not None]
    codes = "/".join(map(str, ended.codes))
    return f"{''.join(at)}{fired + ' ' if fired else ''}exit {codes}{''.join(dict.fromkeys(safe))}"


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
