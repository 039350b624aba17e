"""An explanation as text for a terminal, as one JSON document, and as a page drawn from that.

The text says the same without colours. The page steps forward and back and loads nothing.
"""

import html
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from rich.console import Console
from rich.text import Text

from paceline.errors import UsageError
from paceline.records.files import replacing
from paceline.reports.explain import sentences
from paceline.reports.explain.explanation import ExplainedRound, Explanation

PLAIN_WIDTH = 120
"""Columns of a page that is no terminal."""

TRAVELS, CHANGED, FINISHED, QUIET, STRONG = "bold cyan", "bold yellow", "green", "dim", "bold"
GAP = "  "


def print_explanation(explanation: Explanation, console: Console) -> None:
    for line in explanation_lines(explanation, console.width if console.is_terminal else PLAIN_WIDTH):
        console.print(line, soft_wrap=True)


def explanation_lines(explanation: Explanation, width: int = PLAIN_WIDTH) -> Iterator[Text]:
    """The whole explanation, a line at a time; tables that are wider than ``width`` are cut into bands of columns."""
    yield from _heading(explanation)
    said = ""
    for step, table in zip(explanation.steps, _tables(explanation, width), strict=True):
        yield Text()
        yield Text(sentences.title(step), STRONG)
        if (now := sentences.sentence(explanation, step)) != said:
            yield Text(now, QUIET)
            said = now
        yield from table
        if step.messages:
            yield Text(f"{GAP}{sentences.progress(step)}", QUIET)
    yield Text()
    yield Text.assemble(
        ("result", STRONG), f" ({explanation.op}): ", (sentences.result(explanation), FINISHED)
    )
    yield from map(Text, sentences.traffic(explanation))


def _heading(explanation: Explanation) -> Iterator[Text]:
    about = sentences.about(explanation.asked)
    lines = (sentences.opening(explanation), *about, sentences.placing(explanation))
    yield from map(Text, filter(None, lines))
    if explanation.steps:
        legend = f"[{TRAVELS}]\\[5][/] travels, [{CHANGED}]3 -> 5[/] changes, [{FINISHED}]9*[/] is finished"
        empty = explanation.bounds[-1] < explanation.schedule.chunks
        yield Text.from_markup(legend + (", - is a chunk without values" if empty else ""))


def _tables(explanation: Explanation, width: int) -> Iterator[list[Text]]:
    """A table a round: what each rank held, sent and made of what came.

    Columns are as wide in every round, so that rounds can be compared. Remarks stand beside the rows or, where some
    would not fit, below.
    """
    steps, chunks = explanation.steps, explanation.schedule.chunks
    heads = [f"chunk {chunk}" if chunks > 1 else "values" for chunk in range(chunks)]
    grids = _grids(explanation)
    columns = list(zip(heads, *(row for grid in grids for row in grid), strict=True))
    widths = [max(map(len, column)) for column in columns]
    remarks = [_remarks(explanation, step) for step in steps]
    label = len(f"{GAP}p{explanation.schedule.workers - 1}")
    longest = max((len(remark) for of_step in remarks for remark in of_step), default=0)
    beside = label + sum(widths) + len(GAP) * (chunks + 1) + longest <= width
    for grid, words in zip(grids, remarks, strict=True):
        table = []
        for band in _bands(widths, width - label):
            cells = (f"{GAP}{heads[chunk].center(widths[chunk])}" for chunk in band)
            table.append(Text(f"{' ' * label}{''.join(cells)}".rstrip(), QUIET))
            for rank, row in enumerate(grid):
                line = Text(f"{GAP}p{rank}".ljust(label))
                for chunk in band:
                    line.append(GAP)
                    line.append_text(row[chunk])
                    line.append(" " * (widths[chunk] - len(row[chunk])))
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


def _grids(explanation: Explanation) -> list[list[list[Text]]]:
    shown = sentences.cells(explanation)
    columns = zip(*(row for state in shown[:-1] for row in state), strict=True)
    widths = [max(map(len, column)) for column in columns]
    return [
        [
            [
                _cell(step, rank, chunk, old.rjust(widths[chunk]), new)
                for chunk, (old, new) in enumerate(pairs)
            ]
            for rank, pairs in enumerate(map(zip, before, after))
        ]
        for step, before, after in zip(explanation.steps, shown, shown[1:], strict=False)
    ]


def _cell(step: ExplainedRound, rank: int, chunk: int, old: str, new: str) -> Text:
    sent, changed = step.sent(rank, chunk), step.received(rank, chunk) or not step.messages
    star = "*" if step.before.finished(rank, chunk) and not changed else ""
    cell = Text(f"[{old}{star}]" if sent else f" {old}{star} ", TRAVELS if sent else FINISHED if star else "")
    if changed:
        done = step.after.finished(rank, chunk)
        cell = Text.assemble(cell, (" -> " if sent else "-> ", CHANGED))
        cell.append(f"{new}*" if done else new, FINISHED if done else CHANGED)
    return cell


def _remarks(explanation: Explanation, step: ExplainedRound) -> list[str]:
    remarks = [sentences.sending(explanation, step, rank) for rank in range(explanation.schedule.workers)]
    for target, text in sentences.received(explanation, step):
        remarks[target].append(text)
    return [",  ".join(words) for words in remarks]


def document(explanation: Explanation) -> dict[str, Any]:
    schedule, steps, end = explanation.schedule, explanation.steps, explanation.end.values
    about, how = sentences.about(explanation.asked)
    sent, least = (
        [explanation.sent(rank) for rank in range(schedule.workers)],
        sentences.least_values(explanation),
    )
    return {
        "schema": 2,
        "schedule": schedule.name,
        "op": explanation.op,
        "workers": schedule.workers,
        "hosts": explanation.hosts,
        "segments": explanation.segments,
        "chunks": schedule.chunks,
        "bounds": explanation.bounds,
        "about": about,
        "how": how,
        "opening": sentences.opening(explanation),
        "start": asdict(explanation.start),
        "steps": [_step(explanation, step, number) for number, step in enumerate(steps, start=1)],
        "result": end[0],
        "agreed": len(set(end)) == 1,
        "totals": {
            "rounds": schedule.round_count,
            "messages": len(explanation.messages),
            "messages_between_hosts": explanation.across,
            "values_sent": sent,
            "bytes_sent": [sentences.ELEMENT * values for values in sent],
            "lower_bound_values": least,
            "lower_bound_bytes": sentences.ELEMENT * least,
        },
        "summary": [f"{explanation.op}: {sentences.result(explanation)}", *sentences.traffic(explanation)],
    }


def _step(explanation: Explanation, step: ExplainedRound, number: int) -> dict[str, Any]:
    return {
        "round": number if step.messages else None,
        "phase": step.phase,
        "title": sentences.title(step),
        "sentence": sentences.sentence(explanation, step),
        "progress": sentences.progress(step),
        "messages": [asdict(message) for message in step.messages],
        "received": [
            {"target": target, "text": f"p{target} {text}"}
            for target, text in sentences.received(explanation, step)
        ],
        **asdict(step.after),
    }


def page(explanation: Explanation) -> str:
    schedule = explanation.schedule
    title = f"{schedule.name} all-reduce of {schedule.workers} by {explanation.op}"
    # JSON that cannot end the element it stands in, whatever its texts are.
    data = {**document(explanation), "shown": sentences.cells(explanation)}
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
