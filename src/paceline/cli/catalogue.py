"""The lists of devices and networks, with their figures and where those are from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from paceline.cli.lists import AsJson
from paceline.clusters.catalogue import DeviceSheet, NetworkSheet, all_devices, all_networks

FORMATS = ("tf32", "fp16", "bf16")

_WIDTH = 110
"""Characters a line where nobody says how wide the page is; a narrow terminal folds the titles."""


def devices(*, as_json: AsJson = False) -> None:
    """List the devices of the catalogue, with their figures and where those are from."""
    if as_json:
        return _print_json(all_devices())
    peaks = [f"{name}\nTFLOP/s" for name in ("fp32", *FORMATS)]
    rows = [
        [
            sheet.name,
            _title(sheet),
            *map(_tera, _peaks(sheet)),
            f"{sheet.bandwidth / 1e9:,.4g}",
            _gibi(sheet.memory),
        ]
        for sheet in all_devices().values()
    ]
    _print_table(["device", "", *peaks, "memory\nGB/s", "\nGiB"], rows, list(all_devices().values()))
    return None


def networks(*, as_json: AsJson = False) -> None:
    """List the networks of the catalogue, with their figures and where those are from."""
    if as_json:
        return _print_json(all_networks())
    rows = [
        [
            sheet.name,
            f"{sheet.title}{', inside a host' if sheet.inside else ''}",
            f"{sheet.bandwidth * 8 / 1e9:,.4g}",
            f"{sheet.latency * 1e6:.3g}",
        ]
        for sheet in all_networks().values()
    ]
    _print_table(["network", "", "each way\nGbit/s", "latency\nus"], rows, list(all_networks().values()))
    return None


def _title(sheet: DeviceSheet) -> str:
    return f"{sheet.title}, {sheet.cores} cores" if sheet.kind == "cpu" else sheet.title


def _peaks(sheet: DeviceSheet) -> list[float]:
    return [sheet.flops, *(sheet.tensor_flops.get(name, 0) for name in FORMATS)]


def _tera(peak: float) -> str:
    return f"{peak / 1e12:.4g}" if peak else "-"


def _gibi(size: float) -> str:
    return f"{size / 2**30:.4g}" if size else "-"


def _print_json(sheets: Mapping[str, DeviceSheet] | Mapping[str, NetworkSheet]) -> None:
    entries = {name: asdict(sheet) for name, sheet in sheets.items()}
    print(json.dumps({"schema": 1, "entries": entries}, indent=2))  # noqa: T201


def _print_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    sheets: Sequence[DeviceSheet | NetworkSheet],
) -> None:
    """The rows, and below them the sources that they point to."""
    sources: dict[str, int] = {}
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, title in enumerate([*titles, "from"]):
        grid.add_column(title, justify="left" if index < 2 else "right", no_wrap=index != 1, vertical="top")
    for row, sheet in zip(rows, sheets, strict=True):
        source = f"{sheet.source} ({sheet.date})"
        grid.add_row(*row, f"{sources.setdefault(source, len(sources) + 1)}")
    below = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    below.add_column(justify="right")
    for source, number in sources.items():
        below.add_row(f"{number}", source)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH)
    console.print(grid)
    console.print()
    console.print(below)
