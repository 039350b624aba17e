"""Paleo's own table: steps of several numbers of workers, with every way to add gradients up beside each other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from paceline.costs.paleo.model import Paleo, PaleoLayer, PaleoStep, paleo_layers, paleo_step
from paceline.costs.trace.trace import Trace
from paceline.studies.predict.question import Scaling, check_counts

VARIANTS: Mapping[str, str] = MappingProxyType(
    {"inception-v3": "inception-v3:version=paleo", "vgg16": "vgg16:dense=convolution"}
)
"""The networks that come with Paleo and are there written another way than usual."""


def as_paleo(model: str) -> str:
    """A model's spec, in Paleo's own version where it has one and no settings ask for another."""
    return VARIANTS.get(model, model)


@dataclass(frozen=True, kw_only=True)
class PaleoAnswer:
    """What Paleo's model says."""

    name: str
    parameters: int
    scaling: Scaling
    batch: int
    """Samples a worker, or of all workers together in strong scaling."""
    model: Paleo
    rows: tuple[PaleoStep, ...]
    layers: tuple[PaleoLayer, ...] = ()


def predict_by_paleo(
    traced: Callable[[int], Trace],
    model: Paleo,
    *,
    workers: Sequence[int],
    batch: int,
    scaling: Scaling = "weak",
    layers: bool = False,
) -> PaleoAnswer:
    """Price every number of workers; ``traced`` gives the step on so many samples.

    In strong scaling each worker has its part of the batch, rounded up. With ``layers``, also where the time of the
    first number of workers goes.
    """
    check_counts(workers)
    shares = {count: -(-batch // count) if scaling == "strong" else batch for count in workers}
    traces = {share: traced(share) for share in set(shares.values())}
    first = traces[shares[workers[0]]]
    return PaleoAnswer(
        name=first.name,
        parameters=first.size,
        scaling=scaling,
        batch=batch,
        model=model,
        rows=tuple(paleo_step(model, traces[shares[count]], count) for count in workers),
        layers=tuple(paleo_layers(model, first)) if layers else (),
    )
