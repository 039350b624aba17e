"""``paceline explain``: what a collective does, round by round."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter
from rich.console import Console
from rich.table import Table

from paceline.cli.options import Whole
from paceline.collectives import SCHEDULES
from paceline.errors import UsageError

PARTICIPANTS = Group("Participants", sort_key=1)
WHAT = Group("What is reduced", sort_key=2)
SHOWN = Group("What is shown", sort_key=3)


def explain(
    schedule: str | None = None,
    /,
    *,
    workers: Annotated[int | None, Whole, Parameter(name=["--workers", "-np"], group=PARTICIPANTS)] = None,
    hosts: Annotated[str | None, Parameter(group=PARTICIPANTS)] = None,
    op: Annotated[str | None, Parameter(group=WHAT)] = None,
    codec: Annotated[str | None, Parameter(group=WHAT)] = None,
    values: Annotated[str | None, Parameter(group=WHAT, allow_leading_hyphen=True)] = None,
    length: Annotated[int | None, Whole, Parameter(group=WHAT)] = None,
    seed: Annotated[int | None, Whole, Parameter(group=WHAT)] = None,
    segments: Annotated[int | None, Whole, Parameter(group=WHAT)] = None,
    html: Annotated[Path | None, Parameter(group=SHOWN)] = None,
    as_json: Annotated[bool, Parameter(name="--json", group=SHOWN, negative=(), show_default=False)] = False,
) -> None:
    """Show what a collective does, round by round.

    Which process sends which chunk to which other, and what each holds afterwards. Without a schedule, list them.

    Args:
        schedule: Such as ring; without one, all are listed.
        workers: Processes that take part (default 4; at most 16, with --json 32).
        hosts: Workers per host, such as 2,2 (default: all on one, or on two for hierarchical).
        op: sum (default), mean, max, min or product; with a codec, sum or mean.
        codec: Show what happens to vectors that are encoded, such as top-k:ratio=0.25.
        values: What each process begins with, one row per process: '5 2 9 1; 3 8 4 7'.
        length: Without --values: values per process
            (default: as many as processes, or as chunks; with a codec 8; at most 64, with --json 256).
        seed: Decides the random values (default 1): 1 to 9, or to twice the processes; with a codec -28 to 28.
        segments: Number of segments that are pipelined through the schedule (default 1, at most 8).
        html: Write a page that steps forward and back to this file.
        as_json: One JSON document instead of text.
    """
    asked: dict[str, Any] = {"workers": workers, "hosts": hosts, "op": op, "codec": codec, "values": values}
    asked |= {"length": length, "seed": seed, "segments": segments}
    given = {name: value for name, value in asked.items() if value is not None}
    if schedule is None:
        if given or html is not None:
            raise UsageError(
                f"which schedule? name one of {', '.join(SCHEDULES)}, as in 'paceline explain ring'"
            )
        _list(as_json)
    else:
        _show(schedule, given, html, as_json)


def _show(schedule: str, given: dict[str, Any], html: Path | None, as_json: bool) -> None:
    from paceline.api.explain import check_drawn, check_workers_drawn
    from paceline.api.explain import explain as explain_collective
    from paceline.reports.explain.render import print_explanation, write_page

    drawn = html is not None or not as_json
    if drawn:
        check_workers_drawn({"schedule": schedule, **given})
    found = explain_collective(schedule, **given)
    if drawn:
        check_drawn(found.value)
    if html is not None:
        write_page(found.value, html)
        sys.stderr.write(f"wrote {html}: open it in a browser\n")
    if as_json:
        print(json.dumps(found.to_dict()))  # noqa: T201
    elif html is None:
        print_explanation(found.value, Console(highlight=False))


def _list(as_json: bool) -> None:
    from paceline.reports.explain.sentences import about

    if as_json:
        entries = {name: dict(zip(("help", "how"), about(name), strict=True)) for name in SCHEDULES}
        print(json.dumps({"schema": 1, "entries": entries}, indent=2))  # noqa: T201
        return
    console = Console(highlight=False)
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name in SCHEDULES:
        grid.add_row(f"[bold]{name}[/bold]", about(name)[0])
    console.print(grid)
    console.print("\nfor example: paceline explain ring --workers 4 --op max", soft_wrap=True)
