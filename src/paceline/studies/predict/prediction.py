"""A prediction as it is kept: rows by worker count, what follows from them, and what they rest on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

SCHEMA = 2

Level = Literal["catalogue", "calibrated", "profiled"]
"""How much is known: a data sheet; a machine that was measured; the very job's step, measured on one worker."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The most that a worker holds at a time, in bytes; ``total`` is the sum of what stands before it."""

    parameters: float
    """With buffers, and parameters that are not trained."""
    gradients: float
    optimizer: float
    """What the optimizer keeps from step to step; 0 where servers keep it."""
    activations: float
    """The tensors of a step where they are most: what is saved for backward, the mini-batch, gradients on their way."""
    workspace: float
    """What a CPU's allocator holds beyond the tensors; on a GPU nobody measured it, and it is 0."""
    exchange: float
    """Messages and what a codec makes of them."""
    base: float
    """Of a process that has loaded torch, or of a GPU's context."""
    total: float
    server: float | None
    """The most that a server holds; None where there are none."""
    device: str
    """Whose memory it is: a device, or the host that its workers share; of several, the one with the least to spare."""
    needed: float
    """Of it: that of one worker on a GPU, that of all workers and servers of a host on a CPU."""
    capacity: float | None
    """What it has; None where nobody says."""
    largest: int | None = None
    """Where it does not fit, the largest batch of a worker that does: 0 if none."""
    least: float | None = None
    """What would be needed with a batch of 1, where that does not fit either."""

    @property
    def fits(self) -> bool:
        """Whether there is enough, as far as anybody knows."""
        return self.capacity is None or self.needed <= self.capacity


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of workers; times are seconds of a worker's step."""

    workers: int
    batch: int
    """Samples of the worker that has most of them."""
    data: float
    forward: float
    backward: float
    apply: float
    communicate: float
    """Transfers while nothing else goes on."""
    hidden: float
    """Transfers behind backward."""
    wait: float
    """For slower workers, or for the server."""
    step: float
    """All of it, ``hidden`` apart."""
    low: float
    """One step in ten is predicted to be shorter than this."""
    high: float
    """One in ten is predicted to be longer."""
    sent: float
    """Bytes of a worker."""
    rate: float
    """Samples a second of all workers together."""
    speed_up: float
    """Against one worker who trains alone."""
    efficiency: float
    """The part of ``workers`` times as fast that is reached."""
    bound: str
    """What a step would gain most from if it were better: compute, bandwidth, latency, encryption, codec, server,
    straggler."""
    path: str
    """How the step was got: by closed forms or by events."""
    cost_million: float | None = None
    """What a million samples cost, where there is a price."""
    finish: float | None = None
    """Seconds of the whole training, where its length is known."""
    cost: float | None = None
    """What the whole training costs."""
    memory: Memory | None = None
    """None where the cost model knows nothing of memory."""

    @property
    def fits(self) -> bool:
        """Whether its memory does, as far as anybody knows."""
        return self.memory is None or self.memory.fits

    @property
    def communication(self) -> float:
        """All transfers of a step, hidden or not."""
        return self.communicate + self.hidden

    @property
    def compute(self) -> float:
        """Forward, backward and apply."""
        return self.forward + self.backward + self.apply


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Up to how many workers something holds."""

    workers: int
    """The largest number for which it does; 0 where it does for none."""
    searched: int
    """How far was looked."""

    @property
    def open(self) -> bool:
        """Whether it still holds as far as was looked."""
        return self.workers >= self.searched


@dataclass(frozen=True, kw_only=True)
class Wire:
    """A link that steps cross."""

    where: Literal["network", "inside"]
    """Between hosts, or between the workers of one host."""
    name: str
    """As the catalogue or the profile has it; empty where only its figures are known."""
    bandwidth: float
    """Bytes a second each way, as 'paceline networks' has it; of a described or measured host, what all share."""
    latency: float


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What keeps so many workers from being as many times as fast as one."""

    workers: int
    bound: str
    """In the words of a row's."""
    wire: Wire | None
    """The link, where that is its bandwidth or its latency; or the server's, where it is that rather than its work."""
    without: float | None
    """Predicted speed-up of these workers if that link had unlimited bandwidth, or no latency; None: no link."""
    cipher: float | None = None
    """Bytes a second that a process encrypts, where encryption is the limit."""


@dataclass(frozen=True, kw_only=True)
class Knee:
    """Where doubling the workers stops paying off."""

    reach: Reach
    """The largest number of workers whose doubling makes training at least 1.5 times as fast; 0: there is none."""
    bound: str
    """What keeps twice as many from being twice as fast, in the words of a row's."""
    where: Literal["network", "inside"]
    """On which link, where that is bandwidth or latency."""
    dip: int | None
    """A smaller number at which doubling does not pay either, though it does again later; None: there is none."""


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """What the link in use would have to carry for the links to cost a step no more than a tenth."""

    workers: int
    wire: Wire
    needed: float | None
    """Bytes a second; None where no bandwidth would do."""
    left: float
    """Seconds a step that the links would cost with unlimited bandwidth."""


@dataclass(frozen=True, kw_only=True)
class Help:
    """A change that was predicted and makes it faster."""

    what: str
    """As it is typed: "--network 100gbit", "--servers 2"."""
    workers: int
    gain: float
    """Times as many samples a second at that number of workers."""
    speed_up: float
    """Of these workers against one, both with the change."""


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """A change that was predicted and makes it fit."""

    what: str
    """As it is typed: "--batch-size 4", "--device a100"."""
    workers: int
    needed: float
    """Bytes of memory with the change."""
    capacity: float
    rate: float
    """Samples a second of all these workers with the change."""


@dataclass(frozen=True, kw_only=True)
class Gathering:
    """A codec whose messages do not add up on the way, so that everybody gets everybody's."""

    codec: str
    slower: int | None
    """From this of the shown numbers of workers on, gradients as they are would be faster; None: for none."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What follows from the rows."""

    well: Reach
    """The largest number of workers that, like all smaller ones, reaches 80 % efficiency."""
    knee: Knee
    crossover: Reach
    """Up to how many workers computing takes at least as long as communication and waiting."""
    slower: Reach
    """The largest number of workers that, like all smaller ones, is no faster than one; 1 where two are faster."""
    limit: Limit | None
    """Of the slowest of the asked numbers that are slower than one worker, else of the largest; None for one worker."""
    bandwidth: Bandwidth | None
    """None for one worker, who needs no network, and where even perfect links leave more waiting than computing."""
    helps: tuple[Help, ...]
    gathering: Gathering | None = None
    fittings: tuple[Fitting, ...] = ()
    """What would make the numbers of workers that do not fit their memory fit."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One strategy."""

    strategy: str
    rows: tuple[Row, ...]
    findings: Findings


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a prediction rests on, for people to judge it by."""

    level: Level
    compute: str
    """Where the compute times are from, in words."""
    links: str
    """Where the links' figures are from."""
    interval: str
    """What the interval rests on."""
    precision: str = ""
    """In which number format a device of the catalogue computes, and what another one would do."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One module's part of a step."""

    module: str
    kinds: str
    """What its operators do, such as "convolution, norm"."""
    flops: float
    """Of forward and backward together."""
    bytes: float
    """Read and written, forward and backward."""
    forward: float
    backward: float
    share: float
    """Of all layers' forward and backward."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Everything that was predicted at once."""

    name: str
    """What is trained."""
    parameters: int
    scaling: Literal["weak", "strong"]
    batch: int
    """Samples a worker, or of all workers together in strong scaling."""
    cost_model: str
    known: Known
    series: tuple[Series, ...]
    layers: tuple[Layer, ...] = ()
    unmeasured: Mapping[str, float] = field(default_factory=dict)
    """Operators that the calibration never measured, by name: their share of one worker's computing."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The question as it was asked."""
    versions: Mapping[str, str] = field(default_factory=dict)
    made: str = ""
    """UTC, such as 2026-11-16T03:40:00Z."""

    @property
    def workers(self) -> tuple[int, ...]:
        """The numbers of workers, the same for every strategy."""
        return tuple(row.workers for row in self.series[0].rows)

    def fastest(self, place: int) -> Series:
        """The strategy that is fastest at one of the worker counts, by its place among them."""
        return max(self.series, key=lambda series: series.rows[place].rate)

    def to_json(self) -> dict[str, Any]:
        """A plain document; ``from_json`` reads it back."""
        return {"schema": SCHEMA, "kind": "prediction", **asdict(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` wrote; a ValueError says that it is something else."""
        if document.get("kind") != "prediction" or document.get("schema") != SCHEMA:
            raise ValueError(f"not a prediction of schema {SCHEMA}")
        values = {one.name: document[one.name] for one in fields(cls)}
        values["known"] = Known(**values["known"])
        values["series"] = tuple(map(_series, values["series"]))
        values["layers"] = tuple(Layer(**layer) for layer in values["layers"])
        return cls(**values)


def _series(document: Mapping[str, Any]) -> Series:
    rows = tuple(Row(**{**row, "memory": _memory(row.get("memory"))}) for row in document["rows"])
    return Series(strategy=document["strategy"], rows=rows, findings=_findings(document["findings"]))


def _findings(document: Mapping[str, Any]) -> Findings:
    knee, limit, bandwidth = document["knee"], document["limit"], document["bandwidth"]
    gathering = document["gathering"]
    return Findings(
        well=Reach(**document["well"]),
        knee=Knee(**{**knee, "reach": Reach(**knee["reach"])}),
        crossover=Reach(**document["crossover"]),
        slower=Reach(**document["slower"]),
        limit=None if limit is None else Limit(**{**limit, "wire": _wire(limit["wire"])}),
        bandwidth=None
        if bandwidth is None
        else Bandwidth(**{**bandwidth, "wire": Wire(**bandwidth["wire"])}),
        helps=tuple(Help(**one) for one in document["helps"]),
        gathering=None if gathering is None else Gathering(**gathering),
        fittings=tuple(Fitting(**one) for one in document.get("fittings", ())),
    )


def _memory(document: Mapping[str, Any] | None) -> Memory | None:
    return None if document is None else Memory(**document)


def _wire(document: Mapping[str, Any] | None) -> Wire | None:
    return None if document is None else Wire(**document)
