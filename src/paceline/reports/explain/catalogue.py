"""Which schedules there are, each in its own words."""

import inspect

from rich.console import Console
from rich.table import Table

from paceline.collectives import SCHEDULES
from paceline.specs import find


def about(name: str) -> str:
    """What a schedule is: the first line of its documentation."""
    return _documentation(name)[0]


def how(name: str) -> str:
    """How it works: the first line after that."""
    return next(filter(None, _documentation(name)[1:]), "")


def _documentation(name: str) -> list[str]:
    return (inspect.getdoc(find(SCHEDULES[name])) or "").splitlines() or [""]


def entries() -> dict[str, dict[str, str]]:
    """By name."""
    return {name: {"help": about(name), "how": how(name)} for name in SCHEDULES}


def print_entries(console: Console) -> None:
    """A line each, and what to type next."""
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, entry in entries().items():
        grid.add_row(f"[bold]{name}[/bold]", entry["help"])
    console.print(grid)
    console.print("\nfor example: paceline explain ring --workers 4 --op max", soft_wrap=True)
