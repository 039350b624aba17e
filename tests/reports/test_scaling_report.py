"""What a sweep says: the answer first, tables whose columns are there for a reason, a chart."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from paceline.records.files import json_text
from paceline.reports.scaling import answer, document, explain, picture, table_cells, text_lines
from paceline.reports.text import aligned
from paceline.runtimes.settings import Cadence
from paceline.studies.grid import Spread
from paceline.studies.scaling.result import SweepResult, read_sweep
from paceline.studies.scaling.study import SweepKind

GOLDEN = read_sweep(Path(__file__).parents[1] / "golden" / "scaling")


def with_rates(*rates: float, kind: SweepKind = "scaling", **cells: list[object]) -> SweepResult:
    """The golden rows with these samples a second, speed-ups over the first two, and other fields of their cells."""
    rows = []
    for place, rate in enumerate(rates):
        row = GOLDEN.rows[place]
        own = {name: values[place] for name, values in cells.items()}
        speed_up = rate / rates[place % 2 if kind == "scaling" else 0]
        cell = replace(row.cell, **own)
        rate_spread = Spread(rate, rate, rate)
        rows.append(
            replace(
                row,
                cell=cell,
                rate=rate_spread,
                speed_ups=Spread(speed_up, speed_up, speed_up),
                efficiency=speed_up / cell.workers,
            )
        )
    return replace(GOLDEN, sweep=replace(GOLDEN.sweep, kind=kind), rows=tuple(rows))


def test_the_answer_says_where_workers_pay_off():
    some = answer(with_rates(1000, 2000, 900, 3200))
    assert some == (
        "2 workers x batch 64: 3,200 samples/s, the fastest of all, 1.60 times one worker's (efficiency 80 %). "
        "2 workers pay off at a batch of 64 a worker, and not at the others."
    )
    every = answer(with_rates(1000, 2000, 1500, 3200))
    assert every.endswith("2 workers pay off at every batch measured: 1.50 to 1.60 times one worker's rate.")
    none = answer(with_rates(1000, 2000, 900, 1900))
    assert none.startswith("1 worker x batch 64: 2,000 samples/s, the fastest of all.")
    assert none.endswith("2 workers pay off at no batch: 0.95 times one worker's rate at most.")


def test_larger_batches_stop_paying_off_where_a_doubling_gives_less_than_a_tenth():
    sizes = {"batch": [16, 32, 64, 128], "workers": [1] * 4}
    assert answer(with_rates(100, 190, 200, 201, kind="batch", **sizes)) == (
        "Larger batches stop paying off at 32: 64 gives +5 % samples a second. 1 worker x batch 128: 201 samples/s, "
        "the most of all."
    )
    assert answer(with_rates(100, 190, 300, 400, kind="batch", **sizes)).endswith(
        "up to the largest measured."
    )
    both = with_rates(
        100,
        190,
        200,
        201,
        kind="batch",
        batch=[16, 32] * 2,
        workers=[1] * 4,
        loading=["with"] * 2 + ["without"] * 2,
    )
    assert answer(both) == (
        "1 worker x batch 32: 190 samples/s, the most with data loading; larger batches paid off up to the largest "
        "measured. Larger batches stop paying off at 16 without data loading: 32 gives +0 % samples a second. 1 worker "
        "x batch 32, without data loading: 201 samples/s, the most without data loading."
    ), "none of both is the most of all"
    only = replace(both, sweep=replace(both.sweep, loading=("with", "without")), rows=both.rows[2:])
    assert answer(only).endswith("the most of all."), "also where the runs with loading failed"


def test_processes_and_checkpoints_have_their_own_answers():
    several = with_rates(100, 180, kind="processes", batch=[16, 16], workers=[1, 1], processes=[1, 2])
    assert answer(several).startswith(
        "2 processes side by side give the most: 180 samples/s of the host, 1.80 times"
    )
    every = Cadence(10, "steps")
    saved = with_rates(
        100, 100, kind="checkpoint", batch=[16, 16], workers=[1, 1], checkpoint=[Cadence(0), every]
    )
    plain, row = saved.rows
    row = replace(
        row,
        checkpoint=10 * row.step.total,
        checkpoints=0.1,
        checkpoint_every=10,
        checkpoint_bytes=2_000_000,
        whole=2e-3,
    )
    saved = replace(saved, rows=(replace(plain, whole=1e-3, checkpoint=0.0), row))
    assert answer(saved).startswith("Every 10 steps, checkpoints take 50.0 % of the time (")
    lines = aligned(*table_cells(saved))
    assert "by difference" in lines[0]
    assert "speed-up" not in lines[0]
    assert "50.0 %         50.0 %" in lines[2], "by spans and by difference"
    # Runs of 10 steps where 1,000 lie between two checkpoints: each of them saves once, at its last step.
    rare = replace(saved, rows=(saved.rows[0], replace(row, checkpoint_every=1000)))
    assert "checkpoints take 0.99 % of the time" in answer(rare), "else a short run says 50 %"
    assert "0.99 %         0.99 %                1.01" in aligned(*table_cells(rare))[2]


def test_a_table_has_the_columns_that_say_something():
    lines = text_lines(GOLDEN)
    titles = next(line for line in lines if line.startswith("workers"))
    assert titles.split("  ")[0] == "workers"
    assert "codec" not in titles, "there is one"
    assert "predicted" in titles
    assert max(map(len, lines)) <= 130
    assert any(line.startswith("predicted before it was measured: speed-up, median error ") for line in lines)
    unknown = replace(GOLDEN, rows=tuple(replace(row, plan=None) for row in GOLDEN.rows))
    assert "predicted" not in str(table_cells(unknown))


def test_the_difference_between_the_two_ways_is_explained():
    row = GOLDEN.rows[3]
    words = explain(row)
    assert words.startswith("2 workers x batch 64: Tn - T1/n is ")
    assert f"takes {row.contention:.2f} times as long" in words
    less = replace(row, difference=replace(row.difference, contention=-0.25 * row.epoch, rest=0.0))
    assert " less: computing beside other workers" in explain(less)
    assert "-" not in explain(less).partition("waiting for other workers. ")[2], (
        "less, and not less than nothing"
    )
    same = replace(row, difference=replace(row.difference, contention=0.0, smaller_batch=0.0, rest=0.0))
    assert "The two agree." in explain(same)


def test_the_document_is_json_and_the_chart_is_svg():
    found = json.loads(json_text(document(GOLDEN)))
    assert [row["cell"]["workers"] for row in found["rows"]] == [1, 1, 2, 2]
    assert found["speed_up_error"] == GOLDEN.speed_up_error
    drawn = picture(GOLDEN)
    assert drawn is not None
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert picture(replace(GOLDEN, rows=GOLDEN.rows[:3])) is None, "one batch is no line"
