"""What a prediction says, a sentence each: the answer first, then why, then what would help."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from shlex import quote

from paceline.reports.text import counted, percent
from paceline.studies.predict.prediction import (
    BandwidthNeed,
    Findings,
    Knee,
    Limit,
    Memory,
    Prediction,
    PredictionRow,
    SettingValue,
    StrategyPrediction,
    WorkerRange,
)
from paceline.units import show_bytes, show_rate, show_seconds

LIMITS: Mapping[str, str] = {
    "compute": "computing itself",
    "codec": "encoding and decoding",
    "encryption": "encryption of messages to servers",
    "server": "the server",
    "straggler": "waiting for the slowest worker",
}
PLACES: Mapping[str, str] = {"network": "of the network", "inside": "inside the host"}
LINKS: Mapping[str, str] = {"network": "the network", "inside": "the link inside the host"}
Rows = Sequence[PredictionRow]
CLOSE = 16
"""A knee beyond this multiple of the largest requested number of workers is shown without a number."""


def verdict(prediction: Prediction) -> str:
    """The answer in a sentence or two: faster or slower than one worker, by how much and because of what."""
    if len(prediction.series) > 1:
        return _winners(prediction)
    (series,) = prediction.series
    rows, found = series.rows, _found(series)
    slower = [row for row in rows if row.workers > 1 and row.speed_up < 1]
    if found.limit is None:
        answer = f"One worker takes {show_seconds(rows[0].step)} a step: {rows[0].rate:,.4g} samples/s."
    elif slower:
        answer = _slower(slower, rows, found, found.limit)
    else:
        answer = _faster(rows, found, found.limit)
    if rows[0].workers == 1 and abs(rows[0].speed_up - 1) > 0.005:  # servers, learners, clients
        answer += (
            f" One worker with {series.strategy} is {times(rows[0].speed_up)} as fast as in plain training."
        )
    return answer


def _found(series: StrategyPrediction) -> Findings:
    assert series.findings is not None, "Paleo's model has a table of its own"
    return series.findings


def _slower(slower: Rows, rows: Rows, found: Findings, limit: Limit) -> str:
    shown = [f"{counted(row.workers, 'worker')} ({times(row.speed_up)})" for row in slower]
    words = f"{shown[0]} to {shown[-1]}" if len(shown) > 3 else ", ".join(shown)
    parts = [f"{counted(limit.workers, 'worker')} are limited by {limit_words(limit)}"]
    if not found.slower.open and found.slower.workers >= slower[-1].workers:
        parts.append(f"from {_workers(found.slower.workers + 1)} on it is faster")
    elif found.slower.open and found.slower.searched > rows[-1].workers:
        parts.append(f"no number of workers up to {found.slower.searched:,} is faster")
    best = max(rows, key=lambda row: row.speed_up)
    if best.workers > 1 and best.speed_up >= 1:
        parts.append(_one(best))
    return f"Slower than one worker: {words}; {'; '.join(parts)}."


def _faster(rows: Rows, found: Findings, limit: Limit) -> str:
    """By how much the largest number is faster, and what keeps it from more where that is little."""
    before, last = rows[-2:] if len(rows) > 1 else (rows[0], rows[0])
    answer = f"Faster than one worker: {_one(last)}"
    if found.well.workers < last.workers:
        answer += f", limited by {limit_words(limit)}"
        if found.well.workers:
            answer += f"; 80 % efficiency up to {_workers(found.well.workers)}"
    best = max(rows, key=lambda row: row.rate)
    if best.workers > 1 and best.rate > 1.02 * last.rate:
        answer += f"; fewer are faster: {_one(best)}"
    gain = last.rate / before.rate
    if before.workers > 1 and gain <= 0.8 * last.workers / before.workers:
        answer += f"; {last.workers:,} workers are {times(gain)} as fast as {before.workers:,}"
    return f"{answer}."


def _winners(prediction: Prediction) -> str:
    best = []
    for place in range(len(prediction.workers)):
        rows = [(series.strategy, series.rows[place]) for series in prediction.series]
        best.append(max(rows, key=lambda one: one[1].rate))
    words = []
    for strategy, group in groupby(best, key=lambda one: one[0]):
        counts = [row.workers for _, row in group]
        many = counted(counts[-1], "worker")
        words.append(f"{strategy} with {many if len(counts) == 1 else f'{counts[0]:,} to {many}'}")
    slow = [f"{row.workers:,}" for _, row in best if row.workers > 1 and row.speed_up < 1]
    also = f" No strategy makes {' or '.join(slow)} workers as fast as one." if slow else ""
    return f"Fastest in samples a second: {', '.join(words)}.{also}"


def misfit(prediction: Prediction) -> str | None:
    """That it does not fit, and what does; None where all numbers of workers and all strategies fit."""
    short = [
        (row.memory, row, series.strategy)
        for series in prediction.series
        for row in series.rows
        if row.memory is not None and not row.memory.fits
    ]
    if not short:
        return None
    memory, row, strategy = max(short, key=lambda one: one[0].needed)
    which = ""
    if len(short) < len(prediction.workers) * len(prediction.series):
        which = f" with {counted(row.workers, 'worker')} by {strategy}"
    several = "the workers of a host need" if memory.needed > memory.total else "a worker needs"
    does = f"not even batch 1 fits, which needs {show_bytes(memory.least or memory.needed)}"
    if memory.largest:
        does = f"batch {memory.largest:,} is the largest that fits"
    needed = f"{several} {show_bytes(memory.needed)} with batch {row.batch:,}"
    return f"Does not fit{which}: {needed}, {_has(memory)}; {does}."


def memory_parts(memory: Memory) -> str:
    parts = {
        "activations": memory.activations,
        "parameters": memory.parameters,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "workspace": memory.workspace,
        "messages": memory.exchange,
        "torch itself": memory.base,
    }
    words = ", ".join(f"{name} {show_bytes(size)}" for name, size in parts.items() if size)
    server = "" if memory.server is None else f"; a server needs {show_bytes(memory.server)}"
    return f"a worker needs {show_bytes(memory.total)} ({words}){server}; {_has(memory)}"


def _has(memory: Memory) -> str:
    if memory.capacity is None:
        return f"how much {memory.device} has is not known ({typed(('memory', 'SIZE'))})"
    return f"{memory.device} has {show_bytes(memory.capacity)} ({memory.capacity / 2**30:.3g} GiB)"


def findings(series: StrategyPrediction) -> list[str]:
    """The knee, the bandwidth and the crossover, then what would fit or help; of one worker, what fits."""
    found, lines = _found(series), []
    if series.settled:
        lines.append(
            f"Settled: this is of the steps after the first {series.settled:,}; before, workers exchange more often."
        )
    if found.limit is not None:
        if any(row.workers > 1 and row.speed_up >= 1 for row in series.rows):
            lines.append(_knee(found.knee, series.rows[-1].workers))
        if found.bandwidth is not None:
            lines.append(_bandwidth(found.bandwidth))
        lines.append(_crossover(found.crossover))
    lines += [
        f"What would fit: {typed(*one.change)} needs {show_bytes(one.needed)} of {show_bytes(one.capacity)}; "
        f"{counted(one.workers, 'worker')}: {one.rate:,.4g} samples/s."
        for one in found.fits
    ]
    lines += [
        f"What would help: {typed(*one.change)} makes {one.workers:,} workers {times(one.gain)} as fast as now, "
        f"{times(one.speed_up)} one worker."
        for one in found.helps
    ]
    return lines


def limit_words(limit: Limit) -> str:
    """What is in the way; a link with its name and its figure, as 'paceline networks' has them."""
    if limit.cipher:
        return f"{LIMITS[limit.bound]} ({show_rate(limit.cipher)} per process)"
    if limit.wire is None:
        return "the server's own work" if limit.bound == "server" else LIMITS[limit.bound]
    figure = show_seconds(limit.wire.latency) if limit.bound == "latency" else show_rate(limit.wire.bandwidth)
    name = limit.wire.name
    shown = name if figure in name else f"{name}, {figure}" if name else figure
    link = "the server's link" if limit.bound == "server" else _link(limit.bound, limit.wire.where)
    return f"{link} ({shown})"


def _link(bound: str, where: str) -> str:
    return LIMITS.get(bound) or f"the {bound} {PLACES[where]}"


def _knee(knee: Knee, asked: int) -> str:
    reach = knee.reach
    weak = "" if knee.dip is None else f" (less also from {knee.dip:,} to {2 * knee.dip:,})"
    limited = f"limited by {_link(knee.bound, knee.where)}"
    if reach.workers <= asked and not reach.open:
        there = _workers(max(1, reach.workers))
        return f"Knee: {there}; beyond it doubling gives less than 1.5x, {limited}{weak}."
    beyond = ""
    if not reach.open and reach.workers <= CLOSE * asked:
        beyond = f"; beyond what was asked it ends at {_workers(reach.workers)}, {limited}"
    return f"Knee: none up to {counted(asked, 'worker')}; doubling gives at least 1.5x{weak}{beyond}."


def _bandwidth(found: BandwidthNeed) -> str:
    enough = "no bandwidth" if found.needed is None else show_rate(found.needed)
    left = f" (an unlimited one leaves {show_seconds(found.left)} a step)" if found.needed is None else ""
    there = f"{LINKS[found.wire.where]} has {show_rate(found.wire.bandwidth)}"
    return f"Bandwidth: {enough} makes {found.workers:,} workers compute-bound{left}; {there}."


def _crossover(reach: WorkerRange) -> str:
    if reach.open:
        many = counted(reach.searched, "worker")
        return f"Crossover: up to {many} computing takes longer than communication."
    return f"Crossover: from {_workers(reach.workers + 1)} on communication takes longer than computing."


def typed(*settings: SettingValue) -> str:
    """Settings as they are typed on the command line."""
    return " ".join(f"--{name.replace('_', '-')} {quote(value)}" for name, value in settings)


def _one(row: PredictionRow) -> str:
    efficiency = percent(round(row.efficiency, 2))
    return f"{counted(row.workers, 'worker')} are {times(row.speed_up)} as fast ({efficiency} efficiency)"


def times(factor: float) -> str:
    """A factor with two or three figures: 0.026x, 0.68x, 20.5x, 1,020x."""
    if factor < 0.1:
        return f"{factor:.2g}x"
    return f"{factor:.2f}x" if factor < 10 else f"{factor:.3g}x" if factor < 100 else f"{factor:,.0f}x"


def _workers(count: int) -> str:
    """A number that was found; above a thousand, to a hundredth only."""
    return counted(count, "worker") if count <= 1000 else f"about {float(f'{count:.2g}'):,.0f} workers"
