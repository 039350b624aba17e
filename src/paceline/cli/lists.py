"""Lists of what there is to choose from, with every setting and which way it turns."""

import json
from collections.abc import Callable, Mapping
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from paceline import jobs, specs
from paceline.strategies import STRATEGIES

AsJson = Annotated[bool, Parameter(name="--json", negative=(), help="One JSON document instead of a table.")]


def _lister(table: Mapping[str, str], help_line: str) -> Callable[..., None]:
    def show(*, as_json: AsJson = False) -> None:
        described = {name: specs.describe(path) for name, path in table.items()}
        _print_json(described) if as_json else _print_table(described)

    show.__doc__ = help_line
    return show


Described = Mapping[str, tuple[str, list[specs.Setting]]]


def _print_json(described: Described) -> None:
    entries = {
        name: {"help": line, "settings": [vars(setting) for setting in settings]}
        for name, (line, settings) in described.items()
    }
    print(json.dumps({"schema": 1, "entries": entries}, indent=2))  # noqa: T201


def _print_table(described: Described) -> None:
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, (line, settings) in described.items():
        grid.add_row(f"[bold]{name}[/bold]", line)
        for setting in settings:
            grid.add_row(f"  {setting.name}={setting.default}", setting.help)
    Console(highlight=False).print(grid)


strategies = _lister(STRATEGIES, "List how workers can agree, with each one's settings.")
models = _lister(jobs.MODELS, "List the models that ship.")
data = _lister(jobs.DATA, "List the data sets that ship or are found in a folder.")
optimizers = _lister(jobs.OPTIMIZERS, "List the optimizers.")
schedules = _lister(jobs.SCHEDULES, "List the learning-rate schedules.")
