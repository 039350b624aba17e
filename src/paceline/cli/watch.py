"""``paceline watch``: follow a run from its files."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from paceline.errors import UsageError
from paceline.records.folder import RunFolder, find_run

if TYPE_CHECKING:
    from paceline.studies.watch import RunState

ON_TERMINAL, ELSEWHERE = 1.0, 5.0
"""Seconds between two looks."""
LEAST = 0.1


def watch(
    run: Path = Path("latest"),
    *,
    once: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    every: float | None = None,
    runs: Annotated[Path | None, Parameter(show_default=False)] = None,
) -> None:
    """Follow a run in the terminal: its rate, its losses, where its time goes, who waits for whom.

    Reads the run's files only, so the run may be another user's, or go on on another host that shares the file system.
    Ends when the run does, and with Ctrl-C; the run does not notice.

    Args:
        run: The run's folder, or 'latest' (default).
        once: Print what is known now, and end.
        as_json: With --once: one JSON document instead of text.
        every: Seconds between two looks (default 1 on a terminal; else 5, a line each).
        runs: Where 'latest' is looked for (default runs).
    """
    if as_json and not once:
        raise UsageError("--json needs --once: one document is one look; give both, or leave --json out")
    if once and every is not None:
        raise UsageError(
            f"--every {every:g} has no place with --once, which is one look; leave one of them out"
        )
    if every is not None and not every >= LEAST:
        raise UsageError(f"--every {every:g} is too short: at least {LEAST:g} s must lie between two looks")
    folder = find_run(run, runs)
    if once:
        _print_once(folder, as_json=as_json)
        return
    try:
        _follow(folder, every)
    except KeyboardInterrupt:
        sys.stderr.write("\n")


def _print_once(folder: RunFolder, *, as_json: bool) -> None:
    from paceline.records.files import json_text
    from paceline.reports.text import can_draw
    from paceline.reports.watch import watch_text
    from paceline.studies.watch import RunWatcher

    state = RunWatcher(folder).look()
    if as_json:
        print(json_text(state.to_json()))  # noqa: T201
    else:
        print(watch_text(state, str(folder.path), can_draw(sys.stdout)))  # noqa: T201


def _follow(folder: RunFolder, every: float | None) -> None:
    from paceline.reports.text import can_draw
    from paceline.reports.watch import status_words, watch_text
    from paceline.studies.watch import RunWatcher

    watcher, path = RunWatcher(folder), str(folder.path)
    with ExitStack() as stack:
        show = _page(stack, path) if sys.stdout.isatty() else _line
        while not (state := watcher.look()).over:
            show(state)
            time.sleep(every or (ON_TERMINAL if sys.stdout.isatty() else ELSEWHERE))
    if state.summary:
        print(watch_text(state, path, can_draw(sys.stdout)))  # noqa: T201
    else:
        print(f"{path}: {status_words(state)}")  # noqa: T201


def _page(stack: ExitStack, path: str) -> Callable[["RunState"], None]:
    """Shows each look in place of the one before."""
    from rich.live import Live
    from rich.text import Text

    from paceline.reports.text import can_draw
    from paceline.reports.watch import watch_text

    live = stack.enter_context(Live(auto_refresh=False, transient=True))
    blocks = can_draw(sys.stdout)
    return lambda state: live.update(Text(watch_text(state, path, blocks)), refresh=True)


def _line(state: "RunState") -> None:
    from paceline.reports.watch import watch_line

    print(watch_line(state), flush=True)  # noqa: T201
