"""A story for a terminal: a small table a round. What it says, it says without colours as well."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from paceline.reports.explain import words
from paceline.reports.explain.catalogue import about, how
from paceline.reports.explain.messages import receipts, sending
from paceline.reports.explain.story import Step, Story

PLAIN_WIDTH = 120
"""Columns of a page that is no terminal."""

TRAVELS, CHANGED, FINISHED, QUIET, STRONG = "bold cyan", "bold yellow", "green", "dim", "bold"
GAP = "  "


def print_story(story: Story, console: Console) -> None:
    """Print it: coloured and as wide as the terminal, or plain where the console is none."""
    for line in story_lines(story, console.width if console.is_terminal else PLAIN_WIDTH):
        console.print(line, soft_wrap=True)


def story_lines(story: Story, width: int = PLAIN_WIDTH) -> Iterator[Text]:
    """The whole story, a line at a time; tables that are wider than ``width`` are cut into bands of columns."""
    yield from _heading(story)
    layout = Layout.of(story, width)
    said = ""
    for step in story.steps:
        yield Text()
        yield Text(words.title(step, story.schedule.workers), STRONG)
        if (now := words.sentence(story, step)) != said:
            yield Text(now, QUIET)
            said = now
        yield from layout.table(step)
        if step.messages:
            yield Text(f"{GAP}{words.progress(story, step)}", QUIET)
    yield from _ending(story)


def _heading(story: Story) -> Iterator[Text]:
    name = story.schedule.name
    yield Text(words.opening(story))
    yield Text(about(name))
    yield Text(how(name))
    if where := words.placing(story):
        yield Text(where)
    if story.steps:
        yield Text.assemble(
            ("[5]", TRAVELS),
            " travels, ",
            ("3 -> 5", CHANGED),
            " changes, ",
            ("9*", FINISHED),
            " is finished",
            ", - is a chunk without values" if story.length < story.schedule.chunks else "",
        )


def _ending(story: Story) -> Iterator[Text]:
    yield Text()
    yield Text.assemble(("result", STRONG), f" ({story.op}): ", (words.result(story), FINISHED))
    for line in words.traffic(story):
        yield Text(line)


@dataclass(frozen=True)
class Layout:
    """How wide each column is, the same in every round so that rounds can be compared."""

    story: Story
    label: int
    numbers: tuple[int, ...]
    """Characters of the longest that anybody holds of a chunk before a round."""
    cells: tuple[int, ...]
    """Characters of a cell, per chunk."""
    width: int
    beside: bool
    """Whether there is room for the words beside the rows, in every round; else they stand below."""

    @classmethod
    def of(cls, story: Story, width: int) -> "Layout":
        """Measure everything that will stand in the tables."""
        ranks, chunks, steps = range(story.schedule.workers), range(story.schedule.chunks), story.steps
        label = len(f"p{ranks[-1]}")
        numbers = tuple(_widest(story, chunk) for chunk in chunks)
        sizes = [
            [len(_cell(story, step, rank, chunk, numbers[chunk])) for step in steps for rank in ranks]
            for chunk in chunks
        ]
        cells = tuple(max(len(_head(story, chunk)), *sizes[chunk], 0) for chunk in chunks)
        longest = max((len(_remark(story, step, rank)) for step in steps for rank in ranks), default=0)
        beside = label + sum(cells) + len(GAP) * (len(cells) + 2) + longest <= width
        return cls(story, label, numbers, cells, width, beside)

    def table(self, step: Step) -> Iterator[Text]:
        """A round: what each held, sent and made of what came; words stand beside the rows or, if too wide, below."""
        remarks = [_remark(self.story, step, rank) for rank in range(self.story.schedule.workers)]
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
        cells = (f"{GAP}{_head(self.story, chunk).center(self.cells[chunk])}" for chunk in band)
        return Text(f"{GAP}{' ' * self.label}{''.join(cells)}".rstrip(), QUIET)

    def _row(self, step: Step, rank: int, band: range) -> Text:
        row = Text(f"{GAP}{f'p{rank}'.ljust(self.label)}")
        for chunk in band:
            cell = _cell(self.story, step, rank, chunk, self.numbers[chunk])
            row.append(GAP)
            row.append_text(cell)
            row.append(" " * (self.cells[chunk] - len(cell)))
        return row


def _cell(story: Story, step: Step, rank: int, chunk: int, width: int) -> Text:
    """Such as " [5]", "  3 -> 5*" or "  9*": a number's place in its column is always the same."""
    old, new = (
        words.numbers(story.chunk(moment.values[rank], chunk)) for moment in (step.before, step.after)
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


def _remark(story: Story, step: Step, rank: int) -> str:
    received = (receipt.words(story) for receipt in receipts(story, step) if receipt.target == rank)
    return ",  ".join(filter(None, (sending(story, step, rank), *received)))


def _head(story: Story, chunk: int) -> str:
    return f"chunk {chunk}" if story.schedule.chunks > 1 else "values"


def _widest(story: Story, chunk: int) -> int:
    rows = {story.chunk(row, chunk) for step in story.steps for row in step.before.values}
    return max((len(words.numbers(row)) for row in rows), default=1)
