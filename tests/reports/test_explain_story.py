"""A story must tell what the schedule does: the textbook case by heart, every other one against plain arithmetic."""

import json
import math
import re
from functools import reduce
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.collectives import SCHEDULES
from paceline.records.files import to_document
from paceline.reports.explain.document import numbers_in
from paceline.reports.explain.explanation import explain
from paceline.reports.explain.request import DRAWN, WRITTEN, ExplainRequest
from paceline.reports.explain.sentences import number

MATRIX = "5 2 9 1; 3 8 4 7; 6 1 2 9; 4 7 3 8"
FOLDS = {
    "sum": lambda a, b: a + b,
    "mean": lambda a, b: a + b,
    "max": max,
    "min": min,
    "product": lambda a, b: a * b,
}


def only_stage(**request):
    (stage,) = explain(ExplainRequest(**request), DRAWN).stages
    return stage


def test_the_ring_of_four_by_max_is_the_worked_case():
    story = explain(ExplainRequest(schedule="ring", op="max", values=MATRIX), DRAWN)
    assert [step.phase for step in story.steps] == ["share-reduce"] * 3 + ["share-only"] * 3
    assert all([m.source for m in step.messages] == [0, 1, 2, 3] for step in story.steps)
    assert all(m.target == (m.source + 1) % 4 for step in story.steps for m in step.messages)
    assert [m.start for m in story.steps[0].messages] == [0, 1, 2, 3]
    assert [step.values for step in story.steps] == [
        ((5, 2, 9, 8), (5, 8, 4, 7), (6, 8, 2, 9), (4, 7, 3, 8)),
        ((5, 2, 9, 8), (5, 8, 4, 8), (6, 8, 2, 9), (4, 8, 3, 8)),
        ((5, 8, 9, 8), (5, 8, 9, 8), (6, 8, 2, 9), (6, 8, 3, 8)),
        ((6, 8, 9, 8), (5, 8, 9, 8), (6, 8, 9, 9), (6, 8, 3, 9)),
        ((6, 8, 9, 9), (6, 8, 9, 8), (6, 8, 9, 9), (6, 8, 9, 9)),
        ((6, 8, 9, 9), (6, 8, 9, 9), (6, 8, 9, 9), (6, 8, 9, 9)),
    ]
    assert story.totals == {
        "rounds": 6,
        "messages": 24,
        "messages_between_hosts": 0,
        "values_sent": [6, 6, 6, 6],
        "bytes_sent": [24, 24, 24, 24],
        "lower_bound_values": 6,
        "lower_bound_bytes": 24,
    }


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_schedule_ends_with_the_result_in_all_hands(data):
    name = data.draw(st.sampled_from(list(SCHEDULES)))
    op = data.draw(st.sampled_from(list(FOLDS)))
    workers, length = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 12))
    whole = st.integers(-9, 9)
    rows = data.draw(
        st.lists(st.lists(whole, min_size=length, max_size=length), min_size=workers, max_size=workers)
    )
    values = ";".join(" ".join(map(str, row)) for row in rows)
    segments = data.draw(st.integers(1, 3))
    story = explain(ExplainRequest(schedule=name, op=op, values=values, segments=segments), DRAWN)
    expected = [
        reduce(FOLDS[op], column) / (workers if op == "mean" else 1) for column in zip(*rows, strict=True)
    ]
    (stage,) = story.stages
    end = stage.states[-1]
    assert all(list(held) == pytest.approx(expected) for held in end.values)
    assert all(end.finished(rank, chunk) for rank in range(workers) for chunk, _ in enumerate(stage.columns))
    assert max(story.totals["values_sent"]) >= story.totals["lower_bound_values"]


@pytest.mark.parametrize("workers", [2, 3, 5, 8])
@pytest.mark.parametrize("name", SCHEDULES)
def test_what_is_said_of_a_message_is_what_happened(name, workers):
    stage = only_stage(schedule=name, op="sum", workers=workers, segments=2)
    for before, step in pairwise(stage.states):
        assert step.sentence.endswith(".")
        for receipt in step.received:
            target = receipt.target
            what, origin, arithmetic = re.fullmatch(
                rf"p{target} receives (.+) from ([p0-9, ]+)(?:: (.+))?", receipt.text
            ).groups()
            found = [*map(int, re.findall(r"\d+", what))] or [0, len(stage.columns) - 1]
            part = slice(found[0], found[-1] + 1)
            came = [numbers_in(before.cells[int(source)][part]) for source in re.findall(r"\d+", origin)]
            had = numbers_in(before.cells[target][part])
            (how,) = {m.on_receive for m in step.messages if (m.target, m.start) == (target, found[0])}
            made = tuple(map(sum, zip(had, *came, strict=True))) if how == "reduce" else came[-1]
            assert numbers_in(step.cells[target][part]) == made
            assert arithmetic is None if len(made) > 4 else arithmetic.endswith((number(made[-1]), ")"))


def test_a_chunk_is_finished_by_whose_values_are_in_it_not_by_how_it_looks():
    story = explain(ExplainRequest(schedule="ring", op="max", values="7 7 7; 7 7 7; 7 7 7"), DRAWN)
    done = [sum(step.finished(r, c) for r in range(3) for c in range(3)) for step in story.steps]
    assert done == [0, 3, 6, 9]
    assert story.steps[0].parts[1] == ((0, 1), (1,), (1,))


def test_a_mean_is_a_sum_that_everybody_divides():
    stage = only_stage(schedule="tree", op="mean", values="1; 2; 6")
    assert stage.states[-2].values == ((9,), (9,), (9,))
    assert stage.states[-1].values == ((3,), (3,), (3,))
    assert [step.round for step in stage.steps] == [1, 2, 3, 4, None]


def test_one_process_is_done_before_it_begins():
    stage = only_stage(schedule="halving-doubling", op="mean", workers=1)
    assert stage.steps == ()


def test_fewer_values_than_processes_leave_chunks_empty():
    stage = only_stage(schedule="ring", op="sum", values="1; 2; 3; 4")
    assert stage.start.cells[0] == ((), (), (), (1,))
    assert stage.states[-1].values == ((10,),) * 4


def test_hosts_are_where_the_user_puts_them():
    story = explain(ExplainRequest(schedule="hierarchical", hosts="3,2,1"), DRAWN)
    assert story.hosts == (0, 0, 0, 1, 1, 2)
    assert story.totals["messages_between_hosts"] == 2 * 2 * 3, "a ring of three hosts"
    assert explain(ExplainRequest(schedule="hierarchical", workers=5), DRAWN).hosts == (0, 0, 0, 1, 1)


def test_drawn_values_repeat_and_depend_on_the_seed():
    starts = [only_stage(schedule="ring", seed=seed).start.values for seed in (None, 1, 2)]
    assert starts[0] == starts[1] != starts[2]
    assert all(len(set(column)) == 4 for column in zip(*starts[0], strict=True)), "no ties to puzzle over"


def test_json_takes_more_than_a_drawing():
    told = json.loads(
        json.dumps(to_document(explain(ExplainRequest(schedule="ring", workers=WRITTEN.workers), WRITTEN)))
    )
    assert len(told["stages"][0]["steps"]) == 2 * (WRITTEN.workers - 1)
    assert told["agreed"] is True


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (5, "5"),
        (-2.5, "-2.5"),
        (14 / 3, "4.667"),
        (100, "100"),
        (-0.0, "0"),
        (1e20, "1e+20"),
        (1e-9, "1e-09"),
    ],
)
def test_numbers_look_as_people_write_them(value, shown):
    assert number(value) == shown
    assert math.isclose(float(shown), value, rel_tol=1e-4)
