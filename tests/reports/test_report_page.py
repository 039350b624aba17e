"""The report as data: what every chart plots and every table says is what the record holds."""

import html
import json
import re
import shutil
from dataclasses import fields, replace
from math import isclose
from pathlib import Path

import pytest

from paceline.records.events import MetricsRow, read_events
from paceline.records.files import to_document, write_json
from paceline.records.spans import StepBreakdown
from paceline.reports.page.build import make_page
from paceline.reports.page.document import FigureTabs, PageTable, drawing_library, render_page
from paceline.reports.page.markup import Markup, element, json_script
from paceline.reports.page.palette import PARTS, SERIES
from paceline.reports.page.run import (
    compared_page,
    differences_table,
    predicted_table,
    run_names,
    run_page,
    settings_table,
)
from paceline.reports.page.run_figures import (
    STEP_PARTS,
    accuracy_rows,
    breakdown_figure,
    loss_rows,
    staleness_figure,
)
from paceline.reports.page.sweep import speed_rows
from paceline.reports.page.thinning import evenly, thinned
from paceline.reports.page.time_figures import (
    checkpoint_times,
    mark_rows,
    pace_figure,
    system_figures,
    timeline_figure,
)
from paceline.studies.predict.forecast import RunForecast
from paceline.studies.predict.prediction import PredictionRow
from paceline.studies.recorded import read_recorded
from paceline.studies.scaling.result import read_sweep

GOLDEN = Path(__file__).parents[1] / "golden"
LINE = "paceline train --seed 1"


@pytest.fixture
def reduced():
    return read_recorded(GOLDEN / "all-reduce")


@pytest.fixture
def served():
    return read_recorded(GOLDEN / "served")


@pytest.fixture
def foretold(tmp_path):
    """The golden run with a prediction that says 200 ms a step."""
    folder = tmp_path / "foretold"
    shutil.copytree(GOLDEN / "all-reduce", folder)
    step = StepBreakdown(forward=0.05, backward=0.1, communicate=0.05, hidden=0.01)
    row = PredictionRow(
        workers=2, batch=16, samples=32, breakdown=step, step=0.2, low=0.15, high=0.25, sent=1.0, rate=160.0,
        speed_up=1.5, efficiency=0.75, bound="compute", path="groups",
    )  # fmt: skip
    write_json(folder / "prediction.json", to_document(RunForecast(row=row, made="now")))
    return read_recorded(folder)


def page_of(run):
    return run_page(run, lambda _: LINE)


def test_the_curves_are_the_evaluations(reduced):
    losses, scores = loss_rows([reduced], ["one"]), accuracy_rows([reduced], ["one"])
    train = [row["loss"] for row in losses if row["series"] == "train loss"]
    test = [row["loss"] for row in losses if row["series"] == "test loss"]
    assert train == [row.train_loss for row in reduced.rows]
    assert test == [row.test_loss for row in reduced.rows]
    assert [row["accuracy"] for row in scores] == [row.metrics["accuracy"] for row in reduced.rows]
    assert [row["seconds"] for row in scores] == [row.seconds for row in reduced.rows]
    assert (scores[-1]["samples"], scores[1]["samples"]) == (1280, 640)
    sent = sum(one.step_sent for one in reduced.summary.totals)
    assert [row["bytes"] for row in scores] == [sent * part // 4 for part in (1, 2, 3, 4)]


def test_runs_side_by_side_are_a_curve_each(reduced, served):
    rows = loss_rows([reduced, served], ["a", "b"])
    assert {row["series"] for row in rows} == {"a", "b"}
    assert [row["loss"] for row in rows if row["series"] == "b"] == [row.test_loss for row in served.rows]


def test_the_parts_of_each_rank_add_up_to_its_step(reduced):
    figure = breakdown_figure(reduced)
    for rank, totals in enumerate(reduced.summary.totals):
        parts = {row["part"]: row["ms"] for row in figure.rows if row["of"] == f"rank {rank}"}
        assert parts.pop("hidden") == 1e3 * totals.typical.hidden
        assert isclose(sum(parts.values()), 1e3 * totals.typical.total)
    assert {entry.name for entry in figure.legend} >= {"wait for others", "hidden communication"}
    assert {*STEP_PARTS.values()} == {field.name for field in fields(StepBreakdown)}, "no part is forgotten"


def test_a_prediction_stands_beside_what_was_measured(foretold, served):
    first = breakdown_figure(foretold).rows[0]
    assert (first["of"], first["part"], first["ms"]) == ("predicted", "forward", 50.0)
    assert all(row["of"] != "predicted" for row in breakdown_figure(served).rows)
    rows = {row[0]: row[1:] for row in predicted_table(foretold).rows}
    assert rows["step"] == ("200.0", "318.7", "-37 %")
    assert rows["wait"] == ("0.0", "77.5", "-100 %")
    assert predicted_table(served) is None
    assert dict(page_of(foretold).numbers)["predicted step"] == "200 ms (-37\u00a0%)"


def test_the_timeline_shows_recorded_spans_and_no_pause(reduced):
    figure = timeline_figure(reduced)
    record = next(one for one in read_events(reduced.folder.events(0)) if one.step == 21 and one.is_step)
    shown = [row for row in figure.rows if row["rank"] == "rank 0" and row["step"] == 21]
    lanes = {row["part"]: row["lane"] for row in figure.rows}
    assert [row["part"] for row in shown] == [
        *("rest" if span.kind == "other" else span.kind for span in record.spans),
        *("hidden" for _ in record.hidden),
    ]
    assert isclose(shown[1]["ms"], 1e3 * record.spans[1].length)
    assert shown[0]["from"] == 0.0
    assert {lanes["backward"], lanes["wait"], lanes["hidden"]} == {"compute", "wait", "hidden"}
    assert "checkpoint" not in lanes, "steps without a pause are chosen"
    assert {row["rank"] for row in figure.rows} == {"rank 0", "rank 1"}


def test_the_timeline_says_which_ranks_and_spans_it_leaves_out(reduced, monkeypatch):
    """Else a rank that is not drawn would look like one that does nothing."""
    whole = timeline_figure(reduced)
    first = [row for row in whole.rows if row["step"] == whole.rows[0]["step"] and row["rank"] == "rank 0"]
    monkeypatch.setattr("paceline.reports.page.time_figures.MOST_SPANS", len(first))
    fewer = timeline_figure(reduced)
    assert {row["rank"] for row in fewer.rows} == {"rank 0"}
    assert fewer.sentence.endswith("1 of 2 ranks are drawn.")
    monkeypatch.setattr("paceline.reports.page.time_figures.MOST_SPANS", 2)
    assert timeline_figure(reduced).sentence.endswith(f"Only the first 2 of {len(first)} spans are drawn.")
    assert "drawn" not in whole.sentence


def test_words_stand_before_numbers_in_the_table_of_a_timeline(reduced):
    table = timeline_figure(reduced).table()
    assert table.titles[:3] == ("rank", "part", "step")
    assert table.texts == 2, "the step is a number, the part a word"


def test_steps_over_the_run_are_those_recorded(served):
    rows = pace_figure(served).rows
    lengths = [
        sum(span.length for span in record.spans)
        for record in read_events(served.folder.events(1))
        if record.is_step and not record.warm_up
    ]
    mine = [row["ms"] for row in rows if row["series"] == "rank 1"]
    assert 1e3 * min(lengths) <= min(mine)
    assert max(mine) <= 1e3 * max(lengths) + 1e-9


def test_staleness_is_counted(served, reduced):
    figure = staleness_figure(served)
    assert {row["staleness"]: row["count"] for row in figure.rows} == {"0": 113, "1": 4, "2": 3}
    assert "2 at most, over 120 gradients" in figure.sentence
    assert staleness_figure(reduced) is None


def test_the_machine_is_drawn_with_evaluations_and_checkpoints(reduced, monkeypatch):
    cpu, memory, network = system_figures(reduced)
    first = reduced.samples[0]
    mine = [row for row in memory.rows if row.get("series") == "rank 1"]
    assert mine[0]["memory"] == first.workers[1].memory_bytes
    assert len(mine) == len(reduced.samples)
    assert next(row["network"] for row in network.rows if row["series"] == "sent") == first.sent_per_second
    assert {row["mark"] for row in cpu.rows if "mark" in row} == {"evaluate", "checkpoint"}
    marks = [row["seconds"] for row in mark_rows(reduced) if row["mark"] == "evaluate"]
    assert marks == [row.seconds for row in reduced.rows]
    saved: dict[int, float] = {}
    for record in read_events(reduced.folder.events(0)):
        for span in record.spans:
            if span.kind == "checkpoint":
                saved.setdefault(record.step, span.start)
    assert checkpoint_times(reduced) == [*saved.values()]
    assert [*saved] == [20, 40]
    assert "among them" not in cpu.sentence
    monkeypatch.setattr("paceline.reports.page.time_figures.MOST_MARKS", 1)
    assert system_figures(reduced)[0].sentence.endswith(
        "evaluations and checkpoints, 1 of 4 evaluations and 1 of 2 checkpoints among them."
    )


def test_the_answer_and_the_findings_come_first(reduced, served):
    page = page_of(reduced)
    assert page.answer == "Ended at 0.8944 after 15.8 s. A typical step takes 319 ms, 45 % of it backward."
    assert "waiting for rank 1" in page.findings[0]
    assert "Predicted to help" in page.findings[0]
    assert len(page.notes) == 1, "what else computed meanwhile"
    text = render_page(page)
    assert text.index("Findings") < text.index("Loss and accuracy") < text.index("Timeline")
    titles = [section.title for section in page_of(served).sections]
    assert titles == [
        "Loss and accuracy",
        "Where a step went",
        "Timeline",
        "Servers",
        "Machine",
        "How to repeat it",
    ]


def test_every_figure_has_a_title_units_a_sentence_and_a_table(reduced, served):
    pages = [
        page_of(reduced),
        page_of(served),
        make_page([GOLDEN / "served", GOLDEN / "all-reduce"], lambda _: LINE),
    ]
    for page in pages:
        names = [figure.name for figure in page.figures()]
        assert len(names) == len({*names}) > 2
        for figure in page.figures():
            assert figure.title
            assert figure.sentence.endswith(".")
            assert figure.table().rows
            fields_used = {one for row in figure.rows for one in row}
            assert {*figure.columns} <= fields_used
            assert {*re.findall(r'"field": "(\w+)"', json.dumps(figure.spec))} <= fields_used
    for tabs in (block for page in pages for section in page.sections for block in section.blocks):
        if isinstance(tabs, FigureTabs):
            assert [*tabs.tabs] == ["against time", "against samples", "against bytes"]


def test_runs_are_compared_with_the_first(reduced, served):
    table = differences_table([reduced, served], ["a", "b"])
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["samples/s in typical steps"] == ("100", "44,381 (442x)"), "as the answer has it"
    assert rows["accuracy"] == ("89.44 %", "95.28 % (1.07x)")
    assert rows["hidden"][1] == "-"
    differing = settings_table([reduced, served], ["a", "b"], differing=True)
    assert ("iterations", "40", "60") in differing.rows
    assert "seed" not in {row[0] for row in differing.rows}
    page = make_page([GOLDEN / "served", GOLDEN / "all-reduce"], lambda _: LINE)
    assert page.answer.startswith(
        "all-reduce (2 workers) is 442.06x slower per sample than served (2 workers). 99 %"
    )


def test_what_makes_a_comparison_doubtful_is_on_its_page(reduced, served):
    """Else a simulated run beside a live one would be called faster without a hint."""
    simulated = replace(served, summary=replace(served.summary, runtime="virtual"))
    page = compared_page([reduced, simulated], lambda _: LINE)
    assert "runtime differs: virtual in served, live in all-reduce." in page.notes
    for run in (reduced, served):
        (note,) = run.summary.notes
        assert page.notes.count(f"{run.name}: {note}") == 1, "what else computed meanwhile is said once"
    short = replace(
        served,
        summary=replace(served.summary, totals=[replace(one, steps=3) for one in served.summary.totals]),
    )
    assert "is too short to be compared" in compared_page([reduced, short], lambda _: LINE).answer


def test_runs_of_one_name_are_told_apart(reduced):
    assert len({*run_names([reduced, reduced])}) == 2


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", 'a"b&c', "</title><img src=x onerror=alert(1)>"]
)
def test_no_name_setting_or_note_becomes_markup(tmp_path, reduced, name):
    hostile = replace(
        reduced,
        summary=replace(reduced.summary, name=name, loads=[replace(reduced.summary.loads[0], host=name)]),
    )
    hostile.__dict__["environment"] = {"host": name, "cpu": name}
    text = render_page(replace(run_page(hostile, lambda _: name), title=name, about=name))
    page = text.replace(f"<script>{drawing_library()}", "")
    assert name not in page
    assert "alert(1)" not in name or "alert(1)" in page, "it is shown, as text"


def test_markup_is_escaped_by_construction():
    assert element("p", "<b>", Markup("<i></i>"), title='"&') == '<p title="&quot;&amp;">&lt;b&gt;<i></i></p>'
    assert element("input", checked=True, hidden=False, aria_label="x") == '<input checked aria-label="x">'
    assert "</script>" not in json_script("a", "</script>")[:-9]


def test_the_page_loads_nothing(reduced):
    text = render_page(page_of(reduced))
    page = text.replace(drawing_library(), "")
    assert "default-src 'none'" in html.unescape(page)
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert "</script" not in drawing_library()


def test_thinning_keeps_ends_and_extremes():
    points = [(place, float(place % 7)) for place in range(100_000)]
    points[54_321] = (54_321, 99.0)
    points[12_345] = (12_345, -99.0)
    points[777] = (777, float("nan"))
    kept = thinned(points, [lambda point: point[1]])
    assert len(kept) < 1000
    assert {points[0], points[-1], points[54_321], points[12_345]} <= {*kept}
    assert kept == sorted(kept)
    assert thinned(points[:100], [lambda point: point[1]]) == points[:100]
    assert evenly(range(1000), 3) == [0, 500, 999]


def test_a_run_that_diverged_has_a_page(reduced):
    lost = replace(reduced, summary=replace(reduced.summary, final={}, ending="failed"))
    lost.__dict__["rows"] = tuple(
        MetricsRow(step, step / 45, float("nan"), test_loss=None, metrics={}, learning_rate=0.1, seconds=step)
        for step in (10, 20)
    )  # fmt: skip
    text = render_page(page_of(lost))
    assert "NaN" not in text.replace(drawing_library(), "")
    assert "Failed at step 40" in text


def test_a_run_without_steps_samples_or_events_has_a_page(reduced, tmp_path):
    folder = tmp_path / "empty"
    shutil.copytree(GOLDEN / "all-reduce", folder)
    shutil.rmtree(folder / "events")
    (folder / "system.jsonl").unlink()
    (folder / "metrics.jsonl").unlink()
    run = read_recorded(folder)
    titles = [section.title for section in page_of(run).sections]
    assert titles == ["Where a step went", "How to repeat it"]


def test_one_colour_a_part_and_all_of_them_differ():
    assert [*PARTS][:8] == ["data", "forward", "backward", "communicate", "hidden", "wait", "apply", "rest"]
    for colours in (PARTS.values(), SERIES):
        for shown in zip(*colours, strict=True):
            assert len({*shown}) == len(shown)


def test_tables_name_their_rows_and_columns():
    table = PageTable(caption="c", titles=("what", "ms"), rows=(("a", "1"),))
    assert '<th scope="row">a</th><td class="number">1</td>' in table.html()
    assert '<th scope="col" class="number">ms</th>' in table.html()


def test_a_sweep_has_a_page_with_what_was_measured_and_predicted():
    result = read_sweep(GOLDEN / "scaling")
    points = {(row["series"], row["place"]): row["speed_up"] for row in speed_rows(result)}
    (row,) = (row for row in result.compared() if row.cell.batch == 64)
    assert points["2 workers, measured", 64] == row.speed_up
    assert points["2 workers, predicted", 64] == row.plan.speed_up
    page = make_page([GOLDEN / "scaling"], lambda _: LINE)
    assert page.answer.startswith("1 worker x batch 64: 172,919 samples/s")
    assert any(found.startswith("predicted before it was measured") for found in page.findings)
    titles = [section.title for section in page.sections]
    assert titles == ["Speed-up", "Measured", "Where a step went", "Computing and communication", "Folder"]
