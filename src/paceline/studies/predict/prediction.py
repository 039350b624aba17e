"""A prediction: rows by worker count, what follows from them, and what they rest on.

Times are seconds, sizes bytes, rates and bandwidths a second; ``docs/predict.md`` describes the JSON document.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, NamedTuple

from paceline.records.spans import StepBreakdown

Level = Literal["catalogue", "calibrated", "profiled"]

Where = Literal["network", "inside"]

Bound = Literal["compute", "bandwidth", "latency", "encryption", "codec", "server", "straggler"]

Method = Literal["groups", "events", "approximation"]
"""How a step was found: one worker simulated for each group of equal ones, every worker simulated, or a large run
with servers approximated (``approximation.py``)."""

Pays = Literal["below", "never", "always"]

SettingValue = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class PredictedStep:
    breakdown: StepBreakdown
    sent: float
    rate: float
    path: Method = "groups"

    @property
    def seconds(self) -> float:
        return self.breakdown.total


class StepBounds(NamedTuple):
    bound: Bound = "compute"
    besides: Bound = "compute"
    """The same if computing stayed as it is; compute where nothing else helps."""
    link: Where = "network"
    cipher: float = 0.0
    """Bytes a second that a process encrypts for servers on other hosts; 0 where nothing does."""

    @property
    def carrier(self) -> Where:
        """The link whose bandwidth is in question; what is encrypted goes between hosts."""
        return "network" if self.besides == "encryption" else self.link


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The most that a worker holds at a time; ``total`` is the sum of the fields before it."""

    parameters: float
    gradients: float
    optimizer: float
    """The optimizer's state; 0 where servers keep it."""
    activations: float
    workspace: float
    exchange: float
    base: float
    total: float
    server: float | None
    device: str
    """Whose memory it is: a device, or a host that its workers share; of several, the one with the least to spare."""
    needed: float
    """On a GPU that of one worker, on a CPU that of all workers and servers of a host."""
    capacity: float | None
    largest: int | None = None
    """Where it does not fit, the largest batch of a worker that does: 0 if none."""
    least: float | None = None
    """What a batch of 1 needs, where that does not fit either."""

    @property
    def fits(self) -> bool:
        return self.capacity is None or self.needed <= self.capacity


@dataclass(frozen=True, kw_only=True)
class PredictionRow:
    workers: int
    batch: int
    samples: int
    breakdown: StepBreakdown
    step: float
    low: float
    high: float
    sent: float
    rate: float
    speed_up: float
    efficiency: float
    bound: Bound
    path: Method
    cost_million: float | None = None
    finish: float | None = None
    cost: float | None = None
    memory: Memory | None = None

    @property
    def fits(self) -> bool:
        return self.memory is None or self.memory.fits


@dataclass(frozen=True, kw_only=True)
class WorkerRange:
    workers: int
    searched: int

    @property
    def open(self) -> bool:
        return self.workers >= self.searched


@dataclass(frozen=True, kw_only=True)
class LimitingLink:
    where: Where
    name: str
    bandwidth: float
    latency: float


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What keeps ``workers`` workers from being as many times as fast as one."""

    workers: int
    bound: Bound
    wire: LimitingLink | None
    """The link, where the limit is its bandwidth or latency, or a server's link rather than the server's work."""
    without: float | None
    """Speed-up if that link had unlimited bandwidth, or no latency."""
    cipher: float | None = None


@dataclass(frozen=True, kw_only=True)
class Knee:
    reach: WorkerRange
    bound: Bound
    where: Where
    dip: int | None
    """A smaller number at which doubling does not pay off either, though it does again later."""


@dataclass(frozen=True, kw_only=True)
class BandwidthNeed:
    workers: int
    wire: LimitingLink
    needed: float | None
    left: float


@dataclass(frozen=True, kw_only=True)
class Speedup:
    change: tuple[SettingValue, ...]
    workers: int
    gain: float
    speed_up: float


@dataclass(frozen=True, kw_only=True)
class FittingChange:
    change: tuple[SettingValue, ...]
    workers: int
    needed: float
    capacity: float
    rate: float


@dataclass(frozen=True, kw_only=True)
class Findings:
    well: WorkerRange
    knee: Knee
    crossover: WorkerRange
    slower: WorkerRange
    """Training is no faster than on one worker; 1 where two are faster."""
    limit: Limit | None
    """Of the slowest of the asked numbers that are slower than one worker, else of the largest; None for one worker."""
    bandwidth: BandwidthNeed | None
    """None for one worker, and where even perfect links leave more waiting than computing."""
    helps: tuple[Speedup, ...]
    fits: tuple[FittingChange, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StrategyPrediction:
    strategy: str
    rows: tuple[PredictionRow, ...]
    findings: Findings | None = None
    settled: int = 0
    """Steps before those that are predicted: a strategy may begin otherwise than it goes on."""


@dataclass(frozen=True, kw_only=True)
class CodecStep:
    """A step with a codec against one without."""

    codec: str
    sent: float
    coding: float
    """How much longer a step takes by encoding and decoding, on links that take no time."""
    step: float
    gain: float
    """Samples a second over those without a codec."""
    pays: Pays | None = None
    """At which bandwidths of the link it is faster than no codec; None for no codec itself."""
    below: float | None = None
    """The bandwidth below which it is, where one decides."""
    assumed: float | None = None
    """The part of the elements that a message is taken to have, where only data could tell and none did."""


@dataclass(frozen=True, kw_only=True)
class CodecComparison:
    strategy: str
    workers: int
    wire: LimitingLink
    """The link whose bandwidth is in question."""
    steps: tuple[CodecStep, ...]
    """The first one is without a codec."""

    def pays_here(self, step: CodecStep) -> bool:
        below = inf if step.pays == "always" else step.below or 0.0
        return below > self.wire.bandwidth


@dataclass(frozen=True, kw_only=True)
class Basis:
    level: Level
    compute: str
    links: str
    interval: str
    precision: str = ""
    faster_precision: tuple[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class ModuleCost:
    module: str
    kinds: str
    flops: float | None
    bytes: float | None
    forward: float
    backward: float
    share: float


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The answer to one request; its JSON document is this dataclass, field by field."""

    name: str
    parameters: int
    scaling: Literal["weak", "strong"]
    batch: int
    cost_model: str
    basis: Basis
    series: tuple[StrategyPrediction, ...]
    codecs: tuple[CodecComparison, ...] = ()
    """With the most workers, one a strategy; empty where no codec was asked for."""
    modules: tuple[ModuleCost, ...] = ()
    unmeasured: Mapping[str, float] = field(default_factory=dict)
    """Operators that the calibration never measured, by name: their share of one worker's computing."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    made: str = ""
    schema: Literal[4] = 4
    kind: Literal["prediction"] = "prediction"

    @property
    def workers(self) -> tuple[int, ...]:
        return tuple(row.workers for row in self.series[0].rows)
