"""The end of a run in a few lines: the answer, where a step's time went, what else it took."""

from dataclasses import dataclass

from paceline.records.spans import Totals
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
"""The kinds of time that a step is made of; evaluations and checkpoints lie between steps."""

COMPUTE = ("data", "forward", "backward", "apply")
UNEVEN = 1.3
"""How much longer the slowest worker computes than the fastest before both are shown."""


def summary_text(summary: Summary, folder: str | None = None, blocks: bool = True) -> str:
    """The whole text, without a last line break; ``blocks`` says whether the bars may be more than ASCII."""
    workers = [Worker.of(rank, totals) for rank, totals in enumerate(summary.totals) if totals.steps]
    lines = [_answer(summary, workers) + (f"; {folder}" if folder else "")]
    if workers:
        lines += ["", *_table(workers, blocks), *_amounts(summary, workers)]
    lines += served_lines(summary, blocks)
    damaged = sum(one.damaged for one in summary.totals) + sum(one.damaged for one in summary.servers)
    if damaged:
        lines.append(
            f"{counted(damaged, 'line')} of the record could not be read; what was there is in no sum"
        )
    return "\n".join(lines)


@dataclass(frozen=True)
class Worker:
    """One worker's mean step."""

    rank: int
    parts: tuple[float, ...]
    """Seconds, in the order of PARTS."""
    compute: float
    hidden: float
    totals: Totals

    @classmethod
    def of(cls, rank: int, totals: Totals) -> "Worker":
        """Divide a worker's totals by its steps."""
        mean = {kind: seconds / totals.steps for kind, seconds in totals.seconds.items()}
        return cls(
            rank=rank,
            parts=tuple(mean[kind] for kind in PARTS),
            compute=sum(mean[kind] for kind in COMPUTE),
            hidden=totals.hidden / totals.steps,
            totals=totals,
        )

    @property
    def samples_per_second(self) -> float:
        """While it trains: evaluations and checkpoints do not count."""
        training = sum(self.parts) * self.totals.steps
        return self.totals.samples / training if training else 0.0


def _answer(summary: Summary, workers: list[Worker]) -> str:
    simulated = "simulated: " if summary.runtime == "virtual" else ""
    took = show_seconds(summary.seconds)
    if summary.ending in ("interrupted", "failed"):
        return (
            f"{simulated}{summary.ending} at step {summary.steps:,} (epoch {summary.epochs:.2f}) after {took}"
        )
    if "accuracy" in summary.final:
        return f"{simulated}{_accuracy(summary, took)}"
    for loss in ("test_loss", "train_loss"):
        if loss in summary.final:
            what = loss.replace("_", " ")
            return f"{simulated}ended at a {what} of {summary.final[loss]:.4f} after {took}"
    steps = f"{simulated}{counted(summary.steps, 'step')} in {took}"
    if not workers:
        return steps
    return f"{steps}, {show_seconds(sum(sum(worker.parts) for worker in workers) / len(workers))} a step"


def _accuracy(summary: Summary, took: str) -> str:
    accuracy = f"{summary.final['accuracy']:.4f}"
    if summary.target is None:
        return f"ended at {accuracy} after {took}"
    if summary.target_seconds is None:
        return f"ended at {accuracy} after {took} ({percent(summary.target)} not reached)"
    return f"reached {accuracy} in {took} ({percent(summary.target)} after {show_seconds(summary.target_seconds)})"


def _table(workers: list[Worker], blocks: bool) -> list[str]:
    """A worker's mean step in parts that add up; the fastest and the slowest beside it where they differ."""
    mean = [sum(values) / len(workers) for values in zip(*(worker.parts for worker in workers), strict=True)]
    step = sum(mean)
    digits = _digits(1e3 * step)
    columns = [_milliseconds(mean, digits), [f"{share:.0f} %" for share in _percents(mean)]]
    titles = ["ms", "%"]
    fast, slow = (pick(workers, key=lambda worker: worker.compute) for pick in (min, max))
    uneven = slow.compute > UNEVEN * fast.compute
    for worker in (fast, slow) if uneven else ():
        columns.append(_milliseconds(worker.parts, digits))
        titles.append(f"rank {worker.rank}")
    width = 12 if uneven else 24
    drawn = [bar(part / step if step else 0.0, width, blocks) for part in mean]
    hidden = sum(worker.hidden for worker in workers) / len(workers)
    if hidden:
        place = list(PARTS).index("communicate")
        drawn[place] = f"{drawn[place]} ({1e3 * hidden:.{digits}f} hidden)".lstrip()
    lines = [_line("where a step went", titles, "")]
    names = [f"  {name}" for name in PARTS.values()]
    for name, *cells, picture in zip([*names, "  step"], *columns, [*drawn, ""], strict=True):
        lines.append(_line(name, cells, picture))
    if uneven:
        ratio = slow.compute / fast.compute
        lines.append(f"rank {slow.rank} computes {ratio:.3g} times as long as rank {fast.rank}")
    return lines


def _line(name: str, cells: list[str], picture: str) -> str:
    widths = (9, 7, 9, 9)
    numbers = "".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=False))
    return f"{name:<17}{numbers}  {picture}".rstrip()


def _digits(milliseconds: float) -> int:
    """Decimals that give a step of any length three to five figures."""
    return next(
        (digits for digits, limit in ((4, 0.1), (3, 1), (2, 100), (1, 1000)) if milliseconds < limit), 0
    )


def _milliseconds(parts: "list[float] | tuple[float, ...]", digits: int) -> list[str]:
    rounded = rounded_to_add_up([1e3 * part for part in parts], digits)
    return [f"{value:.{digits}f}" for value in [*rounded, sum(rounded)]]


def _percents(parts: list[float]) -> list[float]:
    step = sum(parts)
    return (
        [*rounded_to_add_up([100 * part / step for part in parts], 0), 100.0]
        if step
        else [0.0] * (len(parts) + 1)
    )


def _amounts(summary: Summary, workers: list[Worker]) -> list[str]:
    """Work, time outside of steps, traffic, CPU and memory: a line each where there is something to say."""
    rate = sum(worker.samples_per_second for worker in workers)
    lines = [f"{_steps(summary, workers)}, {counted(summary.epochs, 'epoch')}, {rate:,.0f} samples/s"]
    between = {
        name: sum(worker.totals.seconds[kind] for worker in workers) / len(workers)
        for kind, name in (("evaluate", "evaluation"), ("checkpoint", "checkpoints"))
    }
    if any(between.values()):
        lines.append("between steps: " + ", ".join(f"{n} {show_seconds(s)}" for n, s in between.items() if s))
    sent = sum(worker.totals.sent for worker in workers) / sum(worker.totals.steps for worker in workers)
    used = [f"sent {show_bytes(sent)} a step and worker" if sent else "sent nothing"]
    if summary.cpu_percent is not None and summary.memory_bytes is not None:
        memory = show_bytes(summary.memory_bytes)
        used.append(f"a worker used {summary.cpu_percent:.0f} % of a core and {memory}")
    return [*lines, "; ".join(used)]


def _steps(summary: Summary, workers: list[Worker]) -> str:
    fewest, most = (pick(worker.totals.steps for worker in workers) for pick in (min, max))
    if fewest == most:
        return f"{counted(summary.steps, 'step')} a worker"
    return f"{fewest:,} to {most:,} steps a worker"
