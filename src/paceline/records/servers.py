"""What a server received and did, in order: the record of staleness, and what a replay follows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from paceline.records.files import LineWriter, read_lines, repair
from paceline.units import show_seconds


class AppliedGradient(NamedTuple):
    """One worker's gradient in an update."""

    worker: int
    clock: int
    """Steps that the worker had finished before it computed this gradient."""
    version: int
    staleness: int
    samples: int


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="entry", tag=str.lower):
    at: float
    """Seconds since the run began."""


class Received(_Entry, frozen=True):
    worker: int
    kind: str
    """The message's name: Join, Push, Pause, Pull or Leave."""
    clock: int = -1
    version: int = -1
    depth: int = 0
    """Messages that were waiting when this one was taken, itself included."""
    how: str = ""
    """Of Leave: "finished", "left" or "died"."""


class Ticked(_Entry, frozen=True):
    """The time until which the server had waited passed before a message arrived."""


class Updated(_Entry, frozen=True):
    version: int
    used: tuple[AppliedGradient, ...]


class Damaged(_Entry, frozen=True):
    """A line could not be read when the run resumed; this stands in its place, so that lines keep their numbers."""


Entry = Received | Ticked | Updated | Damaged
_decode: Callable[[bytes], Entry] = msgspec.json.Decoder(Entry).decode

ServerLog = LineWriter[Entry]
"""Writes ``events/server-N.jsonl``; ``keep_entries`` cuts it where a run resumes."""


def read_server_log(path: Path) -> Iterator[Entry]:
    return read_lines(path, _decode, "an entry of a server")


def keep_entries(path: Path, count: int) -> list[str]:
    """Keep the first ``count`` entries, for a run that resumes from there; see ``repair``."""
    return repair(
        path,
        _decode,
        keep=lambda number, _: number <= count,
        stand_in=lambda last: Damaged(last.at if last else 0.0),
    )


class MembershipChange(NamedTuple):
    """A worker joined after the first update, or left."""

    worker: int
    at: float
    how: str
    """"joined", "finished", "left" or "died"."""
    clock: int
    present: int

    def __str__(self) -> str:
        step = f", at step {self.clock:,}" if self.how != "joined" else ""
        left = f"the run went on with {self.present:,} worker{'s' if self.present > 1 else ''}"
        rest = left if self.present else "no worker was left"
        return f"rank {self.worker} {self.how} after {show_seconds(self.at)}{step}; {rest}"


@dataclass(slots=True)
class ServerTotals:
    """What one server did over a whole run."""

    updates: int = 0
    pushes: int = 0
    used: int = 0
    """Gradients that went into an update; the others were dropped."""
    staleness: dict[int, int] = field(default_factory=dict)
    depth_sum: int = 0
    depth_max: int = 0
    messages: int = 0
    changes: list[MembershipChange] = field(default_factory=list)
    present: list[int] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    """Why connections or messages were refused, to how often."""
    damaged: int = 0
    """Lines of the log that could not be read when the run resumed; what they said is in no count."""

    def add(self, entry: Entry) -> None:
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
        """Keep the list of workers; one that was removed is back with the next message that it sends."""
        how = ""
        if entry.kind == "Leave" and entry.worker in self.present:
            self.present.remove(entry.worker)
            how = entry.how
        elif entry.kind != "Leave" and entry.worker not in self.present:
            self.present.append(entry.worker)
            how = "joined" if self.updates else ""
        if how:
            clock = 0 if how == "joined" else entry.clock
            self.changes.append(MembershipChange(entry.worker, entry.at, how, clock, len(self.present)))
