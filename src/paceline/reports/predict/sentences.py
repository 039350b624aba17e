"""What a prediction says, a sentence each: the answer first, then why, then what would help."""

from types import MappingProxyType

from paceline.records.prediction import Bandwidth, Findings, Gathering, Help, Prediction, Reach, Series
from paceline.reports.text import counted
from paceline.units import show_rate, show_seconds

LIMITS = MappingProxyType(
    {
        "compute": "computing itself",
        "bandwidth": "the network's bandwidth",
        "latency": "the network's latency",
        "codec": "encoding and decoding",
        "server": "the server",
        "straggler": "waiting for the slowest worker",
    }
)


def verdict(prediction: Prediction) -> str:
    """The answer in a sentence or two."""
    if len(prediction.series) > 1:
        return _winners(prediction)
    (series,) = prediction.series
    if len(series.rows) == 1 and series.rows[0].workers == 1:
        row = series.rows[0]
        return f"One worker takes {show_seconds(row.step)} a step: {row.rate:,.4g} samples/s."
    return f"{_scales(series.findings)}{_last_step(series)}"


def findings(series: Series) -> list[str]:
    """The knee, the bandwidth, the crossover and the codec; what would help comes last. Of one worker, nothing."""
    found = series.findings
    if found.bandwidth is None:
        return []
    lines = [_knee(found), _bandwidth(found.bandwidth), _crossover(found.crossover)]
    if found.gathering is not None:
        lines.append(_gathering(found.gathering, series.rows[-1].workers))
    return lines + [_help(one) for one in found.helps]


def _scales(found: Findings) -> str:
    well, knee = found.well, found.knee.reach
    if well.workers <= 1 and knee.workers < 1:
        return f"Two workers are less than 1.5x as fast as one: {LIMITS[found.knee.bound]} is in the way."
    start = (
        f"Scales well to {_up_to(well)}"
        if well.workers > 1
        else "Does not scale well (2 workers are below 80 % efficiency)"
    )
    if knee.open:
        far = f"as far as was looked, {counted(knee.searched, 'worker')}"
        return f"{start}; doubling gives 1.5x {far}{_weak(found)}."
    return (
        f"{start}; doubling beyond {_workers(max(1, knee.workers))} gives less than 1.5x: "
        f"{LIMITS[found.knee.bound]} is in the way."
    )


def _last_step(series: Series) -> str:
    """What the last of the asked counts gains over the one before, in speed and in price."""
    if len(series.rows) < 2:
        return ""
    before, last = series.rows[-2:]
    faster, more = last.rate / before.rate, last.workers / before.workers
    if faster > 0.8 * more or last.workers == 2:  # of two workers the first sentence tells
        return ""
    price = ""
    if last.cost_million is not None and before.cost_million:
        price = f" and a sample costs {last.cost_million / before.cost_million:.2g}x as much"
    return f" {last.workers:,} workers are {faster:.2g}x as fast as {before.workers:,}{price}."


def _winners(prediction: Prediction) -> str:
    """Which strategy is fastest, by ranges of worker counts."""
    counts = prediction.workers
    best = [prediction.fastest(place).strategy for place in range(len(counts))]
    ranges: list[tuple[str, int, int]] = []
    for count, name in zip(counts, best, strict=True):
        if ranges and ranges[-1][0] == name:
            ranges[-1] = (name, ranges[-1][1], count)
        else:
            ranges.append((name, count, count))
    told = [f"{name} {_span(first, last)}" for name, first, last in ranges]
    return f"Fastest in samples a second: {', '.join(told)}."


def _span(first: int, last: int) -> str:
    return f"with {counted(first, 'worker')}" if first == last else f"with {first:,} to {last:,} workers"


def _knee(found: Findings) -> str:
    knee, weak = found.knee, _weak(found)
    if knee.reach.open:
        return (
            f"Knee: none as far as {counted(knee.reach.searched, 'worker')}; doubling still gives 1.5x{weak}."
        )
    if knee.reach.workers < 1:
        return f"Knee: at 1 worker; two are less than 1.5x as fast, limited by {LIMITS[knee.bound]}."
    return (
        f"Knee: {_workers(knee.reach.workers)}; to there doubling gives at least 1.5x{weak}, beyond it "
        f"is limited by {LIMITS[knee.bound]}."
    )


def _weak(found: Findings) -> str:
    """Where doubling gives less before the knee."""
    dip = found.knee.dip
    return "" if dip is None else f" (though not from {dip:,} to {2 * dip:,})"


def _bandwidth(found: Bandwidth) -> str:
    workers = f"{found.workers:,} workers"
    if found.needed is None:
        return (
            f"Bandwidth: more than {show_rate(found.there)} alone does not make {workers} compute-bound; even an "
            f"unlimited one leaves {show_seconds(found.left)} a step."
        )
    if found.needed <= found.there:
        return (
            f"Bandwidth: {workers} are compute-bound; {show_rate(found.needed)} would do, "
            f"{show_rate(found.there)} are there."
        )
    return (
        f"Bandwidth: {show_rate(found.needed)} would make {workers} compute-bound; "
        f"{show_rate(found.there)} are there."
    )


def _crossover(reach: Reach) -> str:
    if reach.open:
        return (
            f"Crossover: up to {counted(reach.searched, 'worker')} computing takes longer than communication."
        )
    return f"Crossover: from {_workers(reach.workers + 1)} on communication takes longer than computing."


def _gathering(found: Gathering, most: int) -> str:
    faster = ""
    if found.slower is not None:
        where = f"with {most:,} workers" if found.slower == most else f"from {found.slower:,} workers on"
        faster = f"; {where} identity would be faster"
    return (
        f"Codec: {found.codec} messages do not add up on the way: everybody gets everybody's, so traffic grows with "
        f"the workers{faster}."
    )


def _help(found: Help) -> str:
    moved = ""
    if found.knee is not None:
        to = "beyond " if found.knee.open else ""
        moved = f" and moves the knee to {to}{_workers(found.knee.workers)}"
    makes = "make" if found.what.endswith("servers") else "makes"
    return (
        f"What would help: {found.what} {makes} {found.workers:,} workers {found.gain:.2g}x as fast{moved}."
    )


def _workers(count: int) -> str:
    """A number that was found; above a thousand, to a hundredth only."""
    return counted(count, "worker") if count <= 1000 else f"about {float(f'{count:.2g}'):,.0f} workers"


def _up_to(reach: Reach) -> str:
    if reach.open:
        return f"at least {counted(reach.workers, 'worker')}"
    return _workers(reach.workers)
