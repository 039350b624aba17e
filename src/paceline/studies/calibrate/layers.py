"""Every layer of ``torch.nn`` on its own, so that each operator that one consists of is measured.

Random networks are made of common layers in many shapes; these are the others, in a few shapes each.
"""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from paceline.jobs.batches import Batch
from paceline.jobs.job import Traceable
from paceline.jobs.optimizers import Sgd
from paceline.studies.calibrate.networks import log_uniform

FEWEST = 2**9

LayerCall = Callable[[Any, Tensor], Any]

_MADE: Mapping[str, Callable[[int], Any]] = {
    "c": lambda c: c,
    "2c": lambda c: 2 * c,
    "encoder layer": lambda c: nn.TransformerEncoderLayer(c, 4, c, activation="gelu"),
    "decoder layer": lambda c: nn.TransformerDecoderLayer(c, 4, c),
}
"""What a word among a constructor's arguments stands for, by the channels of the input."""

_CALLED: Mapping[str, Callable[[Tensor], Any]] = {
    "x": lambda x: x,
    "same": lambda x: x.detach(),
    "classes": lambda x: torch.zeros_like(x[:, 0], dtype=torch.long),
    "labels": lambda x: torch.zeros_like(x, dtype=torch.long),
    "ones": torch.ones_like,
    "zeros": torch.zeros_like,
    "one each": lambda x: torch.ones_like(x[:, 0]),
    "8x8": lambda x: x[..., :8, :8],
    "first 4": lambda x: x[..., :4],
    "words": lambda x: torch.zeros(x.shape[:2], dtype=torch.long),
    "no mask": lambda _: None,
    "no weights": lambda _: False,
}
"""What a word of a call stands for, by the input."""


class LayerCase(msgspec.Struct, forbid_unknown_fields=True):
    """A row of ``layers.toml``, which says what its fields are."""

    args: list[Any] = []
    named: dict[str, Any] = msgspec.field(default={}, name="with")
    sides: int = 2
    call: tuple[str, ...] = ("x",)
    most: int = 20
    pooled: bool = False

    def shape(self, random: Random) -> tuple[int, ...]:
        elements = log_uniform(random, FEWEST, 2**self.most)
        channels = 8 * log_uniform(random, 1, 16)
        if self.sides < 1:
            length = (log_uniform(random, 4, 64),) if self.sides else ()
            return max(2, elements // channels // prod(length)), *length, channels
        side = 2 * max(4, min(round((elements / channels / 2) ** (1 / self.sides) / 2), 64))
        return max(1, elements // channels // side**self.sides), channels, *[side] * self.sides

    def make(self, name: str, channels: int) -> nn.Module:
        args = [_MADE[one](channels) if isinstance(one, str) else one for one in self.args]
        layer: nn.Module = getattr(nn, name.partition(" ")[0])(*args, **self.named)
        pool = getattr(nn, f"MaxPool{self.sides}d") if self.pooled else None
        return nn.ModuleList([pool(2, return_indices=True), layer]) if pool else layer

    def run(self, layer: Any, x: Tensor) -> Any:
        if self.pooled:
            return layer[1](*layer[0](x))
        result = layer(*(_CALLED[one](x) for one in self.call))
        return result + x.mean() if self.call == ("words",) else result


class SingleLayer(nn.Module):
    """A layer whose input needs a gradient, as inside a network."""

    def __init__(self, layer: nn.Module, call: LayerCall) -> None:
        super().__init__()
        self.layer, self.call = layer, call
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs: Tensor) -> Any:
        return self.call(self.layer, inputs * self.scale)


def draw_layer(seed: int, number: int) -> tuple[Traceable, int]:
    """The next layer of the table, which begins again behind its last, with samples, in a shape that the seed draws."""
    name, row = list(LAYERS.items())[number % len(LAYERS)]
    samples, *shape = row.shape(Random(seed))  # noqa: S311
    channels = shape[-1] if row.sides == -1 else shape[0]

    def batch(samples: int) -> Batch:
        return torch.rand(samples, *shape), torch.zeros(samples)

    def model() -> nn.Module:
        return SingleLayer(row.make(name, channels), row.run)

    def loss(outputs: Any, _: Tensor) -> Tensor:
        found: Tensor = outputs[0] if isinstance(outputs, tuple | list) else outputs
        return found if found.dim() == 0 else found.mean()

    return Traceable(name=name, model=model, loss=loss, batch=batch, optimizer=Sgd()), samples


def _read() -> Iterator[tuple[str, LayerCase]]:
    table = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=dict[str, LayerCase])
    for names, row in table.items():
        for name in names.split(", "):
            if name.endswith("*"):
                for sides in (1, 2, 3):
                    yield f"{name[:-1]}{sides}d", msgspec.structs.replace(row, sides=sides)
            else:
                yield name, row


LAYERS: Mapping[str, LayerCase] = dict(_read())
"""By its class in ``torch.nn``, with a word more where a class has several rows."""
