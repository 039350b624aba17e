"""A study of convergence as people read it: the sentence, the table and the picture, from results made by hand."""

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from convergence_studies import cell_result, study_of, three_seeds
from paceline.records.files import json_text
from paceline.reports.convergence import answer, document, panels, picture, table, text_lines
from paceline.reports.line_chart import LETTER, Curve, Mark, Panel, line_chart
from paceline.reports.svg import Axis, LinearAxis
from paceline.studies.convergence.result import summarize

STUDY = three_seeds(study_of("all-reduce", "local-sgd:period=16", "async"))


def results(*, target: float | None = 0.9, local: float = 0.2, sent: int = 10):
    cells = []
    for seed in (1, 2, 3):
        late = 0.01 * seed
        cells += [
            cell_result("all-reduce", seed, 0.5, 0.91 + late, sent=160, every=1 + late),
            cell_result("local-sgd:period=16", seed, 0.5, 0.6, 0.9 + late, every=local + late, sent=sent),
            cell_result("async", seed, 0.4, 0.5, 0.6, sent=500),
        ]
    return summarize(STUDY, "digits", cells, target=target)


def test_the_answer_names_the_first_its_lead_and_who_needs_less():
    assert answer(results()) == (
        "local-sgd:period=16 reaches 90 % first: 660 ms (630 ms to 690 ms over 3 seeds), 3.1 times as fast as "
        "all-reduce and with 1/11 of its bytes; all-reduce needs the fewest samples."
    )


def test_where_the_first_pair_is_the_fastest_it_is_compared_with_the_next():
    assert answer(results(local=2.0, sent=1000)) == (
        "all-reduce reaches 90 % first: 2.04 s (2.02 s to 2.06 s over 3 seeds), 3 times as fast as "
        "local-sgd:period=16 and with 1/9.4 of its bytes."
    )


def test_a_target_that_nothing_reaches_is_told_with_the_best():
    assert answer(results(target=0.99)) == (
        "Nothing reaches 99 %: the best, all-reduce, comes to 94.00 % and ends at 93.00 %; train for longer, or lower "
        "the target."
    )


def test_one_pair_alone_needs_no_comparison():
    one = summarize(study_of("ps"), "digits", [cell_result("ps", 1, 0.5, 0.95)], target=0.9)
    assert answer(one) == "ps reaches 90 % after 2 s."


def test_rows_are_sorted_by_time_and_aligned():
    lines = table(results())
    assert lines[0].split() == [
        *("strategy", "reached", "time", "low", "..", "high", "sent", "samples"),
        *("final", "%", "low", "..", "high"),
    ]
    assert [line.split()[0] for line in lines[1:]] == ["local-sgd:period=16", "all-reduce", "async"]
    assert lines[2].endswith("█" * 16), "the slowest that reaches the target has the longest bar"
    assert "never" in lines[3]
    assert "".join(table(results(), blocks=False)).isascii()
    assert max(map(len, lines)) < 120


def test_codecs_have_a_column_where_there_are_any():
    study = study_of("all-reduce", codecs=("identity", "int8"))
    cells = [cell_result("all-reduce", 1, 0.9)]
    cells.append(replace(cells[0], cell=replace(cells[0].cell, pair=study.pairs[1])))
    lines = table(summarize(study, "digits", cells, target=0.5))
    assert [line.split()[:2] for line in lines] == [
        ["strategy", "codec"],
        ["all-reduce", "identity"],
        ["all-reduce", "int8"],
    ]


def test_failures_are_told_below_the_table():
    cells = [
        cell_result("all-reduce", 1, 0.9),
        cell_result("async", 1, 0.1, failure="the loss is nan in step 4"),
    ]
    found = summarize(STUDY, "digits", cells, target=0.5, broken=["ps, seed 1: killed by signal 9"])
    lines = text_lines(found)
    assert lines[-2:] == [
        "async, seed 1: the loss is nan in step 4",
        "ps, seed 1: killed by signal 9; it is run again next time",
    ]
    assert any(line.startswith("async") and "failed" in line for line in lines)


def test_the_document_has_no_infinity_and_says_what_was_run():
    found = json.loads(json_text(document(results())))
    assert found["schema"] == 1
    assert found["answer"].startswith("local-sgd:period=16 reaches 90 % first")
    assert found["first"] == {"strategy": "all-reduce", "codec": "identity"}
    assert found["study"]["seeds"] == [1, 2, 3]
    last = found["rows"][-1]
    assert (last["strategy"], last["on_target"], last["reached"]) == ("async", False, 0)
    assert last["seconds"] == {"median": None, "low": None, "high": None}
    assert last["curve"][0] == {
        "seconds": 1.0,
        "sent": 500,
        "samples": 10,
        "accuracy": 0.4,
        "low": 0.4,
        "high": 0.4,
    }


def test_the_panels_hold_the_curves():
    found = results()
    time, sent, samples = panels(found)
    assert [curve.name for curve in time.curves] == ["local-sgd:period=16", "all-reduce", "async"]
    assert [curve.colour for curve in time.curves] == [1, 0, 2], (
        "a colour belongs to a pair, not to its place"
    )
    assert sum(time.curves[1].points, ()) == pytest.approx((1.02, 0.5, 2.04, 0.93))
    assert sum(time.curves[1].band, ()) == pytest.approx((0.5, 0.5, 0.92, 0.94))
    assert [x for x, _ in sent.curves[2].points] == [500, 1000, 1500]
    assert [x for x, _ in samples.curves[0].points] == [10, 20, 30]
    assert type(time.across) is type(samples.across) is LinearAxis
    assert type(sent.across) is Axis, "30 bytes and 1,500 bytes need a logarithmic axis"
    assert (sent.across.low, sent.across.high) == (20, 1500), "from where the first curve comes into sight"
    assert time.up is sent.up
    assert time.up.low <= 0.58, "also what ends low is seen"
    assert {panel.level for panel in (time, sent, samples)} == {0.9}


def test_an_evaluation_before_the_first_exchange_has_no_place_on_an_axis_of_bytes():
    """If this failed, a local SGD that is evaluated within its first period could not be drawn."""
    late = cell_result("local-sgd:period=16", 1, 0.5, 0.91, 0.92, sent=1)
    none = replace(late.evaluations[0], sent=0)
    late = replace(late, evaluations=(none, *late.evaluations[1:]))
    found = summarize(STUDY, "digits", [cell_result("all-reduce", 1, 0.5, 0.93), late], target=0.9)
    time, sent, _ = panels(found)
    assert [[x for x, _ in curve.points] for curve in sent.curves] == [[100, 200], [2, 3]]
    assert [len(curve.points) for curve in time.curves] == [2, 3]
    assert "<svg" in picture(found)


def test_one_worker_sends_nothing_and_is_drawn_all_the_same():
    cells = [cell_result("all-reduce", 1, 0.5, 0.93, sent=0)]
    assert "<svg" in picture(summarize(STUDY, "digits", cells, target=0.9))
    assert "sent" in document(summarize(STUDY, "digits", cells, target=0.9))["rows"][0]
    both = [*cells, cell_result("async", 1, 0.5, 0.94, sent=0)]
    assert answer(summarize(STUDY, "digits", both, target=0.9)).endswith("and with as many bytes.")


def texts(svg: str) -> list[tuple[float, float, str]]:
    tree = ElementTree.fromstring(svg)
    found = [one for one in tree.iter() if one.tag.endswith("text")]
    return [(float(one.get("x") or 0), float(one.get("y") or 0), one.text or "") for one in found]


def test_eight_strategies_fit_and_no_label_stands_on_another():
    """If this failed, the legend of a usual study could not be read."""
    names = tuple(f"local-sgd:period={2**power},overlap=1" for power in range(10))
    study = study_of(*names)
    cells = [cell_result(name, 1, 0.5, 0.9, every=1 + place) for place, name in enumerate(names)]
    svg = picture(summarize(study, "digits", cells, target=0.8))
    width = float(re.search(r'viewBox="0 0 (\S+)', svg)[1])
    entries = [one for one in texts(svg) if one[2].startswith("local-sgd")]
    assert len(entries) == 10
    for x, y, words in entries:
        assert x + LETTER * len(words) <= width
        for other_x, other_y, _ in entries:
            apart = abs(y - other_y) >= 15 or abs(x - other_x) >= LETTER * len(words) or x == other_x
            assert apart
    assert len({(x, y) for x, y, _ in entries}) == 10
    assert svg.count("<polyline") == 30
    assert "prefers-color-scheme: dark" in svg


def test_a_study_of_one_seed_has_no_bands_and_names_are_escaped():
    study = study_of("mine.py:<Odd&>")
    svg = picture(summarize(study, "digits", [cell_result("mine.py:<Odd&>", 1, 0.5, 0.9)], target=0.8))
    assert "<polygon" not in svg
    assert any(words == "mine.py:<Odd&>" for _, _, words in texts(svg))


def test_linear_ticks_are_round():
    assert LinearAxis(0.0, 1.0).round_ticks(5) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert LinearAxis(0.83, 0.951).round_ticks(9) == pytest.approx([0.84, 0.86, 0.88, 0.9, 0.92, 0.94])
    assert LinearAxis(0.0, 2.0).place(0.5) == 0.25


def test_labels_of_marks_stand_apart():
    marks = [Mark(name=f"codec-{place}", point=(100.0, 50.0), low=49, high=51) for place in range(4)]
    panel = Panel(
        label="bytes",
        across=Axis(10, 1000),
        up=LinearAxis(0, 100),
        across_tick=lambda value: f"{value:g} B",
        up_tick=str,
        ticks=(10, 77),
        marks=(*marks, Mark(point=(20.0, 50.0), low=49, high=51)),
        curves=(Curve(points=((10.0, 0.0), (1000.0, 100.0))),),
    )
    found = texts(line_chart("t", "s", [panel]))
    places = [y for _, y, words in found if words.startswith("codec-")]
    assert len(places) == 4
    assert [words for _, _, words in found if words.endswith(" B")] == ["10 B", "77 B"]
    assert min(abs(one - two) for one in places for two in places if one != two) >= 14
