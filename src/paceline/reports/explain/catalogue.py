"""Which schedules there are, each in its own words."""

import inspect

from rich.console import Console
from rich.table import Table

from paceline.collectives.algorithms import SCHEDULES
from paceline.specs import find


def about(name: str) -> str:
    """What a schedule is, in its own module's words."""
    return (inspect.getdoc(inspect.getmodule(find(SCHEDULES[name]))) or "").partition("\n")[0]


def how(name: str) -> str:
    """How it goes about it, in its own words."""
    return (inspect.getdoc(find(SCHEDULES[name])) or "").partition("\n")[0]


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
