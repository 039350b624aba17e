"""The page of a sweep: of 'paceline bench scaling', batch, checkpoint or processes."""

from pathlib import Path

from paceline.errors import UsageError
from paceline.reports import scaling
from paceline.reports.page import charts
from paceline.reports.page.document import Figure, PageSection, PageTable, Paragraph, ReportPage
from paceline.reports.page.run_figures import FigureRows, breakdown_rows
from paceline.studies.scaling.result import SweepResult, read_sweep


def sweep_page(path: Path) -> ReportPage:
    result = read_sweep(path)
    if not result.rows:
        raise UsageError(f"{path} holds no run that is done: go on with it, or name another folder")
    titles, cells = scaling.table_cells(result)
    measured = PageTable(
        caption="Medians over repeats",
        titles=tuple(titles),
        rows=tuple(map(tuple, cells)),
        texts=max([1, *(titles.index(name) + 1 for name in scaling.LEFT if name in titles)]),
    )
    sections = [
        PageSection(title="Speed-up", blocks=_speed_blocks(result)),
        PageSection(title="Measured", blocks=(measured,)),
        PageSection(title="Where a step went", blocks=(_step_figure(result),)),
        PageSection(title="Computing and communication", blocks=_both_ways(result)),
        PageSection(title="Folder", blocks=(Paragraph(str(path)),)),
    ]
    return ReportPage(
        kind=f"paceline report, {result.sweep.kind}",
        title=f"{result.sweep.kind.capitalize()} of {result.sweep.job}",
        about=scaling.header(result),
        answer=scaling.answer(result),
        findings=tuple(scaling.scored(result)),
        notes=tuple(scaling.outlier_lines(result)),
        sections=tuple(section for section in sections if section.blocks),
    )


def speed_rows(result: SweepResult) -> FigureRows:
    """A row a point: what was measured, and what was predicted before."""
    found = []
    for row in scaling.drawn_rows(result):
        place, name = scaling.drawn_place(result, row), scaling.curve_name(row)
        found.append({"series": f"{name}, measured", "place": place, "speed_up": row.speed_up})
        if row.plan is not None and row.plan.speed_up is not None:
            found.append({"series": f"{name}, predicted", "place": place, "speed_up": row.plan.speed_up})
    return tuple(found)


def _speed_blocks(result: SweepResult) -> tuple[Figure, ...]:
    rows, over = speed_rows(result), scaling.drawn_over(result)
    series = list(dict.fromkeys(row["series"] for row in rows))
    if not rows:
        return ()
    return (
        Figure(
            name="speed-up",
            title=f"Speed-up by {over}",
            sentence="How many times as many samples a second as what it is compared with; every prediction was stored "
            "before its cell was measured.",
            spec=charts.line_chart(
                x="place",
                x_title=over,
                y="speed_up",
                y_title="speed-up",
                series=series,
                from_zero=True,
                doubling=sorted({row["place"] for row in rows}),
            ),
            rows=rows,
            columns={"series": "what", "place": over, "speed_up": "speed-up"},
            legend=charts.series_legend(series),
        ),
    )


def _step_figure(result: SweepResult) -> Figure:
    steps = {str(row.cell): row.step for row in result.rows}
    rows = breakdown_rows(steps)
    return Figure(
        name="step",
        title="A step by cell",
        sentence="Parts of a worker's step in the repeat in the middle; a thin bar is communication hidden behind "
        "backward.",
        spec=charts.breakdown_chart(list(steps), hides=any(row["part"] == "hidden" for row in rows)),
        rows=rows,
        columns={"of": "cell", "part": "part", "ms": "ms", "share": "share"},
        legend=charts.part_legend(rows),
    )


def _both_ways(result: SweepResult) -> tuple[PageTable | Paragraph, ...]:
    titles, cells = scaling.both_ways_cells(result)
    if not cells:
        return ()
    named = any(row[2] for row in cells)  # the column of strategies and codecs
    shown = [[title or "with" for title in titles], *cells]
    kept = [row if named else [*row[:2], *row[3:]] for row in shown]
    table = PageTable(
        caption=scaling.BOTH_WAYS.capitalize(),
        titles=tuple(kept[0]),
        rows=tuple(map(tuple, kept[1:])),
        texts=3 if named else 1,
    )
    return (table, *map(Paragraph, scaling.both_ways_explained(result)))
