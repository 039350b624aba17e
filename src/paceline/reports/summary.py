"""The end of a run in a few lines: the result, where a typical step's time went, what else it took."""

from collections.abc import Iterable
from textwrap import wrap

from paceline.records.spans import StepBreakdown, Totals
from paceline.records.summary import Summary
from paceline.reports.staleness import served_lines
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
OUTSIDE = {
    "start": "start",
    "evaluate": "evaluation",
    "checkpoint": "checkpoints",
    "communicate": "communication",
    "wait": "waiting for others",
    "unfinished": "unfinished steps",
}
"""What a worker's time outside of steps is called; other kinds, and shares below MENTIONED, are the rest."""
MENTIONED = 0.001
UNEVEN = 1.3
"""How much longer the slowest worker computes than the fastest before both are shown."""
ATYPICAL = 1.05
"""How much longer the mean step is than the typical one before it is shown as well."""
LONGER = 1.2
"""How much longer than the typical step the first one is before it is mentioned."""


def summary_text(summary: Summary, folder: str | None = None, blocks: bool = True, timed: bool = True) -> str:
    """Return the whole text; bars are ASCII without ``blocks``, and a replay's steps are not ``timed``."""
    workers = {rank: totals for rank, totals in enumerate(summary.totals) if totals.steps}
    lines = [_result(summary, workers.values()) + (f"; {folder}" if folder else "")]
    if workers and timed:
        lines += ["", *_table(workers, blocks), *_amounts(summary, workers.values())]
    elif workers:
        lines.append(_work(summary))
    lines += served_lines(summary, blocks)
    if damaged := sum(one.damaged for one in summary.totals) + sum(one.damaged for one in summary.servers):
        lines.append(f"{counted(damaged, 'line')} of the record could not be read; no sum includes them")
    return "\n".join(lines)


def _result(summary: Summary, workers: Iterable[Totals]) -> str:
    simulated = "simulated: " if summary.runtime == "virtual" else ""
    took = show_seconds(summary.seconds)
    losses = [name for name in ("test_loss", "train_loss") if name in summary.final]
    if summary.ending in ("interrupted", "failed"):
        text = f"{summary.ending} at step {summary.steps:,} (epoch {summary.epochs:.2f}) after {took}"
    elif "accuracy" in summary.final:
        text = _accuracy(summary, took)
    elif losses:
        text = f"ended at a {losses[0].replace('_', ' ')} of {summary.final[losses[0]]:.4f} after {took}"
    else:
        text = f"{counted(summary.steps, 'step')} in {took}"
        if workers:
            text += f", {show_seconds(_mean_of(one.typical for one in workers).total)} a step"
    return simulated + text


def _accuracy(summary: Summary, took: str) -> str:
    accuracy = f"{summary.final['accuracy']:.4f}"
    if summary.target is None:
        return f"ended at {accuracy} after {took}"
    if summary.target_seconds is None:
        return f"ended at {accuracy} after {took} ({percent(summary.target)} not reached)"
    return f"reached {accuracy} in {took} ({percent(summary.target)} after {show_seconds(summary.target_seconds)})"


def _table(workers: dict[int, Totals], blocks: bool) -> list[str]:
    """The typical step in parts that add up; the mean one, the fastest and the slowest worker where they differ."""
    typical, mean = (
        _mean_of(getattr(one, which) for one in workers.values()) for which in ("typical", "mean")
    )
    digits = _digits(1e3 * typical.total)
    columns = {"ms": _milliseconds(typical, digits), "%": _percents(typical)}
    if mean.total > ATYPICAL * typical.total:
        columns["mean ms"] = _milliseconds(mean, digits)
    fast, slow = (pick(workers, key=lambda rank: workers[rank].typical.compute) for pick in (min, max))
    least, most = (workers[rank].typical.compute for rank in (fast, slow))
    uneven = bool(least) and most > UNEVEN * least
    for rank in (fast, slow) if uneven else ():
        columns[f"rank {rank}"] = _milliseconds(workers[rank].typical, digits)
    width = {2: 24, 3: 18, 4: 12}.get(len(columns), 6)
    bars = [bar(part / typical.total if typical.total else 0.0, width, blocks) for part in _parts(typical)]
    if typical.hidden:
        place = list(PARTS).index("communicate")
        bars[place] = f"{bars[place]} ({1e3 * typical.hidden:.{digits}f} hidden)".lstrip()
    lines = [_line("where a step went", columns)]
    exchanged = any(
        step.communicate or step.wait for one in workers.values() for step in (one.typical, one.mean)
    )
    for kind, *cells, picture in zip([*PARTS, "step"], *columns.values(), [*bars, ""], strict=True):
        if exchanged or kind not in ("communicate", "wait"):
            lines.append(_line(f"  {PARTS.get(kind, 'typical step')}", cells, picture))
    if uneven:
        lines.append(f"rank {slow} computes {most / least:.3g} times as long as rank {fast}")
    return lines


def _mean_of(steps: Iterable[StepBreakdown]) -> StepBreakdown:
    every = list(steps)
    return sum(every, StepBreakdown()) * (1 / len(every))


def _parts(step: StepBreakdown) -> list[float]:
    return [getattr(step, kind) for kind in PARTS]


def _line(name: str, cells: Iterable[str], picture: str = "") -> str:
    numbers = "".join(cell.rjust(width) for cell, width in zip(cells, (9, 7, 9, 9, 9), strict=False))
    return f"{name:<17}{numbers}  {picture}".rstrip()


def _digits(milliseconds: float) -> int:
    """Decimals that give a step of any length three to five figures."""
    limits = ((4, 0.1), (3, 1), (2, 100), (1, 1000))
    return next((digits for digits, limit in limits if milliseconds < limit), 0)


def _milliseconds(step: StepBreakdown, digits: int) -> list[str]:
    rounded = rounded_to_add_up([1e3 * part for part in _parts(step)], digits)
    return [f"{value:.{digits}f}" for value in [*rounded, sum(rounded)]]


def _percents(step: StepBreakdown) -> list[str]:
    shares = [100 * part / step.total if step.total else 0.0 for part in _parts(step)]
    return [f"{share:.0f} %" for share in [*rounded_to_add_up(shares, 0), 100.0 if step.total else 0.0]]


def _amounts(summary: Summary, workers: Iterable[Totals]) -> list[str]:
    """Work, where a worker's whole time went, traffic, CPU and memory."""
    rate = sum(one.samples_per_second for one in workers)
    sent = sum(one.step_sent for one in workers) / sum(one.steps for one in workers)
    used = f"sent {show_bytes(sent)} a step and worker" if sent else "sent nothing"
    if summary.cpu_percent is not None and summary.memory_bytes is not None:
        memory = show_bytes(summary.memory_bytes)
        used += f"; a worker used {summary.cpu_percent:.0f} % of a core and {memory}"
    work = f"{_work(summary)}, {rate:,.0f} samples/s"
    return [work, *_first_step(workers), *_whole_time(_present(summary)), used]


def _present(summary: Summary) -> list[Totals]:
    """All workers that took part, including those that finished no step."""
    return [one for one in summary.totals if one.steps or any(one.seconds.values())]


def _work(summary: Summary) -> str:
    fewest, most = (pick(one.steps for one in _present(summary)) for pick in (min, max))
    steps = counted(most, "step") if fewest == most else f"{fewest:,} to {most:,} steps"
    return f"{steps} a worker, {counted(summary.epochs, 'epoch')}"


def _first_step(workers: Iterable[Totals]) -> list[str]:
    firsts = [one for one in workers if one.warm_up_steps]
    if not firsts:
        return []
    if all(one.steps == one.warm_up_steps for one in firsts):
        return ["no step but the first, which allocates memory: train for longer to see a typical one"]
    many = sum(one.warm_up_steps for one in firsts)
    first = sum(one.in_warm_up.total for one in firsts) / many
    typical = _mean_of(one.typical for one in workers).total
    if first < LONGER * typical:
        return []
    name = "the first step" if many == len(firsts) else "the first step after each start"
    return [f"{name} took {show_seconds(first)}, {first / typical:.2g} times as long"]


def _whole_time(present: list[Totals]) -> list[str]:
    """The mean of all workers' time, in parts that add up."""
    sums = {"steps": sum(one.in_steps.total + one.in_warm_up.total for one in present)}
    for one in present:
        for kind, seconds in one.outside.items():
            name = OUTSIDE.get(kind, "rest")
            sums[name] = sums.get(name, 0.0) + seconds
    whole = sum(sums.values())
    if whole <= sums["steps"]:
        return []
    names = [name for name in ("steps", *OUTSIDE.values()) if sums.get(name, 0.0) >= MENTIONED * whole]
    parts = {name: sums[name] for name in names}
    if (rest := whole - sum(parts.values())) >= MENTIONED * whole:
        parts["rest"] = rest
    shown = ", ".join(f"{name} {show_seconds(seconds / len(present))}" for name, seconds in parts.items())
    return wrap(f"a worker's {show_seconds(whole / len(present))}: {shown}", 80, subsequent_indent="  ")
