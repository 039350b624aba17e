"""Paleo's table and its layers, as text."""

from paceline.costs.paleo.model import SCHEMES
from paceline.costs.paleo.table import PaleoTable
from paceline.reports.predict.table import aligned
from paceline.units import show_rate


def paleo_lines(table: PaleoTable) -> list[str]:
    """The answer, the table in milliseconds and what it rests on; then the layers, where they were asked for."""
    titles = ["workers", "batch", "forward", "backward", "apply", "compute", *SCHEMES]
    rows = [
        [
            f"{row.workers:,}",
            f"{row.batch:,}",
            *_ms(row.forward, row.backward, row.apply, row.compute, *row.communication.values()),
        ]
        for row in table.rows
    ]
    lines = [_answer(table), "", *aligned(titles, rows), "", _basis(table)]
    return [*lines, "", *_layers(table)] if table.layers else lines


def _answer(table: PaleoTable) -> str:
    """Which row has the most samples a second, and by which way."""
    best = max(
        ((row, scheme) for row in table.rows for scheme in SCHEMES),
        key=lambda one: table.total(one[0]) / one[0].step(one[1]),
    )
    row, scheme = best
    many = "worker" if row.workers == 1 else "workers"
    way = "" if row.workers == 1 else f" by {scheme}"
    return (
        f"Paleo's model: fastest with {row.workers:,} {many}{way}, "
        f"{table.total(row) / row.step(scheme):,.0f} samples/s; times in ms, nothing overlaps."
    )


def _basis(table: PaleoTable) -> str:
    model = table.model
    return (
        f"{table.name}, {table.parameters:,} parameters; {table.scaling} scaling; {model.device.title} at "
        f"{model.compute:g} of its peak, links of {show_rate(model.bandwidth)} at {model.network:g}."
    )


def _layers(table: PaleoTable) -> list[str]:
    total = sum(layer.forward + layer.backward for layer in table.layers)
    rows = [
        [
            layer.layer,
            layer.kind,
            *_ms(layer.forward, layer.backward),
            f"{100 * (layer.forward + layer.backward) / total:.1f} %",
        ]
        for layer in table.layers
    ]
    titles = ["layer", "kind", "forward ms", "backward ms", "share"]
    return aligned(titles, rows, left=("layer", "kind"))


def _ms(*seconds: float) -> list[str]:
    return [f"{1e3 * one:,.3f}" for one in seconds]
