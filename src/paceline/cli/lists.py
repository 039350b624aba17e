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
from paceline.jobs.models import model_sizes
from paceline.strategies import STRATEGIES

AsJson = Annotated[bool, Parameter(name="--json", negative=(), help="One JSON document instead of a table.")]
Facts = Mapping[str, Any]


def _lister(
    table: Mapping[str, str], own: str, sizes: Callable[[], Mapping[str, Facts]] = dict
) -> Callable[..., None]:
    def show(*, as_json: AsJson = False) -> None:
        described = {name: specs.describe(path) for name, path in table.items()}
        known = sizes()
        if as_json:
            return _print_json(
                {
                    name: {"help": line, **known.get(name, {}), "settings": [*map(vars, settings)]}
                    for name, (line, settings) in described.items()
                }
            )
        grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for name, (line, settings) in described.items():
            grid.add_row(f"[bold]{name}[/bold]", line)
            if name in known:
                grid.add_row("", f"[dim]{_sentence(known[name])}[/dim]")
            for setting in settings:
                grid.add_row(f"  {setting.name}={setting.default}", setting.help)
        Console(highlight=False).print(grid)
        print(f"\nYour own by import path: {own}")  # noqa: T201
        return None

    return show


def _print_json(entries: Mapping[str, Any]) -> None:
    print(json.dumps({"schema": 1, "entries": entries}, indent=2))  # noqa: T201


def _sentence(model: Facts) -> str:
    fed = model["input"] if "x" in model["input"] else f"{model['input']} tokens"
    count = model["multiply_adds"]
    scales = (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3))
    short = next(f"{count / scale:.3g} {prefix}" for prefix, scale in scales if count >= scale)
    return (
        f"{model['parameters']:,} parameters; {short} multiply-adds a sample of {fed}, "
        f"{model['classes']:,} classes"
    )


codecs = _lister(CODECS, "--codec my_file.py:MyCodec:level=2; two in a row: --codec top-k+half")
strategies = _lister(STRATEGIES, "--strategy my_file.py:MyStrategy:period=4 (docs/add-a-strategy.md)")
models = _lister(jobs.MODELS, "--model my_file.py:MyNet:width=64 (docs/jobs.md)", model_sizes)
data = _lister(jobs.DATA, "--data my_file.py:MyData (docs/jobs.md)")
optimizers = _lister(jobs.OPTIMIZERS, "--optimizer my_file.py:MyOptimizer:lr=0.1")
schedules = _lister(jobs.SCHEDULES, "--schedule my_file.py:MySchedule")


FORMATS = ("tf32", "fp16", "bf16")

_WIDTH = 110


def devices(*, as_json: AsJson = False) -> None:
    sheets, rows = all_devices(), []
    for sheet in sheets.values():
        title = f"{sheet.title}, {sheet.cores} cores" if sheet.kind == "cpu" else sheet.title
        peaks = [sheet.flops, *(sheet.tensor_flops.get(name, 0) for name in FORMATS)]
        memory = [f"{sheet.bandwidth / 1e9:,.4g}", _or_dash(sheet.memory / 2**30)]
        rows.append([sheet.name, title, *(_or_dash(peak / 1e12) for peak in peaks), *memory])
    formats = [f"{name}\nTFLOP/s" for name in ("fp32", *FORMATS)]
    _print_sheets(["device", "", *formats, "memory\nGB/s", "\nGiB"], rows, sheets, as_json=as_json)


def networks(*, as_json: AsJson = False) -> None:
    sheets, rows = all_networks(), []
    for sheet in sheets.values():
        title = f"{sheet.title}{', inside a host' if sheet.inside else ''}"
        rows.append([sheet.name, title, f"{sheet.bandwidth * 8 / 1e9:,.4g}", f"{sheet.latency * 1e6:.3g}"])
    _print_sheets(["network", "", "each way\nGbit/s", "latency\nus"], rows, sheets, as_json=as_json)


def _or_dash(figure: float) -> str:
    return f"{figure:.4g}" if figure else "-"


def _print_sheets(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    sheets: Mapping[str, DeviceSheet | NetworkSheet],
    *,
    as_json: bool,
) -> None:
    """The rows, and below them the sources that they point to."""
    if as_json:
        return _print_json({name: asdict(sheet) for name, sheet in sheets.items()})
    sources: dict[str, int] = {}
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, title in enumerate([*titles, "from"]):
        grid.add_column(title, justify="left" if index < 2 else "right", no_wrap=index != 1, vertical="top")
    for row, sheet in zip(rows, sheets.values(), strict=True):
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
    return None
