"""A whole run in one small document."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from paceline.records.files import DamagedFile, read_json
from paceline.records.folder import RunFolder
from paceline.records.load import HostLoad, disturbance
from paceline.records.servers import ServerTotals
from paceline.records.spans import Totals

SCHEMA = 1


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
        return f"{came}after epoch {self.epochs:.4g}; train for longer, or with another --lr"

    def to_json(self) -> dict[str, Any]:
        """The document, with its schema number."""
        return {"schema": SCHEMA, **asdict(self), "notes": self.notes}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` wrote, also before there were servers and loads."""
        values = {key: value for key, value in document.items() if key not in ("schema", "notes")}
        values["loads"] = [HostLoad(**load) for load in values.get("loads", [])]
        values["totals"] = [Totals(**totals) for totals in values["totals"]]
        values["servers"] = [ServerTotals.from_json(totals) for totals in values.get("servers", [])]
        return cls(**values)


def recorded_loads(folder: RunFolder) -> list[HostLoad]:
    """What else computed during a run; nothing where its summary is not there, or another version wrote it."""
    try:
        return Summary.from_json(read_json(folder.summary)).loads
    except (OSError, DamagedFile, LookupError, TypeError, ValueError, AttributeError):
        return []
