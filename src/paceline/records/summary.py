"""A whole run in one small document."""

from dataclasses import dataclass, field
from typing import Any

from paceline.errors import UsageError
from paceline.records.files import DamagedFile, read_document, to_document
from paceline.records.folder import RunFolder
from paceline.records.load import HostLoad, disturbance
from paceline.records.servers import ServerTotals
from paceline.records.spans import Totals

SCHEMA = 2


@dataclass(kw_only=True)
class Summary:
    """How a run ended and where its time went; written as ``summary.json`` by both runtimes."""

    name: str
    runtime: str
    """"live" or "virtual"."""
    ending: str
    """"budget", "target", "interrupted" or "failed"."""
    workers: int
    steps: int
    """Progress in steps a worker."""
    epochs: float
    seconds: float
    """The run's length: wall time live, simulated time otherwise."""
    samples: int
    parameters: int
    target: float | None = None
    target_seconds: float | None = None
    """When the target was first met."""
    final: dict[str, float] = field(default_factory=dict)
    """The last row of metrics, empty where nothing was evaluated."""
    totals: list[Totals] = field(default_factory=list)
    """One a worker, by rank."""
    servers: list[ServerTotals] = field(default_factory=list)
    """One a server, by rank; empty where workers agree among themselves."""
    cpu_percent: float | None = None
    """Mean CPU use a worker, of one core; None where nothing was sampled."""
    memory_bytes: float | None = None
    """The largest resident memory of a worker."""
    loads: list[HostLoad] = field(default_factory=list)
    """What else computed on each host meanwhile; empty where nothing was sampled."""

    @property
    def missed(self) -> bool:
        """Whether the run was to reach a target, and ended without."""
        return self.target is not None and self.target_seconds is None and self.ending == "budget"

    @property
    def notes(self) -> list[str]:
        """What somebody who uses the figures or the model must know, a sentence each."""
        missed = (
            f"The target accuracy of {self.target} was not reached: {self._reached}." if self.missed else ""
        )
        return [note for note in (disturbance(self.loads), missed) if note]

    @property
    def _reached(self) -> str:
        came = f"it was {self.final['accuracy']:.4f} " if "accuracy" in self.final else ""
        return f"{came}after epoch {self.epochs:.4g}; train for longer, or with another learning rate"

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **to_document(self), "notes": self.notes}


def read_summary(folder: RunFolder) -> Summary:
    """What ``to_json`` gave; DamagedFile or UsageError where it is something else."""
    return read_document(folder.summary, Summary, what="the summary of a run", schema=SCHEMA)


def recorded_loads(folder: RunFolder) -> list[HostLoad]:
    """What else computed during a run; nothing where its summary is not there, or another version wrote it."""
    try:
        return read_summary(folder).loads
    except (OSError, DamagedFile, UsageError):
        return []
