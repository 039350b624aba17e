"""An explanation for a terminal: a small table a round. What it says, it says without colours as well."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from paceline.reports.explain import sentences
from paceline.reports.explain.explanation import ExplainedRound, Explanation

PLAIN_WIDTH = 120
"""Columns of a page that is no terminal."""

TRAVELS, CHANGED, FINISHED, QUIET, STRONG = "bold cyan", "bold yellow", "green", "dim", "bold"
GAP = "  "


def print_explanation(explanation: Explanation, console: Console) -> None:
    """Print it: coloured and as wide as the terminal, or plain where the console is none."""
    for line in explanation_lines(explanation, console.width if console.is_terminal else PLAIN_WIDTH):
        console.print(line, soft_wrap=True)


def explanation_lines(explanation: Explanation, width: int = PLAIN_WIDTH) -> Iterator[Text]:
    """The whole explanation, a line at a time; tables that are wider than ``width`` are cut into bands of columns."""
    yield from _heading(explanation)
    layout = TableLayout.of(explanation, width)
    said = ""
    for step in explanation.steps:
        yield Text()
        yield Text(sentences.title(step, explanation.schedule.workers), STRONG)
        if (now := sentences.sentence(explanation, step)) != said:
            yield Text(now, QUIET)
            said = now
        yield from layout.table(step)
        if step.messages:
            yield Text(f"{GAP}{sentences.progress(explanation, step)}", QUIET)
    yield from _ending(explanation)


def _heading(explanation: Explanation) -> Iterator[Text]:
    name = explanation.schedule.name
    yield Text(sentences.opening(explanation))
    yield Text(sentences.about(name))
    yield Text(sentences.how(name))
    if where := sentences.placing(explanation):
        yield Text(where)
    if explanation.steps:
        yield Text.assemble(
            ("[5]", TRAVELS),
            " travels, ",
            ("3 -> 5", CHANGED),
            " changes, ",
            ("9*", FINISHED),
            " is finished",
            ", - is a chunk without values" if explanation.length < explanation.schedule.chunks else "",
        )


def _ending(explanation: Explanation) -> Iterator[Text]:
    yield Text()
    yield Text.assemble(
        ("result", STRONG), f" ({explanation.op}): ", (sentences.result(explanation), FINISHED)
    )
    for line in sentences.traffic(explanation):
        yield Text(line)


@dataclass(frozen=True)
class TableLayout:
    """How wide each column is, the same in every round so that rounds can be compared."""

    explanation: Explanation
    label: int
    numbers: tuple[int, ...]
    """Characters of the longest that anybody holds of a chunk before a round."""
    cells: tuple[int, ...]
    """Characters of a cell, per chunk."""
    width: int
    beside: bool
    """Whether there is room for the words beside the rows, in every round; else they stand below."""

    @classmethod
    def of(cls, explanation: Explanation, width: int) -> "TableLayout":
        ranks, chunks, steps = (
            range(explanation.schedule.workers),
            range(explanation.schedule.chunks),
            explanation.steps,
        )
        label = len(f"p{ranks[-1]}")
        numbers = tuple(_widest(explanation, chunk) for chunk in chunks)
        sizes = [
            [len(_cell(explanation, step, rank, chunk, numbers[chunk])) for step in steps for rank in ranks]
            for chunk in chunks
        ]
        cells = tuple(max(len(_head(explanation, chunk)), *sizes[chunk], 0) for chunk in chunks)
        longest = max((len(_remark(explanation, step, rank)) for step in steps for rank in ranks), default=0)
        beside = label + sum(cells) + len(GAP) * (len(cells) + 2) + longest <= width
        return cls(explanation, label, numbers, cells, width, beside)

    def table(self, step: ExplainedRound) -> Iterator[Text]:
        """A round: what each held, sent and made of what came; words stand beside the rows or, if too wide, below."""
        remarks = [_remark(self.explanation, step, rank) for rank in range(self.explanation.schedule.workers)]
        for band in self._bands():
            yield self._header(band)
            for rank, remark in enumerate(remarks):
                row = self._row(step, rank, band)
                row.append(f"{GAP}{remark}" if self.beside else "")
                row.rstrip()
                yield row
        if not self.beside:
            yield from (Text(f"{GAP}p{rank} {remark}") for rank, remark in enumerate(remarks) if remark)

    def _bands(self) -> Iterator[range]:
        start, chunks = 0, len(self.cells)
        for stop in range(1, chunks + 1):
            if stop == chunks or self._width(range(start, stop + 1)) > self.width:
                yield range(start, stop)
                start = stop

    def _width(self, band: range) -> int:
        return len(GAP) + self.label + sum(len(GAP) + self.cells[chunk] for chunk in band)

    def _header(self, band: range) -> Text:
        cells = (f"{GAP}{_head(self.explanation, chunk).center(self.cells[chunk])}" for chunk in band)
        return Text(f"{GAP}{' ' * self.label}{''.join(cells)}".rstrip(), QUIET)

    def _row(self, step: ExplainedRound, rank: int, band: range) -> Text:
        row = Text(f"{GAP}{f'p{rank}'.ljust(self.label)}")
        for chunk in band:
            cell = _cell(self.explanation, step, rank, chunk, self.numbers[chunk])
            row.append(GAP)
            row.append_text(cell)
            row.append(" " * (self.cells[chunk] - len(cell)))
        return row


def _cell(explanation: Explanation, step: ExplainedRound, rank: int, chunk: int, width: int) -> Text:
    """Such as " [5]", "  3 -> 5*" or "  9*": a number's place in its column is always the same."""
    old, new = (
        sentences.numbers(explanation.chunk(moment.values[rank], chunk))
        for moment in (step.before, step.after)
    )
    sent, changed = step.sent(rank, chunk), step.received(rank, chunk) or not step.messages
    star = "*" if step.before.finished(rank, chunk) and not changed else ""
    cell = Text(" " * (width - len(old)))
    cell.append(f"[{old}{star}]" if sent else f" {old}{star} ", TRAVELS if sent else FINISHED if star else "")
    if changed:
        done = step.after.finished(rank, chunk)
        cell.append(" -> " if sent else "-> ", CHANGED)
        cell.append(f"{new}*" if done else new, FINISHED if done else CHANGED)
    return cell


def _remark(explanation: Explanation, step: ExplainedRound, rank: int) -> str:
    received = (one.words(explanation) for one in sentences.received(explanation, step) if one.target == rank)
    return ",  ".join(filter(None, (sentences.sending(explanation, step, rank), *received)))


def _head(explanation: Explanation, chunk: int) -> str:
    return f"chunk {chunk}" if explanation.schedule.chunks > 1 else "values"


def _widest(explanation: Explanation, chunk: int) -> int:
    rows = {explanation.chunk(row, chunk) for step in explanation.steps for row in step.before.values}
    return max((len(sentences.numbers(row)) for row in rows), default=1)
