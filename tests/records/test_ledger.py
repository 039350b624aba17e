"""Neither the first step of a process, nor a join, an evaluation or an unfinished step is counted as typical."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.records.spans import (
    KINDS,
    Span,
    StepRecord,
    TimeLedger,
    Totals,
    mean_typical_step,
    sent_a_step,
)


def record(*parts: tuple[str, float], sent: int = 0, **changes: object) -> StepRecord:
    spans = [Span(kind, 0.0, length) for kind, length in parts]
    return StepRecord(step=0, samples=8, spans=spans, sent=sent, **changes)  # type: ignore[arg-type]


def add_up(*records: StepRecord) -> Totals:
    ledger = TimeLedger()
    for one in records:
        ledger.add(one)
    return ledger.totals()


def test_a_worker_that_finished_no_step_is_in_no_mean():
    """If this failed, a worker that died early would make the others look twice as fast."""
    busy = add_up(*[record(("forward", 0.01), sent=100)] * 4)
    assert mean_typical_step([busy, Totals()]).forward == pytest.approx(0.01)
    assert sent_a_step([busy, Totals()]) == 100
    assert (mean_typical_step([]).total, sent_a_step([])) == (0.0, 0.0)


def accounted(totals: Totals) -> float:
    return totals.in_steps.total + totals.in_warm_up.total + sum(totals.outside.values())


def test_a_warm_up_is_no_part_of_the_typical_step():
    """If this failed, a short run would show the time in which memory was allocated as its steps' own."""
    usual = [("forward", 0.010), ("backward", 0.016)]
    later = [record(*usual) for _ in range(5)] + [record(("forward", 0.010), ("backward", 0.060))]
    totals = add_up(record(("forward", 0.119), ("backward", 0.100), warm_up=True), *later)
    assert totals.typical.forward == pytest.approx(0.010)
    assert totals.typical.total == pytest.approx(0.026)
    assert (totals.steps, totals.warm_up_steps, totals.samples) == (7, 1, 56)
    assert accounted(totals) == pytest.approx(sum(totals.seconds.values())) == pytest.approx(0.219 + 0.2)


def test_steps_of_about_a_second_are_told_apart_as_others_are():
    """If this failed, a few long steps would count as typical just because steps take about a second."""
    lengths = [0.96] * 6 + [1.04] * 2
    totals = add_up(*(record(("forward", length)) for length in lengths))
    assert totals.typical.forward == pytest.approx(0.96)


def test_steps_that_exchange_now_and_then_keep_their_share():
    """If this failed, local SGD would seem to communicate nothing, or with every step."""
    alone, meets = [("backward", 0.010)], [("backward", 0.010), ("communicate", 0.040)]
    totals = add_up(*(record(*(meets if n % 4 == 3 else alone), sent=1000 * (n % 4 == 3)) for n in range(40)))
    assert totals.typical.communicate == pytest.approx(0.010)
    assert totals.typical.backward == pytest.approx(0.010)


def test_what_is_outside_of_steps_is_named():
    start = record(("communicate", 0.5), ("wait", 0.1), is_step=False, sent=10)
    evaluation = record(("evaluate", 2.0), ("wait", 0.2), ("other", 0.1), is_step=False)
    cut = record(("forward", 0.3), ("wait", 0.4), is_step=False)
    totals = add_up(start, record(("forward", 1.0), sent=5), evaluation, cut)
    assert totals.outside == pytest.approx(
        {"start": 0.6, "evaluate": 2.0, "wait": 0.2, "other": 0.1, "unfinished": 0.7}
    )
    assert (totals.steps, totals.typical.forward, totals.step_sent, totals.sent) == (1, 1.0, 5, 15)


def test_the_only_step_is_the_typical_one():
    totals = add_up(record(("forward", 0.2), warm_up=True))
    assert totals.typical.forward == 0.2
    assert add_up() == Totals()


lengths = st.lists(st.floats(0, 1e3), min_size=len(KINDS), max_size=len(KINDS))


@given(steps=st.lists(st.tuples(lengths, st.sampled_from([0, 0, 1, 1000]), st.booleans()), max_size=20))
def test_no_time_disappears_and_the_typical_step_is_no_longer_than_the_longest(steps):
    ledger = TimeLedger()
    for seconds, sent, is_step in steps:
        ledger.count(StepRecord(1, samples=1, sent=sent, is_step=is_step), seconds)
    totals = ledger.totals()
    assert accounted(totals) == pytest.approx(sum(sum(seconds) for seconds, _, _ in steps))
    assert sum(totals.seconds.values()) == pytest.approx(accounted(totals))
    sums = [sum(seconds) for seconds, _, is_step in steps if is_step]
    typical = totals.typical.total
    assert min(sums, default=0) * (1 - 1e-9) <= typical <= max(sums, default=0) * (1 + 1e-9)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=40))
def test_the_typical_step_is_the_mean_of_the_middle_half(lengths):
    """Against the plain definition, within the width of a class of lengths."""
    ledger = TimeLedger()
    for length in lengths:
        ledger.count(StepRecord(1, samples=1), [length] + [0.0] * (len(KINDS) - 1))
    fine = [length for length in sorted(lengths) for _ in range(4)]
    middle = fine[len(lengths) : 3 * len(lengths)]
    assert ledger.totals().typical.total == pytest.approx(sum(middle) / len(middle), rel=0.05)
