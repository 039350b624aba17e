"""A whole run in one small document."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

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

    def to_json(self) -> dict[str, Any]:
        """The document, with its schema number."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` wrote, also before there were servers."""
        values = {key: value for key, value in document.items() if key != "schema"}
        values["totals"] = [Totals(**totals) for totals in values["totals"]]
        values["servers"] = [ServerTotals.from_json(totals) for totals in values.get("servers", [])]
        return cls(**values)
