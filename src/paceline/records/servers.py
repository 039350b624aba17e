"""What a server received and did, in order: the record of staleness, and what a replay follows."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from paceline.records.files import DamagedFile
from paceline.records.lines import LineWriter, encode, read_lines, repair
from paceline.units import show_seconds

_AT_ONCE = 1024
"""Entries that are kept before they are written."""


class AppliedGradient(NamedTuple):
    """One worker's gradient in an update."""

    worker: int
    clock: int
    """Steps that the worker had finished before it computed this gradient."""
    version: int
    """The server's updates that the gradient was computed on."""
    staleness: int
    """The server's updates that it missed."""
    samples: int


@dataclass(frozen=True, slots=True)
class Received:
    """A message was taken in."""

    at: float
    """Seconds since the run began."""
    worker: int
    kind: str
    """The message's name: Join, Push, Pause, Pull or Leave."""
    clock: int = -1
    version: int = -1
    depth: int = 0
    """Messages that were waiting when this one was taken, itself included."""
    how: str = ""
    """Of Leave: "finished", "left" or "died"."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """A time for which the server had waited came before a message did."""

    at: float


@dataclass(frozen=True, slots=True)
class Updated:
    """The parameters were changed."""

    at: float
    version: int
    """Updates so far, this one included."""
    used: tuple[AppliedGradient, ...]


@dataclass(frozen=True, slots=True)
class Damaged:
    """A line could not be read when the run resumed; this stands in its place, so that lines keep their numbers."""

    at: float
    """When the entry before it was."""


Entry = Received | Ticked | Updated | Damaged


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """One line of ``events/server-N.jsonl``; ``entry_from_json`` reads it."""
    match entry:
        case Updated():
            return {
                "at": round(entry.at, 9),
                "update": entry.version,
                "of": [list(one) for one in entry.used],
            }
        case Ticked():
            return {"at": round(entry.at, 9), "tick": True}
        case Damaged():
            return {"at": round(entry.at, 9), "damaged": True}
    line: dict[str, Any] = {"at": round(entry.at, 9), "kind": entry.kind, "worker": entry.worker}
    if entry.kind == "Push":
        line |= {"clock": entry.clock, "version": entry.version}
    if entry.how:
        line |= {"clock": entry.clock, "how": entry.how}
    return line | {"depth": entry.depth}


def entry_from_json(line: Mapping[str, Any]) -> Entry:
    """Read what ``entry_to_json`` wrote."""
    if "update" in line:
        return Updated(line["at"], line["update"], tuple(AppliedGradient(*one) for one in line["of"]))
    if "tick" in line:
        return Ticked(line["at"])
    if "damaged" in line:
        return Damaged(line["at"])
    return Received(**line)


class ServerLog(LineWriter[Entry]):
    """Writes ``events/server-N.jsonl``; ``keep_entries`` cuts it where a run resumes."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _line, _AT_ONCE)


def read_server_log(path: Path) -> Iterator[Entry]:
    """One server's entries in order; a line torn by a crash is skipped, a damaged one is named."""
    for number, line in enumerate(read_lines(path), start=1):
        try:
            yield entry_from_json(line)
        except (KeyError, TypeError) as error:
            raise DamagedFile(path, f"is damaged: line {number} is not an entry of a server") from error


def keep_entries(path: Path, count: int) -> list[str]:
    """Keep so many entries, for a run that goes on from where there were so many; see ``repair``."""
    at = 0.0

    def keep(number: int, document: dict[str, Any]) -> bool:
        nonlocal at
        entry = entry_from_json(document)
        _check(entry)
        at = entry.at
        return number <= count

    def stand_in(number: int) -> str:
        return _line(Damaged(at)) if number <= count else ""

    return repair(path, keep, stand_in)


def _check(entry: Entry) -> None:
    """Raise TypeError unless every field is of its kind."""
    match entry:
        case Updated():
            numbers: tuple[Any, ...] = (entry.version, *(number for used in entry.used for number in used))
        case Received():
            numbers = (entry.worker, entry.clock, entry.version, entry.depth)
            if not (isinstance(entry.kind, str) and isinstance(entry.how, str)):
                raise TypeError("not an entry of a server")
        case _:
            numbers = ()
    if not (isinstance(entry.at, float | int) and all(type(number) is int for number in numbers)):
        raise TypeError("not an entry of a server")


def _line(entry: Entry) -> str:
    return encode(entry_to_json(entry))


class Coming(NamedTuple):
    """A worker came after the first update."""

    worker: int
    at: float
    """Seconds since the run began."""
    present: int
    """Workers from then on, this one included."""

    def __str__(self) -> str:
        return f"rank {self.worker} joined after {show_seconds(self.at)}; {_goes_on(self.present)}"


class Going(NamedTuple):
    """A worker was there no more."""

    worker: int
    at: float
    """Seconds since the run began."""
    how: str
    """"finished", "left" or "died"."""
    clock: int
    """Steps that it had finished."""
    present: int
    """Workers that went on."""

    def __str__(self) -> str:
        when = f"after {show_seconds(self.at)}, at step {self.clock:,}"
        return f"rank {self.worker} {self.how} {when}; {_goes_on(self.present)}"


def _goes_on(present: int) -> str:
    if not present:
        return "no worker was left"
    return f"the run went on with {present:,} worker{'s' if present > 1 else ''}"


@dataclass(slots=True)
class ServerTotals:
    """What one server did over a whole run."""

    updates: int = 0
    pushes: int = 0
    """Gradients that came."""
    used: int = 0
    """Gradients that went into an update; the others were dropped, or came when nobody was left to answer."""
    staleness: dict[int, int] = field(default_factory=dict)
    """Staleness to how many gradients had it."""
    depth_sum: int = 0
    depth_max: int = 0
    """The most messages that waited at once."""
    messages: int = 0
    joined: list[Coming] = field(default_factory=list)
    left: list[Going] = field(default_factory=list)
    present: list[int] = field(default_factory=list)
    """The workers that are there."""
    refused: dict[str, int] = field(default_factory=dict)
    """Why something at the server's socket was refused, to how often."""
    damaged: int = 0
    """Lines of the log that could not be read when the run resumed; what they said is in no count."""

    def add(self, entry: Entry) -> None:
        """Count one entry."""
        match entry:
            case Updated():
                self.updates += 1
                self.used += len(entry.used)
                for one in entry.used:
                    self.staleness[one.staleness] = self.staleness.get(one.staleness, 0) + 1
            case Received():
                self.messages += 1
                self.pushes += entry.kind == "Push"
                self.depth_sum += entry.depth
                self.depth_max = max(self.depth_max, entry.depth)
                self._attend(entry)
            case Damaged():
                self.damaged += 1

    def _attend(self, entry: Received) -> None:
        """Keep the list of workers; one that was given up comes back with whatever it says next."""
        if entry.kind == "Leave":
            if entry.worker in self.present:
                self.present.remove(entry.worker)
                going = Going(entry.worker, entry.at, entry.how, entry.clock, len(self.present))
                self.left.append(going)
        elif entry.worker not in self.present:
            self.present.append(entry.worker)
            if self.updates:
                self.joined.append(Coming(entry.worker, entry.at, len(self.present)))

    def to_json(self) -> dict[str, Any]:
        """A plain document; JSON makes text of the keys of ``staleness``."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` gave, also after it has been JSON."""
        values = dict(document)
        values["staleness"] = {int(key): count for key, count in values["staleness"].items()}
        values["joined"] = [Coming(*one) for one in values["joined"]]
        values["left"] = [Going(*one) for one in values["left"]]
        return cls(**values)
