"""An explanation as text for a terminal, and as a page.

The text says the same without colours. The page steps forward and back and loads nothing.
"""

import html
import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from textwrap import wrap

from rich.console import Console
from rich.text import Text

from paceline.errors import UsageError
from paceline.records.files import replacing, to_document
from paceline.reports.explain import sentences
from paceline.reports.explain.document import ExplainedRound, ExplainedStage, Explanation, RankValues

PLAIN_WIDTH = 120
"""Columns of a page that is no terminal."""

TRAVELS, CHANGED, FINISHED, QUIET, STRONG = "bold cyan", "bold yellow", "green", "dim", "bold"
GAP = "  "


def print_explanation(explanation: Explanation, console: Console) -> None:
    for line in explanation_lines(explanation, console.width if console.is_terminal else PLAIN_WIDTH):
        console.print(line, soft_wrap=True)


def explanation_lines(explanation: Explanation, width: int = PLAIN_WIDTH) -> Iterator[Text]:
    """The whole explanation, a line at a time; tables that are wider than ``width`` are cut into bands of columns."""
    yield from _heading(explanation, width)
    said = ""
    for stage in explanation.stages:
        for step, table in zip(stage.steps, _tables(stage, width), strict=True):
            yield Text()
            yield Text(f"{stage.title}: {step.title}" if stage.title else step.title, STRONG)
            if step.sentence != said:
                yield from _prose(step.sentence, width)
                said = step.sentence
            yield from table
            if step.progress:
                yield from _prose(step.progress, width, GAP)
    outcome = sentences.outcome(explanation.result, explanation.workers)
    yield Text()
    yield Text.assemble(("result", STRONG), f" ({explanation.op}): ", (outcome, FINISHED))
    yield from map(Text, explanation.summary[1:])


def _prose(text: str, width: int, indent: str = "", style: str = QUIET) -> Iterator[Text]:
    for line in wrap(text, width, initial_indent=indent, subsequent_indent=indent):
        yield Text(line, style)


def _heading(explanation: Explanation, width: int) -> Iterator[Text]:
    hosts: dict[int, list[str]] = {}
    for rank, host in enumerate(explanation.hosts):
        hosts.setdefault(host, []).append(f"p{rank}")
    placing = "; ".join(f"host {host}: {', '.join(on)}" for host, on in hosts.items() if len(hosts) > 1)
    lines = (explanation.opening, explanation.about, explanation.how, placing)
    for line in filter(None, lines):
        yield from _prose(line, width, style="")
    if explanation.steps:
        legend = f"[{TRAVELS}]\\[5][/] travels, [{CHANGED}]3 -> 5[/] changes, [{FINISHED}]9*[/] is finished"
        empty = any(not cell for cell in explanation.stages[0].start.cells[0])
        legend += ", - is a chunk without values" if empty else ""
        awaited = any(() in row for stage in explanation.stages[1:] for row in stage.start.cells)
        legend += ", - is not there yet" if awaited else ""
        yield Text.from_markup(legend)


def _tables(stage: ExplainedStage, width: int) -> Iterator[list[Text]]:
    """A table a round: what each rank held, sent, and made of what it received.

    Columns are as wide in every round, so that rounds can be compared. Remarks are beside the rows or, where some
    would not fit, below.
    """
    heads, grids = stage.columns, _grids(stage)
    columns = list(zip(heads, *(row for grid in grids for row in grid), strict=True))
    widths = [max(map(len, column)) for column in columns]
    remarks = [_remarks(stage, step) for step in stage.steps]
    label = len(f"{GAP}p{len(stage.start.cells) - 1}")
    longest = max((len(remark) for of_step in remarks for remark in of_step), default=0)
    beside = label + sum(widths) + len(GAP) * (len(heads) + 1) + longest <= width
    for grid, words in zip(grids, remarks, strict=True):
        table = []
        for band in _bands(widths, width - label):
            cells = (f"{GAP}{heads[column].center(widths[column])}" for column in band)
            table.append(Text(f"{' ' * label}{''.join(cells)}".rstrip(), QUIET))
            for rank, row in enumerate(grid):
                line = Text(f"{GAP}p{rank}".ljust(label))
                for column in band:
                    line.append(GAP)
                    line.append_text(row[column])
                    line.append(" " * (widths[column] - len(row[column])))
                line.append(f"{GAP}{words[rank]}" if beside else "")
                line.rstrip()
                table.append(line)
        if not beside:
            table += [Text(f"{GAP}p{rank} {remark}") for rank, remark in enumerate(words) if remark]
        yield table


def _bands(widths: Sequence[int], width: int) -> Iterator[range]:
    start, chunks = 0, len(widths)
    for stop in range(1, chunks + 1):
        if stop == chunks or sum(len(GAP) + one for one in widths[start : stop + 1]) > width:
            yield range(start, stop)
            start = stop


def _shown(stage: ExplainedStage) -> list[list[list[str]]]:
    """What is in each cell, by state, rank and column."""
    return [[[sentences.cell(cell) for cell in row] for row in state.cells] for state in stage.states]


def _grids(stage: ExplainedStage) -> list[list[list[Text]]]:
    """The cells of each round, by rank and column."""
    shown, states = _shown(stage), stage.states
    columns = zip(*(row for state in shown[:-1] for row in state), strict=True)
    widths = [max(map(len, column)) for column in columns]
    grids = []
    for at, step in enumerate(stage.steps):
        rows = enumerate(zip(shown[at], shown[at + 1], strict=True))
        grids.append(
            [
                [
                    _cell(states[at], step, rank, column, old.rjust(widths[column]), new)
                    for column, (old, new) in enumerate(zip(before, after, strict=True))
                ]
                for rank, (before, after) in rows
            ]
        )
    return grids


def _cell(held: RankValues, step: ExplainedRound, rank: int, column: int, old: str, new: str) -> Text:
    here = [message for message in step.messages if message.start <= column < message.stop]
    sent = any(message.source == rank for message in here)
    sent |= bool(step.encoded) and column in step.encoded[rank]
    changed = any(message.target == rank for message in here)
    changed |= not step.messages and held.cells[rank][column] != step.cells[rank][column]
    finished = held.finished(rank, column) or (not step.messages and step.finished(rank, column))
    star = "*" if finished and not changed else ""
    cell = Text(f"[{old}{star}]" if sent else f" {old}{star} ", TRAVELS if sent else FINISHED if star else "")
    if changed:
        done = step.finished(rank, column)
        cell = Text.assemble(cell, (" -> " if sent else "-> ", CHANGED))
        cell.append(f"{new}*" if done else new, FINISHED if done else CHANGED)
    return cell


def _remarks(stage: ExplainedStage, step: ExplainedRound) -> list[str]:
    """What each rank sends and receives: "sends chunk 0 -> p1,  receives chunk 3 from p3: max(1, 8) = 8"."""
    targets: list[dict[str, list[str]]] = [{} for _ in step.cells]
    for message in step.messages:
        what = sentences.column_words(message.start, message.stop, stage.columns)
        targets[message.source].setdefault(what, []).append(f"p{message.target}")
    remarks = [[f"sends {what} -> {', '.join(to)}" for what, to in mine.items()] for mine in targets]
    for receipt in step.received:
        remarks[receipt.target].append(receipt.text.partition(" ")[2])
    return [",  ".join(words) for words in remarks]


def page(explanation: Explanation) -> str:
    title = f"{explanation.schedule} all-reduce of {explanation.workers} by {explanation.op}"
    data = {**to_document(explanation), "shown": [_shown(stage) for stage in explanation.stages]}
    # JSON that cannot end the element it stands in, whatever its texts are.
    story = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    asset = {
        name: files(__package__).joinpath("assets", f"page.{name}").read_text("utf-8")
        for name in ("html", "css", "js")
    }
    return Template(asset["html"]).substitute(
        title=html.escape(title), style=asset["css"], script=asset["js"], story=story
    )


def write_page(explanation: Explanation, path: Path) -> None:
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is no file that can be replaced: name a new one, such as ring.html")
    try:
        with replacing(path) as file:
            file.write(page(explanation).encode())
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}): name another file") from error
