"""Paleo's model of a training step: forward + backward + apply + communication, one after the other."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from paceline.clusters.catalogue import DeviceSheet
from paceline.costs.paleo.work import LayerWork, PaleoWork, layer_work
from paceline.costs.trace.operator import Convolution, Operator
from paceline.costs.trace.trace import Trace
from paceline.errors import UsageError

NUMBER = 4
"""Bytes of a number; Paleo knows no other."""
UNIT = 2**30 / 1e9
"""Paleo takes the GB/s of a memory for GiB/s; those of a network are decimal."""


@dataclass(frozen=True, kw_only=True)
class Paleo:
    """A device and a network, each at one platform percentage of its peak."""

    device: DeviceSheet
    bandwidth: float
    """The network's, bytes a second."""
    compute: float = 1.0
    """Part of the device's peak, operations and memory alike, that is reached; higher is faster."""
    network: float = 1.0
    """Part of the network's peak that is reached."""

    def __post_init__(self) -> None:
        for setting, share in (("ppp-comp", self.compute), ("ppp-comm", self.network)):
            if not 0 < share <= 1:
                raise UsageError(
                    f"{setting} {share:g} is out of range: a part of the peak is above 0 and at most 1, such as 0.62"
                )

    def seconds(self, work: PaleoWork) -> float:
        """How long the device needs: operations, then memory."""
        return self._at_peak(work) / self.compute

    def apply(self, size: int) -> float:
        """Two operations and three passes a parameter, at the device's peak."""
        return self._at_peak(PaleoWork(2 * size, 3 * size))

    def exchange(self, scheme: str, workers: int, size: int) -> float:
        """How long it takes to add up the gradients of ``size`` parameters."""
        return SCHEMES[scheme](workers) * NUMBER * size / self.bandwidth / self.network

    def _at_peak(self, work: PaleoWork) -> float:
        return work.flops / self.device.flops + work.numbers * NUMBER / (self.device.bandwidth * UNIT)


def _height(workers: int) -> int:
    return (workers - 1).bit_length()


SCHEMES: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {
        "one-to-all": lambda workers: 2 * (workers - 1),
        "tree": lambda workers: 2 * _height(workers),
        "butterfly": _height,
    }
)
"""Ways to add gradients up, and how many times all of them cross a link, by the number of workers."""


@dataclass(frozen=True, kw_only=True)
class PaleoLayer:
    """A row of Paleo's per-layer table."""

    layer: str
    kind: str
    forward: float
    backward: float


@dataclass(frozen=True, kw_only=True)
class PaleoStep:
    """A row of Paleo's table, in seconds."""

    workers: int
    batch: int
    """Samples a worker."""
    forward: float
    backward: float
    apply: float
    communication: Mapping[str, float]
    """By scheme."""

    @property
    def compute(self) -> float:
        """Forward, backward and apply."""
        return self.forward + self.backward + self.apply

    def step(self, scheme: str) -> float:
        """All of it: nothing overlaps."""
        return self.compute + self.communication[scheme]


def paleo_step(model: Paleo, trace: Trace, workers: int) -> PaleoStep:
    """One step of so many workers, each on the traced batch."""
    layers = list(_layers(trace))
    return PaleoStep(
        workers=workers,
        batch=trace.samples,
        forward=sum(model.seconds(layer.forward) for layer in layers),
        backward=sum(model.seconds(layer.backward) for layer in layers),
        apply=model.apply(trace.size),
        communication={scheme: model.exchange(scheme, workers, trace.size) for scheme in SCHEMES},
    )


def paleo_layers(model: Paleo, trace: Trace) -> list[PaleoLayer]:
    """The layers in order; those that cost nothing are left out."""
    return [
        PaleoLayer(
            layer=layer.layer,
            kind=layer.kind,
            forward=model.seconds(layer.forward),
            backward=model.seconds(layer.backward),
        )
        for layer in _layers(trace)
    ]


def _layers(trace: Trace) -> Iterable[LayerWork]:
    firsts = {operator.module for operator in trace.backward if _takes_data(operator)}
    works = (layer_work(operator, operator.module in firsts) for operator in trace.forward)
    return (work for work in works if work is not None)


def _takes_data(operator: Operator) -> bool:
    """Whether a backward is that of a convolution of the data itself."""
    return isinstance(operator.shape, Convolution) and not operator.shape.data


VARIANTS: Mapping[str, str] = MappingProxyType(
    {"inception-v3": "inception-v3:version=paleo", "vgg16": "vgg16:dense=convolution"}
)
"""The networks that come with Paleo and are there written another way than usual."""


def as_paleo(model: str) -> str:
    """A model's spec, in Paleo's own version where it has one and no settings ask for another."""
    return VARIANTS.get(model, model)
