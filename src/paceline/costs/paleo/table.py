"""Paleo's own table: steps of several numbers of workers, with every way to add gradients up beside each other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal

from paceline.costs.paleo.model import Paleo, PaleoLayer, PaleoStep, paleo_layers, paleo_step
from paceline.costs.trace.trace import Trace

VARIANTS: Mapping[str, str] = MappingProxyType(
    {"inception-v3": "inception-v3:version=paleo", "vgg16": "vgg16:dense=convolution"}
)
"""The networks that come with Paleo and are there written another way than usual."""


def as_paleo(model: str) -> str:
    """A model's spec, in Paleo's own version where it has one and no settings ask for another."""
    return VARIANTS.get(model, model)


@dataclass(frozen=True, kw_only=True)
class PaleoTable:
    """What Paleo's model says."""

    name: str
    parameters: int
    scaling: Literal["weak", "strong"]
    batch: int
    """Samples a worker, or of all workers together in strong scaling."""
    model: Paleo
    rows: tuple[PaleoStep, ...]
    layers: tuple[PaleoLayer, ...] = ()
    """Where the time of the first row goes, where that is asked."""

    def total(self, row: PaleoStep) -> int:
        """Samples of all workers in one step; where the batch is divided, not all have as many as the largest share."""
        return self.batch if self.scaling == "strong" else row.workers * row.batch

    def to_json(self) -> dict[str, Any]:
        """A plain document, in SI units."""
        rows = [{**asdict(row), "compute": row.compute, "total": self.total(row)} for row in self.rows]
        return {
            "schema": 1,
            "cost_model": "paleo",
            "name": self.name,
            "parameters": self.parameters,
            "scaling": self.scaling,
            "batch": self.batch,
            "device": self.model.device.name,
            "bandwidth": self.model.bandwidth,
            "ppp_comp": self.model.compute,
            "ppp_comm": self.model.network,
            "rows": rows,
            "layers": [asdict(layer) for layer in self.layers],
        }


def paleo_table(
    traced: Callable[[int], Trace],
    model: Paleo,
    *,
    workers: Sequence[int],
    batch: int,
    scaling: Literal["weak", "strong"] = "weak",
    layers: bool = False,
) -> PaleoTable:
    """Price every number of workers; ``traced`` gives the step on so many samples.

    In strong scaling each worker has its part of the batch, rounded up.
    """
    shares = {count: -(-batch // count) if scaling == "strong" else batch for count in workers}
    traces = {share: traced(share) for share in set(shares.values())}
    first = traces[shares[workers[0]]]
    return PaleoTable(
        name=first.name,
        parameters=first.size,
        scaling=scaling,
        batch=batch,
        model=model,
        rows=tuple(paleo_step(model, traces[shares[count]], count) for count in workers),
        layers=tuple(paleo_layers(model, first)) if layers else (),
    )
