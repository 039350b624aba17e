"""Lists of what there is to choose from: plug-ins with their settings, devices and networks with their figures."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from paceline import jobs, specs
from paceline.clusters.catalogue import DeviceSheet, NetworkSheet, all_devices, all_networks
from paceline.codecs import CODECS
from paceline.jobs.models import FIGURES
from paceline.strategies import STRATEGIES

AsJson = Annotated[bool, Parameter(name="--json", negative=(), help="One JSON document instead of a table.")]


Facts = Mapping[str, Any]
"""What else is known of an entry, by the name that it has in JSON."""


def _no_facts(name: str) -> Facts:  # noqa: ARG001
    return {}


def _lister(
    table: Mapping[str, str], help_line: str, own: str, facts: Callable[[str], Facts] = _no_facts
) -> Callable[..., None]:
    def show(*, as_json: AsJson = False) -> None:
        described = {name: specs.describe(path) for name, path in table.items()}
        known = {name: facts(name) for name in table}
        if as_json:
            entries = {
                name: {"help": line, **known[name], "settings": [vars(setting) for setting in settings]}
                for name, (line, settings) in described.items()
            }
            return _print_json(entries)
        _print_table(described, known)
        print(f"\nYour own by import path: {own}")  # noqa: T201
        return None

    show.__doc__ = help_line
    return show


Described = Mapping[str, tuple[str, list[specs.Setting]]]


def _print_json(entries: Mapping[str, Any]) -> None:
    print(json.dumps({"schema": 1, "entries": entries}, indent=2))  # noqa: T201


def _print_table(described: Described, known: Mapping[str, Facts]) -> None:
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, (line, settings) in described.items():
        grid.add_row(f"[bold]{name}[/bold]", line)
        if known[name]:
            grid.add_row("", f"[dim]{_sentence(known[name])}[/dim]")
        for setting in settings:
            grid.add_row(f"  {setting.name}={setting.default}", setting.help)
    Console(highlight=False).print(grid)


def _model_facts(name: str) -> Facts:
    figures = FIGURES[name]
    return {
        "input": figures.input,
        "classes": figures.classes,
        "parameters": figures.parameters,
        "multiply_adds": figures.multiply_adds,
    }


def _short(count: int) -> str:
    """With three figures: "4.09 G"."""
    for prefix, scale in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= scale:
            return f"{count / scale:.3g} {prefix}"
    return str(count)


def _sentence(model: Facts) -> str:
    fed = model["input"] if "x" in model["input"] else f"{model['input']} tokens"
    return (
        f"{model['parameters']:,} parameters; {_short(model['multiply_adds'])} multiply-adds a sample of {fed}, "
        f"{model['classes']:,} classes"
    )


codecs = _lister(
    CODECS, "List what can go on a wire instead of whole gradients.", "--codec my_file.py:MyCodec:level=2"
)
strategies = _lister(
    STRATEGIES,
    "List how workers can agree, with each one's settings.",
    "--strategy my_file.py:MyStrategy:period=4 (docs/add-a-strategy.md)",
)
models = _lister(
    jobs.MODELS,
    "List the models that ship.",
    "--model my_file.py:MyNet:width=64 (docs/jobs.md)",
    _model_facts,
)
data = _lister(
    jobs.DATA,
    "List the data sets that ship or are found in a folder.",
    "--data my_file.py:MyData (docs/jobs.md)",
)
optimizers = _lister(jobs.OPTIMIZERS, "List the optimizers.", "--optimizer my_file.py:MyOptimizer:lr=0.1")
schedules = _lister(jobs.SCHEDULES, "List the learning-rate schedules.", "--schedule my_file.py:MySchedule")


FORMATS = ("tf32", "fp16", "bf16")

_WIDTH = 110
"""Characters a line where the output is no terminal; a narrow terminal folds the titles."""


def devices(*, as_json: AsJson = False) -> None:
    """List the devices of the catalogue, with their figures and where those are from."""
    if as_json:
        return _print_json(_documents(all_devices()))
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
    _print_sheets(["device", "", *peaks, "memory\nGB/s", "\nGiB"], rows, list(all_devices().values()))
    return None


def networks(*, as_json: AsJson = False) -> None:
    """List the networks of the catalogue, with their figures and where those are from."""
    if as_json:
        return _print_json(_documents(all_networks()))
    rows = [
        [
            sheet.name,
            f"{sheet.title}{', inside a host' if sheet.inside else ''}",
            f"{sheet.bandwidth * 8 / 1e9:,.4g}",
            f"{sheet.latency * 1e6:.3g}",
        ]
        for sheet in all_networks().values()
    ]
    _print_sheets(["network", "", "each way\nGbit/s", "latency\nus"], rows, list(all_networks().values()))
    return None


def _documents(sheets: Mapping[str, DeviceSheet] | Mapping[str, NetworkSheet]) -> dict[str, Any]:
    return {name: asdict(sheet) for name, sheet in sheets.items()}


def _title(sheet: DeviceSheet) -> str:
    return f"{sheet.title}, {sheet.cores} cores" if sheet.kind == "cpu" else sheet.title


def _peaks(sheet: DeviceSheet) -> list[float]:
    return [sheet.flops, *(sheet.tensor_flops.get(name, 0) for name in FORMATS)]


def _tera(peak: float) -> str:
    return f"{peak / 1e12:.4g}" if peak else "-"


def _gibi(size: float) -> str:
    return f"{size / 2**30:.4g}" if size else "-"


def _print_sheets(
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
