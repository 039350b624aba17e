"""The end of a run in a few lines: the answer, where a typical step's time went, what else it took, and its servers."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, count, pairwise
from textwrap import wrap

from paceline.records.servers import ServerTotals
from paceline.records.spans import StepBreakdown, Totals, mean_typical_step, sent_a_step
from paceline.records.summary import NoiseScale, Summary
from paceline.reports.text import bar, counted, percent, rounded_to_add_up
from paceline.units import show_bytes, show_seconds

PARTS = {
    "data": "data",
    "forward": "forward",
    "backward": "backward",
    "communicate": "communicate",
    "wait": "wait for others",
    "apply": "apply",
    "other": "rest",
}
"""The kinds of time that a step is made of; evaluations and checkpoints lie between steps."""
EXCHANGE = ("communicate", "wait")
UNEVEN = 1.3
"""How much longer the slowest worker computes than the fastest before both are shown."""
ATYPICAL = 1.05
"""How much longer the mean step is than the typical one before its parts are shown as well."""
LONGER = 1.2
"""How much longer than the typical step the first one is before it is shown."""
OUTSIDE = {
    "start": "start",
    "evaluate": "evaluation",
    "checkpoint": "checkpoints",
    "communicate": "communication",
    "wait": "waiting for others",
    "unfinished": "unfinished steps",
}
"""What a worker's time goes to outside of steps; what is not named, or is less than MENTIONED, is the rest."""
MENTIONED = 0.001

MOST_ROWS = 12
TAIL = 0.05
"""The share of gradients at each end that may stand in one row."""
MOST_WORKERS = 8
"""Of more, the fastest, the slowest and those that waited longest are shown."""
ALIKE = 0.05
"""How little the workers' shares of waiting, and their steps, differ that they need no table."""
MOST_CHANGES = 8


def summary_text(
    summary: Summary,
    folder: str | None = None,
    blocks: bool = True,
    timed: bool = True,
    predicted: StepBreakdown | None = None,
) -> str:
    """The whole text, without a last line break; ``blocks`` says whether the bars may be more than ASCII.

    Where steps are not ``timed``, as in a replay, nothing is said of where their time went. A step that was
    ``predicted`` before the run stands beside the measured one.
    """
    workers = {rank: totals for rank, totals in enumerate(summary.totals) if totals.steps}
    simulated = "simulated: " if summary.runtime == "virtual" else ""
    lines = [f"{simulated}{run_answer(summary, workers)}{f'; {folder}' if folder else ''}"]
    if workers and timed:
        lines += ["", *_step_table(workers, blocks, predicted), *_amounts(summary, workers)]
    elif workers:
        lines.append(_work(summary))
    if summary.servers:
        told = (_staleness(summary.servers, blocks), _waiting(summary.totals), _served(summary.servers))
        lines += [line for paragraph in told if paragraph for line in ("", *paragraph)]
    if summary.noise_scale:
        lines += wrap(_noise_scale(summary.noise_scale), 120)
    if summary.profiled and folder:
        lines.append(f"torch profiler traces of steps {summary.profiled}: {folder}/profile/rank-*.json.gz")
    damaged = sum(one.damaged for one in summary.totals) + sum(one.damaged for one in summary.servers)
    if damaged:
        lines.append(
            f"{counted(damaged, 'line')} of the record could not be read; what was there is in no sum"
        )
    return "\n".join(lines)


def _noise_scale(scale: NoiseScale) -> str:
    about, low, high = (f"{float(f'{one:.2g}'):,.0f}" for one in (scale.last, scale.low, scale.high))
    spread = f" ({low} to {high} over the run)" if low != high else ""
    return (
        f"gradient noise scale: about {about} sample{'s' * (about != '1')}{spread}; batches beyond that are mostly "
        f"waste; this run's was {scale.batch:,}"
    )


Workers = Mapping[int, Totals]
"""Those that finished a step, by rank."""


def after_warm_up(totals: Totals) -> tuple[StepBreakdown, float]:
    """A worker's mean step and its samples/s; with the warm-up where no other step took time."""
    steps, whole = totals.steps - totals.warm_up_steps, totals.in_steps
    samples = totals.samples - totals.warm_up_samples
    if not whole.total:
        steps, whole, samples = steps or totals.steps, whole + totals.in_warm_up, totals.samples
    return whole * (1 / steps), samples / whole.total if whole.total else 0.0


def run_answer(summary: Summary, workers: Workers) -> str:
    took, final = show_seconds(summary.seconds), summary.final
    if summary.ending in ("interrupted", "failed"):
        epoch = f" (epoch {summary.epochs:.2f})" if summary.epochs else ""
        return f"{summary.ending} at step {summary.steps:,}{epoch} after {took}"
    if "accuracy" in final and summary.target_seconds is not None and summary.target is not None:
        when = f"{percent(summary.target)} after {show_seconds(summary.target_seconds)}"
        return f"reached {final['accuracy']:.4f} in {took} ({when})"
    if "accuracy" in final:
        missed = "" if summary.target is None else f" ({percent(summary.target)} not reached)"
        return f"ended at {final['accuracy']:.4f} after {took}{missed}"
    for loss in ("test_loss", "train_loss"):
        if loss in final:
            return f"ended at a {loss.replace('_', ' ')} of {final[loss]:.4f} after {took}"
    each = f", {show_seconds(mean_typical_step(workers.values()).total)} a step typically" if workers else ""
    return f"{counted(summary.steps, 'step')} in {took}{each}"


def _step_table(workers: Workers, blocks: bool, predicted: StepBreakdown | None = None) -> list[str]:
    means = [after_warm_up(totals)[0] for totals in workers.values()]
    typical, mean = mean_typical_step(workers.values()), sum(means, StepBreakdown()) * (1 / len(means))
    # Decimals that give a step of any length three to five figures.
    limits = ((4, 1e-4), (3, 1e-3), (2, 0.1), (1, 1.0))
    digits = next((digits for digits, limit in limits if typical.total < limit), 0)

    def milliseconds(step: StepBreakdown) -> list[str]:
        return _column([1e3 * part for part in _parts(step)], digits)

    shares = [part / typical.total if typical.total else 0.0 for part in _parts(typical)]
    columns = {"ms": milliseconds(typical), "%": _column([100 * share for share in shares], 0, " %")}
    if mean.total > ATYPICAL * typical.total:
        columns["mean ms"] = milliseconds(mean)
    fast, slow = (pick(workers, key=lambda rank: workers[rank].typical.compute) for pick in (min, max))
    least = workers[fast].typical.compute
    ratio = workers[slow].typical.compute / least if least else 1.0
    for rank in (fast, slow) if ratio > UNEVEN else ():
        columns[f"rank {rank}"] = milliseconds(workers[rank].typical)
    off = ""
    if predicted is not None:
        if ratio > UNEVEN:  # a terminal has no room for all
            columns.pop("mean ms", None)
        columns["predicted"] = milliseconds(predicted)
        off = f"({100 * (predicted.total / typical.total - 1):+.0f} %)" if typical.total else ""
    width = {2: 24, 3: 18, 4: 12}.get(len(columns), 6)
    drawn = [bar(share, width, blocks) for share in shares]
    if typical.hidden:
        place = list(PARTS).index("communicate")
        beside = drawn[place] if len(columns) < 5 else ""  # a terminal has no room for both
        drawn[place] = f"{beside} ({1e3 * typical.hidden:.{digits}f} hidden)".lstrip()
    exchanged = any(step.communicate or step.wait for step in (typical, mean, predicted or typical))
    widths = [7 if title == "%" else max(9, 2 + len(title)) for title in columns]
    lines = [_step_line("where a step went", list(columns), widths, "")]
    for kind, *cells, picture in zip([*PARTS, "step"], *columns.values(), [*drawn, off], strict=True):
        if exchanged or kind not in EXCHANGE:
            lines.append(_step_line(f"  {PARTS.get(kind, 'typical step')}", cells, widths, picture))
    if ratio > UNEVEN:
        lines.append(f"rank {slow} computes {ratio:.3g} times as long as rank {fast}")
    return lines


def _parts(step: StepBreakdown) -> list[float]:
    return [getattr(step, kind) for kind in PARTS]


def _step_line(name: str, cells: list[str], widths: list[int], picture: str) -> str:
    numbers = "".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return f"{name:<17}{numbers}  {picture}".rstrip()


def _column(parts: Sequence[float], digits: int, unit: str = "") -> list[str]:
    rounded = rounded_to_add_up(parts, digits)
    return [f"{value:.{digits}f}{unit}" for value in [*rounded, sum(rounded)]]


def _amounts(summary: Summary, workers: Workers) -> list[str]:
    rate = sum(after_warm_up(totals)[1] for totals in workers.values())
    lines = [f"{_work(summary)}, {rate:,.0f} samples/s", *_first(workers), *_whole_time(_present(summary))]
    sent = sent_a_step(workers.values())
    used = f"sent {show_bytes(sent)} per step and worker" if sent else _sent_nothing(workers)
    if summary.cpu_percent is not None and summary.memory_bytes is not None:
        memory = show_bytes(summary.memory_bytes)
        used += f"; a worker used {summary.cpu_percent:.0f} % of a core and {memory}"
    if summary.coding:
        took = show_seconds(summary.coding)
        used += f"\nencoding and decoding took {took} a step, counted as communicate"
    return [*lines, used]


def _sent_nothing(workers: Workers) -> str:
    if len(workers) < 2:
        return "sent nothing"
    steps = _range([one.steps for one in workers.values()], "step")
    return (
        f"sent nothing in {steps}: the workers trained apart to the end; shorten the rounds of the strategy"
    )


def _present(summary: Summary) -> list[Totals]:
    """Of all that took part, also of one that finished no step."""
    return [one for one in summary.totals if one.steps or any(one.seconds.values())]


def _work(summary: Summary) -> str:
    steps = _range([one.steps for one in _present(summary)], "step")
    epochs = f", {counted(summary.epochs, 'epoch')}" if summary.epochs else ""
    return f"{steps} per worker{epochs}"


def _range(numbers: Sequence[int], what: str) -> str:
    fewest, most = min(numbers), max(numbers)
    return counted(most, what) if fewest == most else f"{fewest:,} to {most:,} {what}s"


def _first(workers: Workers) -> list[str]:
    firsts = [one for one in workers.values() if one.warm_up_steps]
    if not firsts:
        return []
    if all(one.steps == one.warm_up_steps for one in firsts):
        return ["no step but the first, which allocates memory: train for longer to see a typical one"]
    many = sum(one.warm_up_steps for one in firsts)
    first = sum(one.in_warm_up.total for one in firsts) / many
    typical = mean_typical_step(workers.values()).total
    if first < LONGER * typical:
        return []
    name = "the first step" if many == len(firsts) else "the first step after each start"
    return [f"{name} took {show_seconds(first)}, {first / typical:.2g} times as long"]


def _whole_time(present: list[Totals]) -> list[str]:
    steps = sum(one.in_steps.total + one.in_warm_up.total for one in present)
    whole = steps + sum(sum(one.outside.values()) for one in present)
    if whole <= steps:
        return []
    sums = {"steps": steps}
    for kind, name in OUTSIDE.items():
        sums[name] = sum(one.outside.get(kind, 0.0) for one in present)
    shown = {name: seconds for name, seconds in sums.items() if seconds >= MENTIONED * whole}
    if (rest := whole - sum(shown.values())) >= MENTIONED * whole:
        shown["rest"] = rest
    parts = ", ".join(f"{name} {show_seconds(seconds / len(present))}" for name, seconds in shown.items())
    return wrap(f"a worker's {show_seconds(whole / len(present))}: {parts}", 80, subsequent_indent="  ")


def _staleness(servers: Sequence[ServerTotals], blocks: bool) -> list[str]:
    counts = servers[0].staleness
    gradients = sum(counts.values())
    if not gradients:
        return []
    where = f" (server 0 of {len(servers)})" if len(servers) > 1 else ""
    mean = sum(staleness * number for staleness, number in counts.items()) / gradients
    missed = counted(float(f"{mean:.3g}"), "update")
    lines = [f"a gradient missed {missed} on average, {max(counts):,} at most{where}"]
    if len(counts) == 1:
        return lines
    lines.append(_server_line("updates missed", "gradients", "%"))
    rows = histogram(counts)
    percents = rounded_to_add_up([100 * number / gradients for number in rows.values()], 0)
    for (title, number), share in zip(rows.items(), percents, strict=True):
        shown = "<1 %" if number and not share else f"{share:.0f} %"
        picture = bar(number / max(rows.values()), 24, blocks)
        lines.append(f"{_server_line(f'  {title}', f'{number:,}', shown)}  {picture}".rstrip())
    return lines


def histogram(counts: Mapping[int, int]) -> dict[str, int]:
    """A row a value; where that is more than MOST_ROWS, equal ranges for the bulk and one row for each far tail."""
    low, high, width = min(counts), max(counts), 1
    if high - low >= MOST_ROWS:
        low, high = _quantile(counts, TAIL), _quantile(counts, 1 - TAIL)
        widths = (step * 10**power for power in count() for step in (1, 2, 5))
        width = next(width for width in widths if high // width - low // width < MOST_ROWS - 2)
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
    values = sorted(counts)
    below = list(accumulate(counts[value] for value in values))
    return values[bisect_left(below, share * below[-1])]


def _waiting(totals: Sequence[Totals]) -> list[str]:
    trained = {f"rank {rank}": one for rank, one in enumerate(totals) if one.steps}
    waited = {name: one.seconds["wait"] / (sum(one.seconds.values()) or 1.0) for name, one in trained.items()}
    if len(trained) < 2 or max(waited.values()) < 0.005:
        return []
    most, steps = max(waited, key=lambda name: waited[name]), [one.steps for one in trained.values()]
    alike = waited[most] - min(waited.values()) < ALIKE
    if alike and max(steps) - min(steps) < ALIKE * max(steps):
        return [f"each worker waited about {100 * waited[most]:.0f} % of its time for others"]
    lines = [f"{most} waited longest for others, {100 * waited[most]:.0f} % of its time"]
    lines.append(_server_line("worker", "steps", "waited", "%"))
    fast, slow = (pick(trained, key=lambda name: trained[name].typical.compute) for pick in (min, max))
    marks = {fast: ", fastest", slow: ", slowest"} if len(trained) > MOST_WORKERS else {}
    longest = sorted(waited, key=lambda name: -waited[name])
    shown = list(dict.fromkeys([*marks, *longest]))[:MOST_WORKERS]
    for name in (name for name in waited if name in shown):
        seconds = trained[name].seconds["wait"]
        cells = (f"{trained[name].steps:,}", show_seconds(seconds) if seconds else "-")
        lines.append(_server_line(f"  {name}{marks.get(name, '')}", *cells, f"{100 * waited[name]:.0f} %"))
    if left := len(trained) - len(shown):
        lines.append(f"  {left:,} more that waited less {'is' if left == 1 else 'are'} left out")
    return lines


def _server_line(name: str, *cells: str) -> str:
    return f"{name:<18}" + "".join(cell.rjust(width) for cell, width in zip(cells, (11, 9, 7), strict=False))


def _served(servers: Sequence[ServerTotals]) -> list[str]:
    first = servers[0]
    updates = [server.updates for server in servers]
    several = " a server" if len(set(updates)) > 1 else ""
    dropped = f"; {first.pushes - first.used:,} more dropped" if first.pushes > first.used else ""
    lines = [f"{_range(updates, 'update')}{several} from {counted(first.used, 'gradient')}{dropped}"]
    deepest = max(server.depth_max for server in servers)
    if deepest > 1:
        mean = sum(server.depth_sum for server in servers) / sum(server.messages for server in servers)
        whose = "a server's" if len(servers) > 1 else "the server's"
        lines.append(f"{whose} queue: {mean:.3g} messages on average, {deepest:,} at most")
    refused: Counter[str] = sum((Counter(server.refused) for server in servers), Counter())
    if refused:
        reasons = ", ".join(f"{why} {number:,}" for why, number in sorted(refused.items()))
        lines.append(f"refused at the socket: {reasons}")
    changes = [str(one) for one in first.changes if one.how != "finished"]
    if len(changes) > MOST_CHANGES:
        changes[MOST_CHANGES:] = [f"and {len(changes) - MOST_CHANGES:,} more that joined, left or died"]
    return lines + changes
