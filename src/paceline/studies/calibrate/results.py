"""What a calibration found, and who is told while it goes on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class DeviceFound:
    """How fast a device is, and how far off its model is on what it has not seen."""

    threads: int
    networks: int
    """Random networks that were measured."""
    layers: int
    """Single layers that were measured."""
    operators: int
    """Calls of operators behind the fit."""
    dropped: int
    """Measurements that cannot be, and are left out."""
    flops: float
    """The best rate that was seen, operations a second."""
    bandwidth: float
    """Of memory, bytes a second."""
    residuals: Mapping[str, tuple[float, float]]
    """By kind of operator: how far off, as a share; the median and nine tenths."""
    rates: Mapping[str, tuple[float, float]]
    """By kind: operations a second, a slow shape and a fast one."""
    steps: tuple[float, float]
    """The same of whole steps of networks that were left out of the fit."""
    spread: float
    """Standard deviation of the logarithm of (measured / predicted) of these."""
    disturbed: str = ""
    """What else computed meanwhile, in a sentence; empty where nothing did."""

    def to_json(self) -> dict[str, Any]:
        """A plain document."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class RecordFound:
    """A recorded run's typical step beside what the device model said of it, in seconds by phase."""

    folder: str
    name: str
    samples: int
    measured: Mapping[str, float]
    predicted: Mapping[str, float]

    @property
    def off(self) -> float:
        """By how much the model's step was longer, as a share."""
        return sum(self.predicted.values()) / sum(self.measured.values()) - 1

    def to_json(self) -> dict[str, Any]:
        """A plain document."""
        return {**asdict(self), "off": self.off}


class CalibrationObserver(Protocol):
    """What a person or a program sees of a calibration."""

    def progressed(self, done: float, words: str) -> None:
        """The share that is done, now and then."""

    def noted(self, sentence: str) -> None:
        """Something worth saying: what is waited for."""


class SilentCalibration:
    """Tells nobody."""

    def progressed(self, done: float, words: str) -> None:
        """Say nothing."""

    def noted(self, sentence: str) -> None:
        """Say nothing."""
