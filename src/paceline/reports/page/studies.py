"""The pages of studies: convergence, a prediction, the profile of a machine. Each is one function."""

from collections.abc import Iterator
from math import exp
from pathlib import Path
from typing import Any

from paceline.clusters.profile import LinkFit, Profile, read_profile
from paceline.costs.fitted import FittedDevice, read_fitted
from paceline.errors import UsageError
from paceline.records.files import from_document, read_json
from paceline.reports.calibrate import contention_words, only_latency
from paceline.reports.convergence import answer, header, table_cells
from paceline.reports.page import charts
from paceline.reports.page.document import (
    Figure,
    FigureTabs,
    PageSection,
    PageTable,
    Paragraph,
    ReportPage,
)
from paceline.reports.page.run_figures import FigureRows, breakdown_rows
from paceline.reports.predict.sentences import findings
from paceline.reports.predict.text import heading, text_lines
from paceline.reports.text import counted
from paceline.studies.convergence.folder import read_convergence
from paceline.studies.convergence.result import ConvergenceResult
from paceline.studies.predict.prediction import Prediction
from paceline.units import show_bytes, show_rate, show_seconds

AXES = {
    "time": ("seconds", "simulated time (s)"),
    "bytes": ("sent", "bytes sent, all workers"),
    "samples": ("samples", "samples, all workers"),
}


def convergence_page(path: Path) -> ReportPage:
    result = read_convergence(path)
    rows = convergence_rows(result)
    titles, cells = table_cells(result)
    table = PageTable(caption=header(result)[1], titles=titles, rows=cells, texts=titles.index("reached"))
    return ReportPage(
        kind="paceline report, convergence",
        title=f"Convergence of {result.job}",
        about=header(result)[0],
        answer=answer(result),
        notes=result.left_out,
        sections=(
            PageSection(title="To the target", blocks=(table,)),
            *([PageSection(title="Accuracy", blocks=(_accuracy_tabs(rows),))] if rows else []),
            PageSection(title="Folder", blocks=(Paragraph(str(path)),)),
        ),
    )


def convergence_rows(result: ConvergenceResult) -> FigureRows:
    return tuple(
        {
            "series": str(row.pair),
            "seconds": point.seconds,
            "sent": point.sent,
            "samples": point.samples,
            "accuracy": point.accuracy,
            "low": point.low,
            "high": point.high,
        }
        for row in result.rows
        for point in row.curve
    )


def _accuracy_tabs(rows: FigureRows) -> FigureTabs:
    series = list(dict.fromkeys(row["series"] for row in rows))
    tabs = {}
    for title, (field, label) in AXES.items():
        tabs[f"against {title}"] = (
            Figure(
                name=f"accuracy-{title}",
                title=f"Accuracy against {title}",
                sentence="The median over seeds at each evaluation; the band is from the lowest to the highest seed.",
                spec=charts.line_chart(
                    x=field,
                    x_title=label,
                    y="accuracy",
                    y_title="accuracy",
                    series=series,
                    percent=True,
                    band=("low", "high"),
                ),
                rows=rows,
                columns={
                    "series": "pair",
                    field: label,
                    "accuracy": "median",
                    "low": "lowest",
                    "high": "highest",
                },
                legend=charts.series_legend(series),
            ),
        )
    return FigureTabs(name="accuracy", label="What the accuracy is drawn against", tabs=tabs)


def prediction_page(path: Path) -> ReportPage:
    prediction = read_prediction(path)
    several = len(prediction.series) > 1
    found = [
        f"{series.strategy}: {sentence}" if several else sentence
        for series in prediction.series
        if series.findings is not None
        for sentence in findings(series)
    ]
    basis = prediction.basis
    return ReportPage(
        kind="paceline report, prediction",
        title=f"{prediction.name}, predicted",
        about=f"{heading(prediction)}; made {prediction.made}",
        answer=text_lines(prediction)[0],
        findings=tuple(found),
        sections=(
            PageSection(title="Speed-up", blocks=(speed_figure(prediction),)),
            PageSection(title="Where a step goes", blocks=tuple(_step_figures(prediction))),
            PageSection(title="Predictions", blocks=(prediction_table(prediction),)),
            PageSection(
                title="What it rests on",
                blocks=(
                    Paragraph(f"Level: {basis.level}. Compute: {basis.compute}. Links: {basis.links}."),
                    Paragraph(f"Interval: {basis.interval}."),
                ),
            ),
        ),
    )


def read_prediction(path: Path) -> Prediction:
    try:
        return from_document(read_json(path), Prediction)
    except ValueError as error:
        raise UsageError(
            f"{path} is a prediction of another version of paceline ({error}); predict it again"
        ) from error


def speed_figure(prediction: Prediction) -> Figure:
    series = [one.strategy for one in prediction.series]
    rows = tuple(
        {
            "series": one.strategy,
            "workers": row.workers,
            "speed_up": row.speed_up,
            # A shorter step is a higher speed-up.
            "low": row.speed_up * row.step / row.high,
            "high": row.speed_up * row.step / row.low,
            "samples_per_second": row.rate,
        }
        for one in prediction.series
        for row in one.rows
    )
    return Figure(
        name="speed-up",
        title="Speed-up by workers",
        sentence="How many times as many samples a second as one worker, with the 80 % interval; the dotted line is as "
        "many times as workers.",
        spec=charts.scaling_chart(series=series, workers=prediction.workers),
        rows=rows,
        columns={
            "series": "strategy",
            "workers": "workers",
            "speed_up": "speed-up",
            "samples_per_second": "samples/s",
        },
        legend=charts.series_legend(series),
    )


def _step_figures(prediction: Prediction) -> Iterator[Figure]:
    for place, series in enumerate(prediction.series):
        steps = {counted(row.workers, "worker"): row.breakdown for row in series.rows}
        rows = breakdown_rows(steps)
        yield Figure(
            name=f"step-{place}",
            title=f"A step by workers, {series.strategy}",
            sentence="Predicted parts of a worker's step; a thin bar is communication hidden behind backward.",
            spec=charts.breakdown_chart(list(steps), hides=any(row["part"] == "hidden" for row in rows)),
            rows=rows,
            columns={"of": "workers", "part": "part", "ms": "ms", "share": "share"},
            legend=charts.part_legend(rows),
        )


def prediction_table(prediction: Prediction) -> PageTable:
    rows = [
        (
            series.strategy,
            f"{row.workers:,}",
            show_seconds(row.step),
            f"{show_seconds(row.low)} .. {show_seconds(row.high)}",
            f"{row.rate:,.{0 if row.rate >= 100 else 2}f}",
            f"{row.speed_up:.3g}",
            f"{100 * row.efficiency:.0f} %",
            show_bytes(row.sent),
            row.bound,
        )
        for series in prediction.series
        for row in series.rows
    ]
    titles = (
        "strategy",
        "workers",
        "step",
        "80 % interval",
        "samples/s",
        "speed-up",
        "efficiency",
        "sent",
        "bound",
    )
    return PageTable(caption="Predicted, by strategy and workers", titles=titles, rows=tuple(rows))


def profile_page(path: Path) -> ReportPage:
    profile = read_profile(path)
    device = read_fitted(profile.device, str(path)) if profile.device else None
    disturbed = profile.machine.get("disturbed")
    sections = [
        PageSection(title="Computing", blocks=tuple(_device_blocks(device) if device else ())),
        PageSection(title="Links", blocks=tuple(_link_blocks(profile.links))),
        PageSection(title="Workers side by side", blocks=tuple(_contention_blocks(profile))),
        PageSection(title="Machine", blocks=(_machine_table(profile),)),
    ]
    return ReportPage(
        kind="paceline report, calibration",
        title=profile.name,
        about=f"measured {profile.made}; {path}",
        answer=_profile_answer(profile, device),
        notes=(str(disturbed),) if disturbed else (),
        sections=tuple(section for section in sections if section.blocks),
    )


def _profile_answer(profile: Profile, device: FittedDevice | None) -> str:
    said = []
    if device is not None:
        peaks = device.limits
        said.append(
            f"computes at up to {peaks.flops / 1e9:.3g} GFLOP/s, moves {show_bytes(peaks.bandwidth)}/s at best"
        )
    if len(profile.contention) > 1:
        many, long = len(profile.contention), profile.contention[-1]
        said.append(contention_words(many, long, (profile.contention_short or (long,))[-1]))
    said += [_link_words(link) for link in profile.links[:1]]
    return f"{profile.name}: {'; '.join(said) or 'nothing was fitted'}."


def _link_words(link: LinkFit) -> str:
    if link.has_bandwidth:
        return f"{link.name} carries {show_rate(link.bandwidth)}"
    return f"{link.name}: {only_latency(link)}"


def _device_blocks(device: FittedDevice) -> Iterator[Any]:
    rows: FigureRows = tuple(
        {"of": kind or "of no measured kind", "error": 100 * (exp(doubt) - 1)}
        for kind, doubt in device.doubts.items()
    )
    yield Paragraph(
        f"Steps are predicted with a typical error of {100 * (exp(device.spread) - 1):.0f} %, from "
        f"{counted(sum(len(curve.points) for curve in device.curves.values()), 'measured call')} of "
        f"{counted(len(device.curves), 'operator')}."
    )
    yield Figure(
        name="fits",
        title="Operators that were not measured themselves",
        sentence="The typical error of an operator's time where it is predicted by its kind alone.",
        spec=charts.bar_chart(x="error", x_title="typical error (%)", names=[row["of"] for row in rows]),
        rows=rows,
        columns={"of": "kind", "error": "typical error (%)"},
    )


def _link_name(link: LinkFit) -> str:
    return f"{link.name}, {counted(link.workers, 'worker')}"


def _link_blocks(links: tuple[LinkFit, ...]) -> Iterator[Any]:
    known = [link for link in links if link.has_bandwidth]
    for link in links:
        if not link.has_bandwidth:
            yield Paragraph(f"{_link_name(link)}: {only_latency(link)}.")
    rows: FigureRows = tuple(
        {
            "of": _link_name(link),
            "bandwidth": 8 * link.bandwidth,
            "latency": link.latency,
            "error": 100 * (exp(link.spread) - 1),
            "points": link.points,
        }
        for link in known
    )
    numbers = " or ".join(map(str, sorted({link.workers for link in known})))
    if rows:
        yield Figure(
            name="links",
            title="Bandwidth of each link",
            sentence=f"As fitted to messages of several sizes, with {numbers} workers communicating at once.",
            spec=charts.bar_chart(x="bandwidth", x_title="bit/s", names=[row["of"] for row in rows]),
            rows=rows,
            columns={
                "of": "link",
                "bandwidth": "bit/s",
                "latency": "latency (s)",
                "error": "typical error (%)",
                "points": "measurements",
            },
        )


def _contention_blocks(profile: Profile) -> Iterator[Any]:
    kinds = {"train apart": profile.contention, "synchronise at once": profile.contention_short}
    rows: FigureRows = tuple(
        {"series": name, "workers": workers, "factor": factor}
        for name, factors in kinds.items()
        for workers, factor in enumerate(factors, start=1)
    )
    if len(rows) > 1:
        series = list(dict.fromkeys(row["series"] for row in rows))
        yield Figure(
            name="contention",
            title="How workers on one host slow each other down",
            sentence="How many times as long computing takes with this many workers at it; 1 is as long as alone.",
            spec=charts.line_chart(
                x="workers",
                x_title="workers",
                y="factor",
                y_title="times as long",
                series=series,
                doubling=sorted({row["workers"] for row in rows}),
            ),
            rows=rows,
            columns={"series": "workers that", "workers": "workers", "factor": "times as long"},
            legend=charts.series_legend(series),
        )


def _machine_table(profile: Profile) -> PageTable:
    shown = {**profile.machine, **{f"version of {name}": text for name, text in profile.versions.items()}}
    if isinstance(memory := shown.pop("memory_bytes", None), int):
        shown["memory"] = show_bytes(memory)
    rows = tuple((key.replace("_", " "), str(value)) for key, value in shown.items() if value is not None)
    return PageTable(caption="The machine that was measured", titles=("what", "value"), rows=rows, texts=2)
