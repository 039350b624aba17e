"""What servers add to the end of a run: how stale gradients were, who waited, what was dropped, who came and went."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count, pairwise

from paceline.records.servers import ServerTotals
from paceline.records.spans import Totals
from paceline.records.summary import Summary
from paceline.reports.text import bar, counted, rounded_to_add_up
from paceline.units import show_seconds

ROWS = 12
"""Rows that a histogram has at most."""
TAIL = 0.05
"""The share of gradients at each end that may stand in one row."""
WORKERS = 8
"""Workers that are all shown; of more, the fastest, the slowest and the one that waited longest."""
ALIKE = 0.05
"""How little the workers' shares of waiting, and their steps, differ that they need no table."""
CHANGES = 8
"""How many who came and went are named."""
_WIDTH = 24


def served_lines(summary: Summary, blocks: bool) -> list[str]:
    """The paragraphs, each with an empty line before it; none where there were no servers."""
    if not summary.servers:
        return []
    paragraphs = (
        _staleness(summary.servers, blocks),
        _waiting(summary.totals),
        [*_counts(summary.servers), *_changes(summary.servers[0])],
    )
    return [line for paragraph in paragraphs if paragraph for line in ("", *paragraph)]


def _staleness(servers: Sequence[ServerTotals], blocks: bool) -> list[str]:
    """The answer in a sentence; the histogram where some gradients were staler than others."""
    counts = servers[0].staleness
    gradients = sum(counts.values())
    if not gradients:
        return []
    if set(counts) == {0}:
        return ["no gradient was stale: each was computed on the newest parameters"]
    where = f" (server 0 of {len(servers)})" if len(servers) > 1 else ""
    if len(counts) == 1:
        return [f"every gradient missed {counted(max(counts), 'update')}{where}"]
    mean = sum(staleness * number for staleness, number in counts.items()) / gradients
    missed = counted(float(f"{mean:.3g}"), "update")
    lines = [f"a gradient missed {missed} on average, {max(counts):,} at most{where}"]
    rows = histogram(counts)
    most = max(rows.values())
    percents = rounded_to_add_up([100 * number / gradients for number in rows.values()], 0)
    lines.append(_line("updates missed", "gradients", "%"))
    for (title, number), share in zip(rows.items(), percents, strict=True):
        shown = "<1 %" if number and not share else f"{share:.0f} %"
        picture = bar(number / most, _WIDTH, blocks)
        lines.append(f"{_line(f'  {title}', f'{number:,}', shown)}  {picture}".rstrip())
    return lines


def histogram(counts: Mapping[int, int]) -> dict[str, int]:
    """A row a value; where that is more than ROWS, equal ranges for the bulk and one row for each far tail."""
    low, high, width = min(counts), max(counts), 1
    if high - low >= ROWS:
        low, high = _quantile(counts, TAIL), _quantile(counts, 1 - TAIL)
        width = next(width for width in _widths() if high // width - low // width < ROWS - 2)
    edges = [*range(low // width * width, high + 1, width), (high // width + 1) * width]
    edges = [min(counts), *edges, max(counts) + 1]
    return {
        _range(start, end - 1): sum(number for value, number in counts.items() if start <= value < end)
        for start, end in pairwise(edges)
        if start < end
    }


def _widths() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, ..."""
    return (step * 10**power for power in count() for step in (1, 2, 5))


def _quantile(counts: Mapping[int, int], share: float) -> int:
    """The least staleness that so large a share of the gradients does not exceed."""
    below, wanted = 0, share * sum(counts.values())
    for staleness in sorted(counts):
        below += counts[staleness]
        if below >= wanted:
            return staleness
    return max(counts)


def _range(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _waiting(totals: Sequence[Totals]) -> list[str]:
    """Who waited longest for others, and a row a worker; a sentence where all are alike, and else nothing."""
    trained = {f"rank {rank}": one for rank, one in enumerate(totals) if one.steps}
    waited = {name: _share_waited(one) for name, one in trained.items()}
    if len(trained) < 2 or max(waited.values()) < 0.005:
        return []
    least, most = (pick(waited, key=lambda name: waited[name]) for pick in (min, max))
    fewest, furthest = (pick(one.steps for one in trained.values()) for pick in (min, max))
    if waited[most] - waited[least] < ALIKE and furthest - fewest < ALIKE * furthest:
        return [f"each worker waited about {100 * waited[most]:.0f} % of its time for others"]
    if len(trained) > WORKERS:
        fast, slow = (pick(trained, key=lambda name: _compute(trained[name])) for pick in (min, max))
        named = {most: "", fast: ", fastest", slow: ", slowest"}
        trained = {f"{name}{why}": trained[name] for name, why in named.items()}
    return [
        f"{most} waited longest for others, {100 * waited[most]:.0f} % of its time",
        _line("worker", "steps", "waited", "%"),
        *(
            _line(
                f"  {name}",
                f"{one.steps:,}",
                _time(one.seconds["wait"]),
                f"{100 * _share_waited(one):.0f} %",
            )
            for name, one in trained.items()
        ),
    ]


def _share_waited(totals: Totals) -> float:
    whole = sum(totals.seconds.values())
    return totals.seconds["wait"] / whole if whole else 0.0


def _compute(totals: Totals) -> float:
    return totals.typical.compute - totals.typical.apply


def _time(seconds: float) -> str:
    return show_seconds(seconds) if seconds else "-"


def _line(name: str, *cells: str) -> str:
    return f"{name:<18}" + "".join(cell.rjust(width) for cell, width in zip(cells, (11, 9, 7), strict=False))


def _counts(servers: Sequence[ServerTotals]) -> list[str]:
    """Updates and gradients, the queue, and what was refused: a line each where there is something to say."""
    first = servers[0]
    fewest, most = (pick(server.updates for server in servers) for pick in (min, max))
    updates = counted(most, "update") if fewest == most else f"{fewest:,} to {most:,} updates a server"
    lines = [f"{updates} from {counted(first.used, 'gradient')}"]
    if first.pushes > first.used:
        lines[0] += f"; {first.pushes - first.used:,} more dropped"
    messages, deepest = (
        sum(server.messages for server in servers),
        max(server.depth_max for server in servers),
    )
    if deepest > 1:
        mean = sum(server.depth_sum for server in servers) / messages
        whose = "a server's" if len(servers) > 1 else "the server's"
        lines.append(f"{whose} queue: {mean:.3g} messages on average, {deepest:,} at most")
    refused: dict[str, int] = {}
    for server in servers:
        for why, number in server.refused.items():
            refused[why] = refused.get(why, 0) + number
    if refused:
        reasons = ", ".join(f"{why} {number:,}" for why, number in sorted(refused.items()))
        lines.append(f"refused at the socket: {reasons}")
    return lines


def _changes(server: ServerTotals) -> list[str]:
    changes = [one for one in server.changes if one.how != "finished"]
    lines = [str(one) for one in changes[:CHANGES]]
    if len(changes) > CHANGES:
        lines.append(f"and {len(changes) - CHANGES:,} more who joined, left or died")
    return lines
