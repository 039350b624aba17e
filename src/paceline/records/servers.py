"""What a server received and did, in order: the record of staleness, and what a replay follows."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple


class Used(NamedTuple):
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
    """The message's name: Join, Push, Rest, Pull or Left."""
    clock: int = -1
    version: int = -1
    depth: int = 0
    """Messages that were waiting when this one was taken, itself included."""
    how: str = ""
    """Of Left: "finished", "left" or "died"."""


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
    used: tuple[Used, ...]


Entry = Received | Ticked | Updated


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
    line: dict[str, Any] = {"at": round(entry.at, 9), "kind": entry.kind, "worker": entry.worker}
    if entry.kind == "Push":
        line |= {"clock": entry.clock, "version": entry.version}
    if entry.how:
        line |= {"clock": entry.clock, "how": entry.how}
    return line | {"depth": entry.depth}


def entry_from_json(line: Mapping[str, Any]) -> Entry:
    """Read what ``entry_to_json`` wrote."""
    if "update" in line:
        return Updated(line["at"], line["update"], tuple(Used(*one) for one in line["of"]))
    if "tick" in line:
        return Ticked(line["at"])
    return Received(**line)


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
    joined: list[tuple[int, float]] = field(default_factory=list)
    """(worker, when), of those who came after the start."""
    left: list[tuple[int, float, str]] = field(default_factory=list)
    """(worker, when, how)."""
    refused: dict[str, int] = field(default_factory=dict)
    """Why something at the server's socket was refused, to how often."""

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
                if entry.kind == "Left":
                    self.left.append((entry.worker, entry.at, entry.how))

    def to_json(self) -> dict[str, Any]:
        """A plain document."""
        return asdict(self)
