"""Who keeps what a simulated run leaves behind."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from paceline.records.servers import Entry
from paceline.records.spans import StepRecord


class Recorder(Protocol):
    """Given what happens, in an order that depends on the settings alone."""

    detailed: bool
    """Whether every step is wanted; without, only totals are kept and a run is faster."""

    def stepped(self, rank: int, record: StepRecord) -> None:
        """After every step or meeting of a worker, where ``detailed``; each worker's own come in order."""

    def served(self, rank: int, entry: Entry) -> None:
        """Whatever a server receives or does, where ``detailed``; each server's own come in order."""

    def exported(self, state: Mapping[str, Tensor]) -> None:
        """At the end, the model that counts by name, where gradients are on."""


class TotalsOnly:
    """Keeps nothing."""

    detailed = False

    def stepped(self, rank: int, record: StepRecord) -> None:
        """Forget it."""

    def served(self, rank: int, entry: Entry) -> None:
        """Forget it."""

    def exported(self, state: Mapping[str, Tensor]) -> None:
        """Forget it."""
