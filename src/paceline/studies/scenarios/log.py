"""What a scenario keeps of a run with servers."""

from dataclasses import replace
from math import isclose

from paceline.records.servers import Entry, Received, Updated
from paceline.runtimes.virtual.recording import SimulationRecorder
from paceline.studies.scenarios.answers import Rounds

MOST_ENTRIES = 1_000
"""Messages and updates that are kept, to tell a short run one by one."""
MOST_KINDS = 12
"""Kinds of rounds that are told apart."""


class Log(SimulationRecorder):
    """Follows the first server: what the rounds were like, and everything it did as long as that is short."""

    detailed = True

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.rounds: list[Rounds] = []
        self.came: set[int] = set()
        self.handed_in: set[int] = set()
        self.updates = 0
        self.last = 0.0

    def served(self, rank: int, entry: Entry) -> None:
        """Count what the first server does."""
        if rank:
            return
        if len(self.entries) < MOST_ENTRIES:
            self.entries.append(entry)
        match entry:
            case Updated():
                self._add(len(entry.used), entry.at - self.last)
                self.updates, self.last = entry.version, entry.at
            case Received(kind="Join"):
                self.came.add(entry.worker)
            case Received(kind="Push"):
                self.handed_in.add(entry.worker)

    def _add(self, workers: int, seconds: float) -> None:
        """One more of the same kind, or a new kind; beyond those that can be told, all are one."""
        same = self.rounds[-1] if self.rounds else None
        if same and same.workers == workers and isclose(same.seconds, seconds, rel_tol=1e-4):
            total = same.seconds * same.count + seconds
            self.rounds[-1] = replace(same, count=same.count + 1, seconds=total / (same.count + 1))
        elif len(self.rounds) <= MOST_KINDS:
            self.rounds.append(Rounds(count=1, workers=workers, seconds=seconds))
