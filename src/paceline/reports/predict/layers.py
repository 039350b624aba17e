"""Where the step of one worker goes, module by module."""

from collections.abc import Sequence

from paceline.reports.predict.table import aligned
from paceline.studies.predict.prediction import Layer
from paceline.units import show_bytes

TITLES = ("module", "operators", "GFLOP", "moved", "forward ms", "backward ms", "share")


def layer_lines(layers: Sequence[Layer]) -> list[str]:
    """A line a module in the order of forward, and the sum."""
    rows = [
        [
            layer.module,
            layer.kinds,
            f"{layer.flops / 1e9:,.3f}",
            show_bytes(layer.bytes),
            f"{1e3 * layer.forward:,.3f}",
            f"{1e3 * layer.backward:,.3f}",
            f"{100 * layer.share:.1f} %",
        ]
        for layer in (*layers, _sum(layers))
    ]
    return aligned(TITLES, rows, left=TITLES[:2])


def _sum(layers: Sequence[Layer]) -> Layer:
    return Layer(
        module="all",
        kinds="",
        flops=sum(layer.flops for layer in layers),
        bytes=sum(layer.bytes for layer in layers),
        forward=sum(layer.forward for layer in layers),
        backward=sum(layer.backward for layer in layers),
        share=sum(layer.share for layer in layers),
    )
