"""How much of a data sheet's peak an operator gets, by rule of thumb.

Large matrix products reach 0.88 of a V100's plain peak, and 0.74 to 0.76 of the peak of its and an A100's matrix units,
in the measurements of github.com/mli/transformers-benchmarks; Paleo (Qi et al., ICLR 2017) takes 0.62 for a K40;
streaming kernels reach about 0.8 of a GPU's memory bandwidth and 0.7 of a CPU's. The rest is judgement, checked against
NVIDIA's published training rates of ResNet-50. All of it is what a calibration replaces.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from paceline.costs.trace.operator import Convolution, Kind, Product, Recurrence, Shape


@dataclass(frozen=True, slots=True)
class Share:
    """Of what the data sheet promises, at large sizes: each above 0 and at most 1."""

    compute: float
    """Of the plain peak."""
    memory: float
    """Of the memory bandwidth."""
    matrix: float = 1.0
    """Of the peak of matrix units, for kinds that use them: harder to keep busy."""


GPU: Mapping[Kind, Share] = {
    "convolution": Share(0.75, 0.8, 0.5),
    "product": Share(0.88, 0.8, 0.75),
    "attention": Share(0.5, 0.7, 0.4),
    "recurrence": Share(0.5, 0.7, 0.4),
    "norm": Share(0.3, 0.6),
    "pool": Share(0.3, 0.5),
    "elementwise": Share(0.3, 0.8),
    "reduction": Share(0.3, 0.6),
    "embedding": Share(0.3, 0.4),
    "copy": Share(0.3, 0.8),
    "optimizer": Share(0.3, 0.8),
}

CPU: Mapping[Kind, Share] = {
    "convolution": Share(0.6, 0.7),
    "product": Share(0.75, 0.7),
    "attention": Share(0.35, 0.6),
    "recurrence": Share(0.5, 0.6),
    "norm": Share(0.1, 0.5),
    "pool": Share(0.05, 0.4),
    "elementwise": Share(0.1, 0.7),
    "reduction": Share(0.1, 0.5),
    "embedding": Share(0.1, 0.3),
    "copy": Share(0.1, 0.7),
    "optimizer": Share(0.1, 0.7),
}

SHARES: Mapping[Literal["gpu", "cpu"], Mapping[Kind, Share]] = {"gpu": GPU, "cpu": CPU}

_HALF_WIDTH = 8
"""Columns of a product that get half of what many columns get: tiles are about so wide, and padded."""
_HALF_DEPTH = 32
"""Likewise terms of each sum: loading and storing a tile takes as long as so many."""


def fullness(shape: Shape) -> float:
    """What is left of the share because a product is narrow or shallow: 1 for a large one, little if depthwise."""
    match shape:
        case Product():
            width, depth = min(shape.m, shape.n), shape.k
        case Convolution():
            width = shape.outputs // shape.groups
            depth = shape.inputs // shape.groups * shape.kernel_height * shape.kernel_width
        case Recurrence():
            width, depth = 4 * shape.hidden, shape.hidden
        case _:
            return 1.0
    width, depth = max(width, 1), max(depth, 1)  # an empty product takes its overhead
    return width / (width + _HALF_WIDTH) * depth / (depth + _HALF_DEPTH)


def fits_matrix_units(shape: Shape) -> bool:
    """Whether a product is wide enough for matrix units; depthwise convolutions are not."""
    match shape:
        case Product():
            return min(shape.m, shape.n, shape.k) >= _HALF_WIDTH
        case Convolution():
            return shape.outputs // shape.groups >= _HALF_WIDTH
        case _:
            return True
