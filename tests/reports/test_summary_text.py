import statistics
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.records.spans import KINDS, Span, StepRecord, TimeLedger, Totals
from paceline.records.summary import Summary
from paceline.reports.summary import summary_text
from paceline.reports.text import bar, figure, percent, rounded_to_add_up, time_left
from paceline.studies.recorded import read_recorded
from recorded_runs import GOLDEN

FOLDER = "runs/20261115-184207-digits"
STEP = {
    "data": 0.05,
    "forward": 0.71,
    "backward": 1.02,
    "communicate": 0.14,
    "wait": 0.11,
    "apply": 0.07,
    "other": 0.05,
}


def totals(slowdown: float = 1.0, scale: float = 1.0, first: float = 0.0, **changes: float) -> Totals:
    """1,350 steps, each of the milliseconds above; the first may take longer, by so many milliseconds of forward."""
    parts = {
        **STEP,
        "forward": STEP["forward"] * slowdown,
        "backward": STEP["backward"] * slowdown,
        **changes,
    }
    ledger = TimeLedger()
    one = [scale * 1e-3 * parts.get(kind, 0.0) for kind in KINDS]
    for step in range(1350):
        took = [one[0], one[1] + 1e-3 * first, *one[2:]] if first and not step else one
        warm_up = bool(first) and not step
        record = StepRecord(step, samples=32, sent=82088, received=82088, warm_up=warm_up)
        ledger.count(record, took, scale * 0.09e-3)
    between = {"evaluate": scale * 0.41, "checkpoint": scale * 0.09}
    ledger.count(StepRecord(1350, is_step=False), [between.get(kind, 0.0) for kind in KINDS])
    return ledger.totals()


SUMMARY = Summary(
    name="digits",
    runtime="live",
    ending="budget",
    workers=2,
    steps=1350,
    epochs=30.0,
    seconds=11.2,
    samples=86400,
    parameters=20522,
    target=0.97,
    target_seconds=7.9,
    final={"test_loss": 0.05, "accuracy": 0.9861},
    totals=[totals(), totals()],
    cpu_percent=97.2,
    memory_bytes=412e6,
)


def test_a_run_ends_with_the_answer_and_where_a_step_went():
    assert summary_text(SUMMARY, FOLDER) == (
        "reached 0.9861 in 11.2 s (97 % after 7.9 s); runs/20261115-184207-digits\n"
        "\n"
        "where a step went       ms      %\n"
        "  data                0.05    2 %  ▌\n"
        "  forward             0.71   33 %  ███████▉\n"
        "  backward            1.02   48 %  ███████████▍\n"
        "  communicate         0.14    7 %  █▋ (0.09 hidden)\n"
        "  wait for others     0.11    5 %  █▎\n"
        "  apply               0.07    3 %  ▊\n"
        "  rest                0.05    2 %  ▌\n"
        "  typical step        2.15  100 %\n"
        "1,350 steps per worker, 30 epochs, 29,767 samples/s\n"
        "a worker's 3.4 s: steps 2.9 s, evaluation 410 ms, checkpoints 90 ms\n"
        "sent 82.1 kB per step and worker; a worker used 97 % of a core and 412 MB"
    )


def test_what_coding_took_of_communication_is_told_in_a_line_of_its_own():
    last = summary_text(replace(SUMMARY, coding=0.0012)).splitlines()[-1]
    assert last == "encoding and decoding took 1.2 ms a step, counted as communicate"
    assert "encoding" not in summary_text(replace(SUMMARY, coding=0.0)), "a codec that was not used"


def test_uneven_workers_are_shown_beside_the_mean_and_in_ascii_where_need_be():
    uneven = replace(SUMMARY, totals=[totals(wait=1.9), totals(slowdown=2.4, wait=0)])
    assert summary_text(uneven, FOLDER, blocks=False).splitlines()[2:12] == [
        "where a step went       ms      %   rank 0   rank 1",
        "  data                0.05    1 %     0.05     0.05",
        "  forward             1.21   29 %     0.71     1.70  ###",
        "  backward            1.73   41 %     1.02     2.45  #####",
        "  communicate         0.14    3 %     0.14     0.14  (0.09 hidden)",
        "  wait for others     0.95   23 %     1.90     0.00  ###",
        "  apply               0.07    2 %     0.07     0.07",
        "  rest                0.05    1 %     0.05     0.05",
        "  typical step        4.20  100 %     3.94     4.46",
        "rank 1 computes 2.31 times as long as rank 0",
    ]


def test_the_first_step_is_told_apart_and_not_counted():
    """If this failed, a short run would show its warm-up as if every step took so long."""
    told = summary_text(replace(SUMMARY, totals=[totals(first=200)] * 2), FOLDER).splitlines()
    assert told[10] == "  typical step        2.15  100 %"
    assert told[11:14] == [
        "1,350 steps per worker, 30 epochs, 29,767 samples/s",
        "the first step took 202 ms, 94 times as long",
        "a worker's 3.6 s: steps 3.1 s, evaluation 410 ms, checkpoints 90 ms",
    ]


def test_where_some_steps_take_much_longer_the_mean_is_shown_as_well():
    """If this failed, a worker that waits long now and then would seem never to wait."""
    ledger = TimeLedger()
    for step in range(100):
        wait = 0.050 if step % 10 == 9 else 0.0
        ledger.add(StepRecord(step, 8, [Span("forward", 0.0, 0.010), Span("wait", 0.0, wait)]))
    lines = summary_text(replace(SUMMARY, totals=[ledger.totals()])).splitlines()
    assert lines[2] == "where a step went       ms      %  mean ms"
    assert lines[7].split()[:7] == ["wait", "for", "others", "0.00", "0", "%", "5.00"]
    assert lines[10].split() == ["typical", "step", "10.00", "100", "%", "15.00"]


def test_a_worker_that_finished_no_step_is_counted():
    """If this failed, "1 to 2 steps per worker" would hide one that made none."""
    ledger = TimeLedger()
    ledger.count(StepRecord(0, is_step=False), [0.0, 0.5, *[0.0] * (len(KINDS) - 2)])
    text = summary_text(replace(SUMMARY, totals=[totals(), ledger.totals(), Totals()]))
    assert "\n0 to 1,350 steps per worker, " in text
    assert "unfinished steps 250 ms" in text


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"target": None}, "ended at 0.9861 after 11.2 s"),
        ({"target": 0.995, "target_seconds": None}, "ended at 0.9861 after 11.2 s (99.5 % not reached)"),
        ({"runtime": "virtual", "target": None}, "simulated: ended at 0.9861 after 11.2 s"),
        ({"final": {"test_loss": 0.25}}, "ended at a test loss of 0.2500 after 11.2 s"),
        ({"final": {}, "target": None}, "1,350 steps in 11.2 s, 2.15 ms a step typically"),
        (
            {"final": {}, "runtime": "virtual"},
            "simulated: 1,350 steps in 11.2 s, 2.15 ms a step typically",
        ),
        ({"ending": "interrupted"}, "interrupted at step 1,350 (epoch 30.00) after 11.2 s"),
    ],
)
def test_the_first_line_says_what_kind_of_run_it_was(changes, first):
    assert summary_text(replace(SUMMARY, **changes)).splitlines()[0] == first


def test_a_summary_prints_no_command_because_only_the_launcher_knows_its_hosts():
    """If this failed, an interrupted run on several hosts would be told to resume on one."""
    assert "resume" not in summary_text(replace(SUMMARY, ending="interrupted"), FOLDER)


def test_a_run_that_ended_before_its_first_step_has_no_table():
    empty = replace(
        SUMMARY, ending="interrupted", steps=0, epochs=0.0, samples=0, totals=[Totals(), Totals()], final={}
    )
    assert summary_text(empty) == "interrupted at step 0 after 11.2 s"
    assert summary_text(replace(empty, ending="budget", seconds=0.0)) == "0 steps in 0 us"


def test_one_worker_sends_nothing_and_an_unsampled_run_claims_no_cpu():
    alone = totals()
    alone.sent = alone.step_sent = 0
    text = summary_text(replace(SUMMARY, totals=[alone], cpu_percent=None, memory_bytes=None))
    assert text.splitlines()[-1] == "sent nothing"
    assert "  communicate" in text
    silent = summary_text(replace(SUMMARY, totals=[totals(communicate=0, wait=0)]))
    assert "  forward" in silent
    assert "communicate" not in silent
    assert "wait" not in silent, "one worker has nobody to wait for"


@settings(max_examples=30)
@example(scale=0.03125, slowdown=2.0)
@given(scale=st.floats(1e-4, 1e5), slowdown=st.floats(1, 50))
def test_the_text_fits_80_columns_for_steps_of_any_length(scale, slowdown):
    one, two = totals(scale=scale, first=99), totals(scale=scale, slowdown=slowdown, first=99)
    summary = replace(SUMMARY, totals=[one, two])
    for predicted in (None, two.typical):
        assert max(map(len, summary_text(summary, FOLDER, predicted=predicted).splitlines())) <= 80


@settings(max_examples=30)
@given(parts=st.lists(st.floats(0, 1e4), min_size=7, max_size=7).filter(lambda parts: sum(parts) > 1e-9))
def test_the_shown_parts_add_up_to_the_shown_step(parts):
    worker = totals(**dict(zip(STEP, parts, strict=True)))
    lines = summary_text(replace(SUMMARY, totals=[worker])).splitlines()
    rows = lines[3 : 1 + next(place for place, line in enumerate(lines) if "typical step" in line)]
    *shown, step = (float(line[17:26]) for line in rows)
    *shares, whole = (int(line[26:33].removesuffix("%")) for line in rows)
    decimals = len(rows[-1][17:26].partition(".")[2])
    assert sum(shares) == whole == 100
    assert round(sum(shown), decimals) == step


@given(values=st.lists(st.floats(0, 1e6), max_size=9), digits=st.integers(0, 4))
def test_rounding_to_add_up_moves_no_number_by_a_whole_digit(values, digits):
    rounded = rounded_to_add_up(values, digits)
    assert sum(rounded) == pytest.approx(
        round(sum(values), digits), abs=1.01 * 10.0**-digits if sum(values) else 0
    )
    for value, shown in zip(values, rounded, strict=True):
        assert abs(value - shown) < 1.001 * 10.0**-digits


def test_bars_grow_with_their_share():
    assert [bar(share, 2, blocks=True) for share in (0, 0.25, 0.5, 1)] == ["", "▌", "█", "██"]
    assert [bar(share, 4, blocks=False) for share in (0, 0.25, 0.5, 1)] == ["", "#", "##", "####"]


def test_figures_keep_their_meaning_at_any_size():
    assert [figure(x) for x in (0.1, 0, 1e-5, 123456.0, float("nan"), float("inf"))] == [
        *("0.1000", "0.0000", "1.00e-05", "1.23e+05", "nan", "inf"),
    ]
    assert [percent(x) for x in (0.97, 0.975, 1)] == ["97 %", "97.5 %", "100 %"]
    assert [time_left(x) for x in (8.2, 720, 11160)] == ["8 s", "12 min", "3.1 h"]


def test_damaged_lines_of_a_record_are_told():
    """If this failed, sums would be too small without a word."""
    hurt = replace(totals(), damaged=2)
    told = summary_text(replace(SUMMARY, totals=[totals(), hurt]), FOLDER).splitlines()
    assert told[-1] == "2 lines of the record could not be read; what was there is in no sum"


def test_the_predicted_step_stands_beside_the_measured_one_part_by_part():
    run = read_recorded(GOLDEN / "all-reduce")
    text = summary_text(run.summary, predicted=run.forecast.row.breakdown)
    lines = text.splitlines()
    title = next(line for line in lines if line.startswith("where a step went"))
    table = lines[lines.index(title) + 1 :]
    end = title.index("predicted") + len("predicted")
    column = [float(line[end - 9 : end]) for line in table[:8]]
    assert sum(column[:-1]) == pytest.approx(column[-1]), "the parts do not add up"
    measured = statistics.fmean(one.typical.total for one in run.summary.totals)
    off = 100 * (run.forecast.row.step / measured - 1)
    assert table[7].endswith(f"  ({off:+.0f} %)")
    assert "predicted" not in summary_text(run.summary)
