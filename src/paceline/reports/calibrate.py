"""A calibration as people read it: the answer, its error, what was found, and what to type next."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Any

from paceline.clusters.profile import LinkFit
from paceline.reports.scenarios import exact_seconds
from paceline.reports.text import aligned, counted
from paceline.studies.calibrate.device_fit import DeviceFit
from paceline.studies.calibrate.link_fit import ContentionFit
from paceline.studies.calibrate.record import RecordFit
from paceline.studies.calibrate.table import Forecast, TableFit, TablePoint
from paceline.units import show_bytes, show_rate, show_seconds


def render_profile(path: Path, replaced: str | None) -> str:
    size = show_bytes(path.stat().st_size)
    return f"written: {path} ({size}{f', in place of {replaced}' if replaced else ''})"


def following(profile: Path | str, words: str = "") -> str:
    """What to type next with a profile that is written."""
    return f"next: {words or f'paceline predict resnet18 --profile {profile}'}"


def render_device(found: DeviceFit) -> Iterator[str]:
    middle, most = found.steps
    yield (
        f"Steps of networks that the fit has not seen: median error {100 * middle:.0f} %, "
        f"90th percentile {100 * most:.0f} %."
    )
    yield (
        f"measured: {counted(found.operators, 'operator')} of {counted(found.networks, 'random network')} "
        f"and {counted(found.layers, 'single layer')}, {counted(found.threads, 'thread')} per worker; at best "
        f"{found.flops / 1e9:.3g} GFLOP/s and {show_bytes(found.bandwidth)}/s of memory"
    )
    if found.disturbed:
        yield found.disturbed
    if found.dropped:
        yield f"left out: {counted(found.dropped, 'impossible measurement')} (faster than the peak)"
    yield ""
    rows = []
    for kind, (half, nine) in found.residuals.items():
        rates = found.rates.get(kind)
        span = f"{rates[0] / 1e9:.3g} to {rates[1] / 1e9:.3g} GFLOP/s" if rates else ""
        rows.append([kind, f"{100 * half:.0f} %", f"{100 * nine:.0f} %", span])
    yield from aligned(["operators", "median", "90th", "rates, by shape"], rows, left=["operators"], gap=3)
    yield ""


def render_record(found: RecordFit) -> Iterator[str]:
    yield (
        f"{found.name} at batch {found.samples}, by the record {found.folder}: the predicted step had an error of "
        f"{100 * found.error:+.0f} %; each phase now takes as long as it did there"
    )
    for phase, measured in found.measured.items():
        yield f"  {phase:9} {show_seconds(measured):>9} measured  {show_seconds(found.predicted[phase]):>9} before"


def contention_words(workers: int, long: float, short: float) -> str:
    return (
        f"with {workers} workers on this host each computes {long:.2f} times as long as alone, "
        f"{short:.2f} times where they synchronise after every step"
    )


def only_latency(link: LinkFit) -> str:
    return (
        f"{show_seconds(link.latency)} a message, which is all that was found: too little time a byte to tell"
    )


def render_links(found: ContentionFit) -> Iterator[str]:
    if any(link.name == "memory" for link in found.links):
        yield contention_words(found.workers, found.long, found.short)
    for link in found.links:
        carries = f"{show_bytes(link.bandwidth)}/s, {show_seconds(link.latency)} a message"
        yield (
            f"  {link.name:9} {carries if link.has_bandwidth else only_latency(link)}, "
            f"typical error a factor of {exp(link.spread):.3g} ({counted(link.points, 'measurement')})"
        )


def fits_of(document: Iterable[Mapping[str, Any]]) -> list[TableFit]:
    """The fits that ``TableFit.to_json`` gave."""
    return [
        TableFit(
            collective=fit["collective"],
            start=TablePoint.parse(fit["from"]),
            transfer=fit["transfer"],
            rate=fit["rate"],
            points=tuple(
                Forecast(TablePoint.parse(one["point"]), one["seconds"], one["measured"])
                for one in fit["points"]
            ),
        )
        for fit in document
    ]


def render_fits(fits: Sequence[TableFit], model: str) -> Iterator[str]:
    best, shown = fits[0], _merged(fits)
    rows = [
        [
            str(one.point),
            "-" if one.measured is None else f"{one.measured:.2f}",
            *(_cell(fit.points[place]) for fit in shown.values()),
        ]
        for place, one in enumerate(best.points)
    ]
    if best.errors:
        rows.append(["median error", "", *(f"{100 * (fit.median or 0):.0f} %" for fit in shown.values())])
        rows.append(["worst error", "", *(f"{100 * (fit.worst or 0):+.0f} %" for fit in shown.values())])
    yield _sentence(fits, model)
    yield ""
    yield from aligned(["point", "measured s", *shown], rows, left=["point"], gap=3)
    yield ""
    rates = (f"{fit.collective} {exact_seconds(fit.transfer)} ({show_rate(fit.rate)})" for fit in fits)
    yield f"one worker's gradients cross one link in: {', '.join(rates)}"
    if bounds := best.interval(1.0):
        yield (
            f"80 % interval of {best.collective}, by its own errors: {bounds[0]:.2f} to {bounds[1]:.2f} "
            "times what is predicted"
        )
    if len(fits) > 1:
        yield (
            "one point cannot tell how gradients were exchanged; the order above is by the errors on the rest of the "
            "table, so name the collective where you know it"
        )


def _sentence(fits: Sequence[TableFit], model: str) -> str:
    best = fits[0]
    start = f"{model}, from one worker's times and {best.start}"
    if best.median is None or best.worst is None:
        return f"{start}: nothing else was measured, so the error of these predictions is unknown."
    return (
        f"{start}: {best.collective} predicts {'' if len(fits) == 1 else 'best '}the {len(best.errors)} other points "
        f"that were measured, median error {100 * best.median:.0f} %, worst {100 * best.worst:+.0f} %."
    )


def _merged(fits: Sequence[TableFit]) -> dict[str, TableFit]:
    columns: dict[tuple[str, ...], list[TableFit]] = {}
    for fit in fits:
        columns.setdefault(tuple(f"{one.seconds:.6g}" for one in fit.points), []).append(fit)
    return {", ".join(fit.collective for fit in same): same[0] for same in columns.values()}


def _cell(one: Forecast) -> str:
    return f"{one.seconds:.2f}" + ("" if one.error is None else f" ({100 * one.error:+.0f} %)")
