"""A prediction: rows by worker count, what follows from them, and what they rest on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.records.spans import StepBreakdown

Level = Literal["catalogue", "calibrated", "profiled"]
"""What compute times rest on: a data sheet; a machine that was measured; the job's own step, measured on one worker."""

Where = Literal["network", "inside"]
"""A link: between hosts, or between the workers of one host."""

Bound = Literal["compute", "bandwidth", "latency", "encryption", "codec", "server", "straggler"]
"""What a step would gain most from if it were better."""

Path = Literal["groups", "events", "approximation"]
"""How a step was found: one worker simulated for each group of equal ones, every worker simulated, or a large run
with servers approximated (``servers.py``)."""

Setting = tuple[str, str]
"""The name and the value of a setting of the request, such as ("network", "100gbit")."""


@dataclass(frozen=True, kw_only=True)
class PredictedStep:
    """A worker's step in the long run."""

    breakdown: StepBreakdown
    sent: float
    """Bytes sent by a worker."""
    rate: float
    """Samples a second of all workers together."""
    path: Path = "groups"
    bound: Bound = "compute"
    besides: Bound = "compute"
    """What it would gain most from if computing stayed as it is; compute where nothing else helps."""
    link: Where = "network"
    """The link that bandwidth or latency refer to."""
    cipher: float = 0.0
    """Bytes a second that a process encrypts of what goes to servers on other hosts; 0 where nothing does."""

    @property
    def seconds(self) -> float:
        return self.breakdown.total


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The most that a worker holds at a time, in bytes; ``total`` is the sum of the fields before it."""

    parameters: float
    """With buffers, and parameters that are not trained."""
    gradients: float
    optimizer: float
    """The optimizer's state; 0 where servers keep it."""
    activations: float
    """The tensors of a step at their maximum: saved for backward, the mini-batch, gradients on their way."""
    workspace: float
    """What a CPU's allocator holds beyond the tensors; not measured on GPUs, where it is 0."""
    exchange: float
    """Messages and what a codec makes of them."""
    base: float
    """Of a process that has loaded torch, or of a GPU's context."""
    total: float
    server: float | None
    """The most that a server holds; None without servers."""
    device: str
    """Whose memory it is: a device, or a host that its workers share; of several, the one with the least to spare."""
    needed: float
    """On a GPU that of one worker, on a CPU that of all workers and servers of a host."""
    capacity: float | None
    """None where it is not known."""
    largest: int | None = None
    """Where it does not fit, the largest batch of a worker that does: 0 if none."""
    least: float | None = None
    """What a batch of 1 needs, where that does not fit either."""

    @property
    def fits(self) -> bool:
        return self.capacity is None or self.needed <= self.capacity


@dataclass(frozen=True, kw_only=True)
class PredictionRow:
    """One number of workers."""

    workers: int
    batch: int
    """Samples of the worker that has most of them."""
    samples: int
    """Samples of all workers in one step."""
    breakdown: StepBreakdown
    """Of a worker's step."""
    step: float
    """Seconds."""
    low: float
    """One step in ten is predicted to be shorter than this."""
    high: float
    """One in ten is predicted to be longer."""
    sent: float
    """Bytes sent by a worker in a step."""
    rate: float
    """Samples a second of all workers together."""
    speed_up: float
    """Against one worker that trains alone."""
    efficiency: float
    """``speed_up`` / ``workers``."""
    bound: Bound
    path: Path
    cost_million: float | None = None
    """The cost of a million samples, where there is a price."""
    finish: float | None = None
    """Seconds of the whole training, where its length is known."""
    cost: float | None = None
    """The cost of the whole training."""
    memory: Memory | None = None
    """None where the cost model does not predict it."""

    @property
    def fits(self) -> bool:
        """Whether its memory does, as far as that is known."""
        return self.memory is None or self.memory.fits


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Up to how many workers something holds."""

    workers: int
    """The largest number for which it does; 0 where it does for none."""
    searched: int
    """The largest number that was tried."""

    @property
    def open(self) -> bool:
        """Whether it still holds at the largest number that was tried."""
        return self.workers >= self.searched


@dataclass(frozen=True, kw_only=True)
class Wire:
    """A link that steps cross."""

    where: Where
    name: str
    """As the catalogue or the profile has it; empty where only its figures are known."""
    bandwidth: float
    """Bytes a second each way; of a described or measured host, what all workers share."""
    latency: float


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What keeps ``workers`` workers from being as many times as fast as one."""

    workers: int
    bound: Bound
    wire: Wire | None
    """The link, where the limit is its bandwidth or latency, or a server's link rather than the server's work."""
    without: float | None
    """Predicted speed-up of these workers if that link had unlimited bandwidth, or no latency."""
    cipher: float | None = None
    """Bytes a second that a process encrypts, where encryption is the limit."""


@dataclass(frozen=True, kw_only=True)
class Knee:
    """Where doubling the workers stops paying off."""

    reach: Reach
    """The largest number of workers whose doubling makes training at least 1.5 times as fast; 0: there is none."""
    bound: Bound
    """What keeps twice as many from being twice as fast."""
    where: Where
    dip: int | None
    """A smaller number at which doubling does not pay off either, though it does again later."""


@dataclass(frozen=True, kw_only=True)
class BandwidthNeed:
    """The bandwidth at which links lengthen a step by no more than a tenth."""

    workers: int
    wire: Wire
    needed: float | None
    """Bytes a second; None where no bandwidth is enough."""
    left: float
    """Seconds a step that the links would cost with unlimited bandwidth."""


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """A change of settings that was predicted and makes training faster."""

    change: tuple[Setting, ...]
    workers: int
    gain: float
    """Times as many samples a second at that number of workers."""
    speed_up: float
    """Of these workers against one, both with the change."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A change of settings that was predicted and fits the memory."""

    change: tuple[Setting, ...]
    workers: int
    needed: float
    """Bytes of memory with the change."""
    capacity: float
    rate: float
    """Samples a second of all these workers with the change."""


@dataclass(frozen=True, kw_only=True)
class GatheringCodec:
    """A codec whose messages cannot be summed on the way, so that every worker receives all of them."""

    codec: str
    slower: int | None
    """From this of the shown numbers of workers on, uncompressed gradients would be faster; None: for none."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What follows from the rows of one strategy."""

    well: Reach
    """Up to how many workers the efficiency is 80 % or more."""
    knee: Knee
    crossover: Reach
    """Up to how many workers computing takes at least as long as communication and waiting."""
    slower: Reach
    """Up to how many workers training is no faster than on one; 1 where two are faster."""
    limit: Limit | None
    """Of the slowest of the asked numbers that are slower than one worker, else of the largest; None for one worker."""
    bandwidth: BandwidthNeed | None
    """None for one worker, and where even perfect links leave more waiting than computing."""
    helps: tuple[Speedup, ...]
    gathering: GatheringCodec | None = None
    fits: tuple[Fit, ...] = ()
    """Changes for the numbers of workers that do not fit their memory."""


@dataclass(frozen=True, kw_only=True)
class StrategyPrediction:
    """One strategy, or one scheme of Paleo's."""

    strategy: str
    rows: tuple[PredictionRow, ...]
    findings: Findings | None = None
    """None for Paleo's model."""


@dataclass(frozen=True, kw_only=True)
class Basis:
    """What a prediction rests on, in words."""

    level: Level
    compute: str
    links: str
    interval: str
    precision: str = ""
    """The number format of a device of the catalogue; empty where compute times were measured."""
    faster_precision: tuple[str, float] | None = None
    """A narrower format that the device has, and how many times as fast one worker computes in it."""


@dataclass(frozen=True, kw_only=True)
class ModuleCost:
    """One module's part of a step."""

    module: str
    kinds: str
    """What its operators do, such as "convolution, norm"."""
    flops: float | None
    """Of forward and backward; None where Paleo's model prices the module."""
    bytes: float | None
    """Read and written, forward and backward."""
    forward: float
    backward: float
    share: float
    """Of all modules' forward and backward."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The answer to one request; its JSON document is this dataclass, field by field."""

    name: str
    """What is trained."""
    parameters: int
    scaling: Literal["weak", "strong"]
    batch: int
    """Samples a worker, or of all workers together in strong scaling."""
    cost_model: str
    basis: Basis
    series: tuple[StrategyPrediction, ...]
    modules: tuple[ModuleCost, ...] = ()
    unmeasured: Mapping[str, float] = field(default_factory=dict)
    """Operators that the calibration never measured, by name: their share of one worker's computing."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The request."""
    versions: Mapping[str, str] = field(default_factory=dict)
    made: str = ""
    """UTC, such as 2026-11-16T03:40:00Z."""
    schema: Literal[3] = 3
    kind: Literal["prediction"] = "prediction"

    @property
    def workers(self) -> tuple[int, ...]:
        """The numbers of workers, the same for every strategy."""
        return tuple(row.workers for row in self.series[0].rows)

    def fastest(self, place: int) -> StrategyPrediction:
        """The strategy with the highest rate in the row at this place."""
        return max(self.series, key=lambda series: series.rows[place].rate)
