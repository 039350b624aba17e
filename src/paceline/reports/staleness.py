"""What servers add to the end of a run: staleness, waiting, dropped gradients, membership changes."""

from collections import Counter
from collections.abc import Mapping, Sequence
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
"""Membership changes that are shown."""
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
    rows = histogram(counts)
    percents = rounded_to_add_up([100 * number / gradients for number in rows.values()], 0)
    lines = [f"a gradient missed {missed} on average, {max(counts):,} at most{where}"]
    lines.append(_line("updates missed", "gradients", "%"))
    for (title, number), share in zip(rows.items(), percents, strict=True):
        shown = "<1 %" if number and not share else f"{share:.0f} %"
        picture = bar(number / max(rows.values()), _WIDTH, blocks)
        lines.append(f"{_line(f'  {title}', f'{number:,}', shown)}  {picture}".rstrip())
    return lines


def histogram(counts: Mapping[int, int]) -> dict[str, int]:
    """A row a value; where that is more than ROWS, equal ranges for the bulk and one row for each far tail."""
    low, high, width = min(counts), max(counts), 1
    if high - low >= ROWS:
        low, high = _quantile(counts, TAIL), _quantile(counts, 1 - TAIL)
        widths = (step * 10**power for power in count() for step in (1, 2, 5))
        width = next(width for width in widths if high // width - low // width < ROWS - 2)
    edges = [*range(low // width * width, high + 1, width), (high // width + 1) * width]
    edges = [min(counts), *edges, max(counts) + 1]
    return {
        f"{start:,}" if start == end - 1 else f"{start:,} to {end - 1:,}": sum(
            number for value, number in counts.items() if start <= value < end
        )
        for start, end in pairwise(edges)
        if start < end
    }


def _quantile(counts: Mapping[int, int], share: float) -> int:
    """The least staleness that this share of the gradients does not exceed."""
    below, wanted = 0, share * sum(counts.values())
    for staleness in sorted(counts):
        below += counts[staleness]
        if below >= wanted:
            return staleness
    return max(counts)


def _waiting(totals: Sequence[Totals]) -> list[str]:
    """Which worker waited longest, and a row a worker; one sentence where all waited about as long."""
    trained = {f"rank {rank}": one for rank, one in enumerate(totals) if one.steps}
    waited = {name: one.seconds["wait"] / (sum(one.seconds.values()) or 1.0) for name, one in trained.items()}
    if len(trained) < 2 or max(waited.values()) < 0.005:
        return []
    least, most = (pick(waited, key=lambda name: waited[name]) for pick in (min, max))
    fewest, furthest = (pick(one.steps for one in trained.values()) for pick in (min, max))
    if waited[most] - waited[least] < ALIKE and furthest - fewest < ALIKE * furthest:
        return [f"each worker waited about {100 * waited[most]:.0f} % of its time for others"]
    shown = dict.fromkeys(trained, "")
    if len(trained) > WORKERS:
        compute = {name: one.typical.compute - one.typical.apply for name, one in trained.items()}
        fast, slow = (pick(trained, key=lambda name: compute[name]) for pick in (min, max))
        shown = {most: "", fast: ", fastest", slow: ", slowest"}
    lines = [f"{most} waited longest for others, {100 * waited[most]:.0f} % of its time"]
    lines.append(_line("worker", "steps", "waited", "%"))
    for name, which in shown.items():
        seconds = trained[name].seconds["wait"]
        cells = (f"{trained[name].steps:,}", show_seconds(seconds) if seconds else "-")
        lines.append(_line(f"  {name}{which}", *cells, f"{100 * waited[name]:.0f} %"))
    return lines


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
    deepest = max(server.depth_max for server in servers)
    if deepest > 1:
        mean = sum(server.depth_sum for server in servers) / sum(server.messages for server in servers)
        whose = "a server's" if len(servers) > 1 else "the server's"
        lines.append(f"{whose} queue: {mean:.3g} messages on average, {deepest:,} at most")
    refused = sum((Counter(server.refused) for server in servers), Counter[str]())
    if refused:
        reasons = ", ".join(f"{why} {number:,}" for why, number in sorted(refused.items()))
        lines.append(f"refused at the socket: {reasons}")
    return lines


def _changes(server: ServerTotals) -> list[str]:
    changes = [str(one) for one in server.changes if one.how != "finished"]
    more = len(changes) - CHANGES
    return changes[:CHANGES] + ([f"and {more:,} more joined, left or died"] if more > 0 else [])
