"""What a prediction says, a sentence each: the answer first, then why, then what would help."""

from collections.abc import Sequence
from types import MappingProxyType

from paceline.reports.text import counted, percent
from paceline.studies.predict.prediction import (
    BandwidthNeed,
    Findings,
    Fit,
    GatheringCodec,
    Limit,
    Memory,
    Prediction,
    PredictionRow,
    Reach,
    Setting,
    Speedup,
    StrategyPrediction,
    Wire,
)
from paceline.units import show_bytes, show_rate, show_seconds

LIMITS = MappingProxyType(
    {
        "compute": "computing itself",
        "codec": "encoding and decoding",
        "encryption": "encryption of messages to servers",
        "server": "the server",
        "straggler": "waiting for the slowest worker",
    }
)
PLACES = MappingProxyType({"network": "of the network", "inside": "inside the host"})

CLOSE = 16
"""A knee that is more than so many times beyond the largest number of workers that was asked about has no number."""


def verdict(prediction: Prediction) -> str:
    """The answer in a sentence or two: faster or slower than one worker, by how much and because of what."""
    if len(prediction.series) > 1:
        return _winners(prediction)
    (series,) = prediction.series
    assert series.findings is not None, "Paleo's model has a table of its own"
    if series.findings.limit is None:
        row = series.rows[0]
        served = _with_server([row] if _is_slower(row) else [])
        return f"One worker takes {show_seconds(row.step)} a step: {row.rate:,.4g} samples/s.{served}"
    slower = [row for row in series.rows if _is_slower(row)]
    faster = [row for row in series.rows if row.workers > 1 and row.speed_up >= 1]
    if not [row for row in slower if row.workers > 1]:
        return f"{_faster(faster, series.findings)}{_last_step(series)}{_with_server(slower)}"
    return f"{_slower(slower, series.findings)}{_pays_off(slower, faster, series.findings)}"


def _is_slower(row: PredictionRow) -> bool:
    """Slower than one worker that trains alone, as one with a server is; not by rounding."""
    return row.speed_up < (1 if row.workers > 1 else 0.995)


def _with_server(rows: Sequence[PredictionRow]) -> str:
    """That one worker with a server is slower than one without, where that is so."""
    return "".join(f" One worker with a server is {_times(row.speed_up)} as fast as without." for row in rows)


def misfit(prediction: Prediction) -> str | None:
    """That it does not fit, and what does; None where all numbers of workers and all strategies fit."""
    rows = [(series.strategy, row) for series in prediction.series for row in series.rows]
    short = [(strategy, row) for strategy, row in rows if not row.fits]
    if not short:
        return None
    strategy, row = max(short, key=lambda one: one[1].memory.needed if one[1].memory else 0.0)
    memory = row.memory
    assert memory is not None, "what knows nothing of memory fits"
    counts, strategies = {one.workers for _, one in short}, {one for one, _ in short}
    which = f" with {counted(row.workers, 'worker')}" if len(counts) < len(prediction.workers) else ""
    which += f" by {strategy}" if len(strategies) < len(prediction.series) else ""
    several = "the workers of a host need" if memory.needed > memory.total else "a worker needs"
    if memory.largest:
        does = f"batch {memory.largest:,} is the largest that fits"
    else:
        does = f"not even batch 1 fits, which needs {show_bytes(memory.least or memory.needed)}"
    needed = f"{several} {show_bytes(memory.needed)} with batch {row.batch:,}"
    return f"Does not fit{which}: {needed}, {_has(memory)}; {does}."


def memory_parts(memory: Memory) -> str:
    """What the memory of a worker is for, and how much there is."""
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
        return f"how much {memory.device} has is not known ({option(('memory', 'SIZE'))})"
    return f"{memory.device} has {show_bytes(memory.capacity)} ({memory.capacity / 2**30:.3g} GiB)"


def findings(series: StrategyPrediction) -> list[str]:
    """The knee, the bandwidth, the crossover and the codec, then what would fit or help; of one worker, what fits."""
    found = series.findings
    assert found is not None, "Paleo's model has a table of its own"
    fitting = [_fitting(one) for one in found.fits]
    if found.limit is None:
        return fitting
    lines = [] if found.bandwidth is None else [_bandwidth(found.bandwidth)]
    lines.append(_crossover(found.crossover))
    if any(row.workers > 1 and row.speed_up >= 1 for row in series.rows):
        lines.insert(0, _knee(found, series.rows[-1].workers))
    if found.gathering is not None:
        lines.append(_gathering(found.gathering, series.rows[-1].workers))
    return lines + fitting + [_help(one) for one in found.helps]


def _slower(rows: Sequence[PredictionRow], found: Findings) -> str:
    """Which numbers of workers are slower than one, by how much and why."""
    assert found.limit is not None, "of several workers there is a limit"
    why = f"limited by {limit_words(found.limit)}"
    if len(rows) == 1:
        (row,) = rows
        return f"{counted(row.workers, 'worker')} are slower than one: {_times(row.speed_up)} as fast, {why}"
    shown = rows if len(rows) <= 3 else (rows[0], rows[-1])
    speeds = [f"{counted(row.workers, 'worker')} ({_times(row.speed_up)})" for row in shown]
    words = " to ".join(speeds) if len(rows) > 3 else f"{', '.join(speeds[:-1])} and {speeds[-1]}"
    alone = " without a server" if rows[0].workers == 1 else ""
    return f"{words} are slower than one{alone}; {counted(found.limit.workers, 'worker')} are {why}"


def _pays_off(slower: Sequence[PredictionRow], faster: Sequence[PredictionRow], found: Findings) -> str:
    """From where on more workers are faster than one."""
    asked = max(row.workers for row in (*slower, *faster))
    if faster and slower[-1].workers < faster[0].workers and not found.slower.open:
        return f"; from {_workers(found.slower.workers + 1)} on it is faster: {_one(faster[-1])}."
    if faster:
        return f"; {_one(max(faster, key=lambda row: row.speed_up))}."
    if not found.slower.open:
        return f". It takes {_workers(found.slower.workers + 1)} to be faster than one."
    return (
        f". No number of workers up to {found.slower.searched:,} is faster than one."
        if found.slower.searched > asked
        else "."
    )


def _faster(rows: Sequence[PredictionRow], found: Findings) -> str:
    """By how much the largest number is faster, and what keeps it from more where that is little."""
    last, well = rows[-1], found.well.workers
    best = max(rows, key=lambda row: row.rate)
    peak = f"; fewer are faster: {_one(best)}" if best.rate > 1.02 * last.rate else ""
    if well >= last.workers or found.limit is None:
        return f"Faster than one worker: {_one(last)}{peak}."
    far = f"80 % efficiency up to {_workers(well)}" if well > 1 else "2 workers are below 80 % efficiency"
    return f"Faster than one worker: {_one(last)}, limited by {limit_words(found.limit)}{peak}; {far}."


def _one(row: PredictionRow) -> str:
    efficiency = percent(round(row.efficiency, 2))
    return f"{counted(row.workers, 'worker')} are {_times(row.speed_up)} as fast ({efficiency} efficiency)"


def _times(factor: float) -> str:
    """A factor with two or three figures: 0.026x, 0.68x, 20.5x, 1,020x."""
    if factor < 0.1:
        return f"{factor:.2g}x"
    return f"{factor:.2f}x" if factor < 10 else f"{factor:.3g}x" if factor < 100 else f"{factor:,.0f}x"


def limit_words(limit: Limit) -> str:
    """What is in the way; a link with its name and its figure, as 'paceline networks' has them."""
    if limit.cipher:
        return f"{LIMITS[limit.bound]} ({show_rate(limit.cipher)} a process)"
    if limit.wire is None:
        return "the server's own work" if limit.bound == "server" else LIMITS[limit.bound]
    figure = show_seconds(limit.wire.latency) if limit.bound == "latency" else show_rate(limit.wire.bandwidth)
    name = limit.wire.name
    shown = name if figure in name else f"{name}, {figure}" if name else figure
    link = "the server's link" if limit.bound == "server" else _link(limit.bound, limit.wire.where)
    return f"{link} ({shown})"


def _link(bound: str, where: str) -> str:
    """Bandwidth or latency, and of which link."""
    return LIMITS.get(bound) or f"the {bound} {PLACES[where]}"


def _last_step(series: StrategyPrediction) -> str:
    """What the last of the asked counts gains over the one before, in speed and in price."""
    if len(series.rows) < 2:
        return ""
    before, last = series.rows[-2:]
    faster, more = last.rate / before.rate, last.workers / before.workers
    if faster > 0.8 * more or before.workers == 1:  # against one worker the first sentence tells
        return ""
    price = ""
    if last.cost_million is not None and before.cost_million:
        price = f" and a sample costs {last.cost_million / before.cost_million:.2g}x as much"
    return f" {last.workers:,} workers are {_times(faster)} as fast as {before.workers:,}{price}."


def _winners(prediction: Prediction) -> str:
    """Which strategy is fastest, by ranges of worker counts, and where none is as fast as one worker."""
    counts = prediction.workers
    best = [
        max(prediction.series, key=lambda series: series.rows[place].rate) for place in range(len(counts))
    ]
    ranges: list[tuple[str, int, int]] = []
    for count, series in zip(counts, best, strict=True):
        if ranges and ranges[-1][0] == series.strategy:
            ranges[-1] = (series.strategy, ranges[-1][1], count)
        else:
            ranges.append((series.strategy, count, count))
    words = [f"{name} {_span(first, last)}" for name, first, last in ranges]
    rows = [series.rows[place] for place, series in enumerate(best)]
    slow = [f"{row.workers:,}" for row in rows if row.workers > 1 and row.speed_up < 1]
    also = f" No strategy makes {' or '.join(slow)} workers as fast as one." if slow else ""
    return f"Fastest in samples a second: {', '.join(words)}.{also}"


def _span(first: int, last: int) -> str:
    return f"with {counted(first, 'worker')}" if first == last else f"with {first:,} to {last:,} workers"


def _knee(found: Findings, asked: int) -> str:
    """Where doubling stops paying off; what lies beyond the numbers that were asked about is said to."""
    knee, weak = found.knee, _weak(found)
    limited = f"limited by {_link(knee.bound, knee.where)}"
    if knee.reach.workers < 1:
        return f"Knee: at 1 worker; two are less than 1.5x as fast, {limited}."
    if knee.reach.workers <= asked and not knee.reach.open:
        there = _workers(knee.reach.workers)
        return f"Knee: {there}; to there doubling gives at least 1.5x{weak}, beyond it is {limited}."
    beyond = ""
    if not knee.reach.open and knee.reach.workers <= CLOSE * asked:
        beyond = f"; beyond what was asked it ends at {_workers(knee.reach.workers)}, {limited}"
    return f"Knee: none up to {counted(asked, 'worker')}; doubling gives at least 1.5x{weak}{beyond}."


def _weak(found: Findings) -> str:
    """Where doubling gives less before the knee."""
    dip = found.knee.dip
    return "" if dip is None else f" (though not from {dip:,} to {2 * dip:,})"


def _bandwidth(found: BandwidthNeed) -> str:
    workers, there = (
        f"{found.workers:,} workers",
        f"{_subject(found.wire)} has {show_rate(found.wire.bandwidth)}",
    )
    if found.needed is None:
        return (
            f"Bandwidth: {there}; no bandwidth alone makes {workers} compute-bound, and an unlimited one leaves "
            f"{show_seconds(found.left)} a step."
        )
    if found.needed <= found.wire.bandwidth:
        return f"Bandwidth: {workers} are compute-bound; {there}, {show_rate(found.needed)} would do."
    return f"Bandwidth: {show_rate(found.needed)} would make {workers} compute-bound; {there}."


def _subject(wire: Wire) -> str:
    return "the network" if wire.where == "network" else "the link inside the host"


def _crossover(reach: Reach) -> str:
    if reach.open:
        return (
            f"Crossover: up to {counted(reach.searched, 'worker')} computing takes longer than communication."
        )
    return f"Crossover: from {_workers(reach.workers + 1)} on communication takes longer than computing."


def _gathering(found: GatheringCodec, most: int) -> str:
    faster = ""
    if found.slower is not None:
        where = f"with {most:,} workers" if found.slower == most else f"from {found.slower:,} workers on"
        faster = f"; {where} identity would be faster"
    return (
        f"Codec: {found.codec} messages cannot be summed on the way: every worker receives all, so traffic grows "
        f"with the workers{faster}."
    )


def _fitting(found: Fit) -> str:
    return (
        f"What would fit: {_typed(found.change)} needs {show_bytes(found.needed)} of {show_bytes(found.capacity)}; "
        f"{counted(found.workers, 'worker')}: {found.rate:,.4g} samples/s."
    )


def _help(found: Speedup) -> str:
    return (
        f"What would help: {_typed(found.change)} makes {found.workers:,} workers {_times(found.gain)} as fast as now, "
        f"{_times(found.speed_up)} one worker."
    )


def option(setting: Setting) -> str:
    """A setting as it is typed on the command line."""
    name, value = setting
    return f"--{name.replace('_', '-')} {value}"


def _typed(change: Sequence[Setting]) -> str:
    return " ".join(map(option, change))


def _workers(count: int) -> str:
    """A number that was found; above a thousand, to a hundredth only."""
    return counted(count, "worker") if count <= 1000 else f"about {float(f'{count:.2g}'):,.0f} workers"
