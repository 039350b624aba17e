"""The end of a run in a few lines: the answer, where a typical step's time went, what else it took."""

from dataclasses import dataclass
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
"""The kinds of time that a step is made of; evaluations and checkpoints lie between steps."""

EXCHANGE = ("communicate", "wait")
UNEVEN = 1.3
"""How much longer the slowest worker computes than the fastest before both are shown."""
ATYPICAL = 1.05
"""How much longer the mean step is than the typical one before its parts are shown as well."""
LONGER = 1.2
"""How much longer than the typical step the first one is before it is told."""

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


def summary_text(summary: Summary, folder: str | None = None, blocks: bool = True, timed: bool = True) -> str:
    """The whole text, without a last line break; ``blocks`` says whether the bars may be more than ASCII.

    Where steps are not ``timed``, as in a replay, nothing is said of where their time went.
    """
    workers = [WorkerSteps.of(rank, totals) for rank, totals in enumerate(summary.totals) if totals.steps]
    lines = [_answer(summary, workers) + (f"; {folder}" if folder else "")]
    if workers and timed:
        lines += ["", *_table(workers, blocks), *_amounts(summary, workers)]
    elif workers:
        lines.append(_work(summary))
    lines += served_lines(summary, blocks)
    damaged = sum(one.damaged for one in summary.totals) + sum(one.damaged for one in summary.servers)
    if damaged:
        lines.append(
            f"{counted(damaged, 'line')} of the record could not be read; what was there is in no sum"
        )
    return "\n".join(lines)


@dataclass(frozen=True)
class WorkerSteps:
    """What the steps of one worker took."""

    rank: int
    typical: StepBreakdown
    mean: StepBreakdown
    """The first step of a process is not in it unless there is no other."""
    totals: Totals

    @classmethod
    def of(cls, rank: int, totals: Totals) -> "WorkerSteps":
        """Read the totals of a worker that has finished a step."""
        later = totals.steps - totals.warm_up_steps
        mean = totals.in_steps * (1 / later) if later else totals.in_warm_up * (1 / totals.steps)
        return cls(rank, totals.typical, mean, totals)

    @property
    def exchanges(self) -> bool:
        return any(getattr(one, kind) for one in (self.typical, self.mean) for kind in EXCHANGE)

    @property
    def samples_per_second(self) -> float:
        """While it trains: neither the first step of a process nor what lies outside of steps counts."""
        totals = self.totals
        if totals.in_steps.total:
            return (totals.samples - totals.warm_up_samples) / totals.in_steps.total
        return totals.samples / totals.in_warm_up.total if totals.in_warm_up.total else 0.0


def _answer(summary: Summary, workers: list[WorkerSteps]) -> str:
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
    return f"{steps}, {show_seconds(_mean([worker.typical for worker in workers]).total)} a step"


def _accuracy(summary: Summary, took: str) -> str:
    accuracy = f"{summary.final['accuracy']:.4f}"
    if summary.target is None:
        return f"ended at {accuracy} after {took}"
    if summary.target_seconds is None:
        return f"ended at {accuracy} after {took} ({percent(summary.target)} not reached)"
    return f"reached {accuracy} in {took} ({percent(summary.target)} after {show_seconds(summary.target_seconds)})"


def _table(workers: list[WorkerSteps], blocks: bool) -> list[str]:
    """The typical step in parts that add up; the mean one, the fastest and the slowest worker where they differ."""
    typical, mean = (_mean([getattr(worker, which) for worker in workers]) for which in ("typical", "mean"))
    digits = _digits(1e3 * typical.total)
    columns = [_milliseconds(typical, digits), _percents(typical)]
    titles = ["ms", "%"]
    if mean.total > ATYPICAL * typical.total:
        columns.append(_milliseconds(mean, digits))
        titles.append("mean ms")
    fast, slow = (pick(workers, key=lambda worker: worker.typical.compute) for pick in (min, max))
    ratio = slow.typical.compute / fast.typical.compute if fast.typical.compute else 1.0
    for worker in (fast, slow) if ratio > UNEVEN else ():
        columns.append(_milliseconds(worker.typical, digits))
        titles.append(f"rank {worker.rank}")
    width = {2: 24, 3: 18, 4: 12}.get(len(titles), 6)
    drawn = [bar(part / typical.total if typical.total else 0.0, width, blocks) for part in _parts(typical)]
    if typical.hidden:
        place = list(PARTS).index("communicate")
        drawn[place] = f"{drawn[place]} ({1e3 * typical.hidden:.{digits}f} hidden)".lstrip()
    lines = [_line("where a step went", titles, "")]
    left_out = () if any(worker.exchanges for worker in workers) else EXCHANGE
    for kind, *cells, picture in zip([*PARTS, "step"], *columns, [*drawn, ""], strict=True):
        if kind not in left_out:
            lines.append(_line(f"  {PARTS.get(kind, 'typical step')}", cells, picture))
    if ratio > UNEVEN:
        lines.append(f"rank {slow.rank} computes {ratio:.3g} times as long as rank {fast.rank}")
    return lines


def _mean(steps: list[StepBreakdown]) -> StepBreakdown:
    return sum(steps, StepBreakdown()) * (1 / len(steps))


def _parts(step: StepBreakdown) -> list[float]:
    return [getattr(step, kind) for kind in PARTS]


def _line(name: str, cells: list[str], picture: str) -> str:
    widths = (9, 7, 9, 9, 9)
    numbers = "".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=False))
    return f"{name:<17}{numbers}  {picture}".rstrip()


def _digits(milliseconds: float) -> int:
    """Decimals that give a step of any length three to five figures."""
    return next(
        (digits for digits, limit in ((4, 0.1), (3, 1), (2, 100), (1, 1000)) if milliseconds < limit), 0
    )


def _milliseconds(step: StepBreakdown, digits: int) -> list[str]:
    rounded = rounded_to_add_up([1e3 * part for part in _parts(step)], digits)
    return [f"{value:.{digits}f}" for value in [*rounded, sum(rounded)]]


def _percents(step: StepBreakdown) -> list[str]:
    shares = [100 * part / step.total if step.total else 0.0 for part in _parts(step)]
    return [f"{share:.0f} %" for share in [*rounded_to_add_up(shares, 0), 100.0 if step.total else 0.0]]


def _amounts(summary: Summary, workers: list[WorkerSteps]) -> list[str]:
    """Work, where a worker's whole time went, traffic, CPU and memory: a line each where there is something to say."""
    rate = sum(worker.samples_per_second for worker in workers)
    lines = [f"{_work(summary)}, {rate:,.0f} samples/s"]
    lines += [*_first(workers), *_whole_time(_present(summary))]
    sent = sum(worker.totals.step_sent for worker in workers) / sum(worker.totals.steps for worker in workers)
    used = [f"sent {show_bytes(sent)} a step and worker" if sent else "sent nothing"]
    if summary.cpu_percent is not None and summary.memory_bytes is not None:
        memory = show_bytes(summary.memory_bytes)
        used.append(f"a worker used {summary.cpu_percent:.0f} % of a core and {memory}")
    return [*lines, "; ".join(used)]


def _present(summary: Summary) -> list[Totals]:
    """Of all who were there, also of one that finished no step."""
    return [one for one in summary.totals if one.steps or any(one.seconds.values())]


def _work(summary: Summary) -> str:
    fewest, most = (pick(one.steps for one in _present(summary)) for pick in (min, max))
    steps = (
        f"{counted(most, 'step')} a worker" if fewest == most else f"{fewest:,} to {most:,} steps a worker"
    )
    return f"{steps}, {counted(summary.epochs, 'epoch')}"


def _first(workers: list[WorkerSteps]) -> list[str]:
    firsts = [one.totals for one in workers if one.totals.warm_up_steps]
    if not firsts:
        return []
    if all(one.steps == one.warm_up_steps for one in firsts):
        return ["no step but the first, which allocates memory: train for longer to see a typical one"]
    many = sum(one.warm_up_steps for one in firsts)
    first = sum(one.in_warm_up.total for one in firsts) / many
    typical = _mean([one.typical for one in workers]).total
    if first < LONGER * typical:
        return []
    name = "the first step" if many == len(firsts) else "the first step after each start"
    return [f"{name} took {show_seconds(first)}, {first / typical:.2g} times as long"]


def _whole_time(present: list[Totals]) -> list[str]:
    """All of a worker's time, in the mean of those who were there: it adds up."""
    sums: dict[str, float] = {"steps": 0.0}
    for one in present:
        sums["steps"] += one.in_steps.total + one.in_warm_up.total
        for kind, seconds in one.outside.items():
            name = OUTSIDE.get(kind, "rest")
            sums[name] = sums.get(name, 0.0) + seconds
    whole = sum(sums.values())
    if whole <= sums["steps"]:
        return []
    named = [name for name in ("steps", *OUTSIDE.values()) if sums.get(name, 0.0) >= MENTIONED * whole]
    told = {name: sums[name] for name in named}
    if (rest := whole - sum(told.values())) >= MENTIONED * whole:
        told["rest"] = rest
    shown = ", ".join(f"{name} {show_seconds(seconds / len(present))}" for name, seconds in told.items())
    return wrap(f"a worker's {show_seconds(whole / len(present))}: {shown}", 80, subsequent_indent="  ")
