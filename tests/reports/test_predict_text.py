"""A prediction as people read it, from a record made by hand."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from paceline.records.spans import StepBreakdown
from paceline.reports.predict.chart import chart_lines, picture
from paceline.reports.predict.codecs import codec_answers, codec_lines
from paceline.reports.predict.sentences import findings, verdict
from paceline.reports.predict.text import heading, module_lines, table_lines, text_lines
from paceline.reports.svg import Axis, tick_label
from paceline.studies.predict.prediction import (
    BandwidthNeed,
    Basis,
    CodecComparison,
    CodecStep,
    Findings,
    Knee,
    Limit,
    LimitingLink,
    ModuleCost,
    Prediction,
    PredictionRow,
    Speedup,
    StrategyPrediction,
    WorkerRange,
)


def row(workers: int, step: float = 0.1, **more) -> PredictionRow:
    rate = 32 * workers / step
    return PredictionRow(
        workers=workers,
        batch=32,
        samples=32 * workers,
        breakdown=StepBreakdown(
            forward=0.03, backward=0.05, apply=0.01, communicate=step - 0.09, hidden=0.02
        ),
        step=step,
        low=0.9 * step,
        high=1.2 * step,
        sent=1e6,
        rate=rate,
        speed_up=rate / 320,
        efficiency=rate / 320 / workers,
        bound="bandwidth",
        path="groups",
        **more,
    )


WIRE = LimitingLink(where="network", name="8 Gbit/s Ethernet", bandwidth=1e9, latency=20e-6)
FOUND = Findings(
    well=WorkerRange(workers=3, searched=1000),
    knee=Knee(reach=WorkerRange(workers=2, searched=1000), bound="bandwidth", where="network", dip=None),
    crossover=WorkerRange(workers=66, searched=1000),
    slower=WorkerRange(workers=1, searched=64),
    limit=Limit(workers=4, bound="bandwidth", wire=WIRE, without=3.9),
    bandwidth=BandwidthNeed(workers=4, wire=WIRE, needed=2e9, left=0.001),
    helps=(Speedup(change=(("network", "50gbit"),), workers=4, gain=1.3, speed_up=2.3),),
)


def told(*series: StrategyPrediction) -> Prediction:
    basis = Basis(level="catalogue", compute="a sheet", links="a cable", interval="a guess")
    rows = (row(1), row(2), row(4, 0.2))
    return Prediction(
        name="net",
        parameters=10,
        scaling="weak",
        batch=32,
        cost_model="paceline",
        basis=basis,
        series=series or (StrategyPrediction(strategy="all-reduce", rows=rows, findings=FOUND),),
    )


def test_the_answer_comes_first_then_the_table_then_why_then_what_it_rests_on():
    lines = text_lines(told())
    assert lines[0].startswith(
        "Faster than one worker: 4 workers are 2.00x as fast (50 % efficiency), limited by the bandwidth of "
        "the network (8 Gbit/s Ethernet); 80 % efficiency up to 3 workers"
    )
    assert lines[2] == "net, 10 parameters, batch 32 per worker, all-reduce"
    assert lines[4].split()[:3] == ["workers", "forward", "backward"]
    assert [line.split(":")[0] for line in lines[9:13]] == [
        "Knee",
        "Bandwidth",
        "Crossover",
        "What would help",
    ]
    assert lines[14].startswith("Level: catalogue.")


def test_one_parameter_is_one():
    assert text_lines(replace(told(), parameters=1))[2].startswith("net, 1 parameter, ")


def test_one_worker_alone_has_no_knee():
    alone = replace(FOUND, limit=None, bandwidth=None, helps=())
    lines = text_lines(told(StrategyPrediction(strategy="all-reduce", rows=(row(1),), findings=alone)))
    assert not any(line.startswith("Knee") for line in lines)
    assert lines[6:8] == ["", "Level: catalogue. Compute: a sheet."]


def answered(speed_ups: dict[int, float], **changes) -> str:
    """The answer for workers that are so many times as fast as one."""
    rows = tuple(row(workers, 0.1 * workers / speed_up) for workers, speed_up in speed_ups.items())
    return verdict(
        told(StrategyPrediction(strategy="all-reduce", rows=rows, findings=replace(FOUND, **changes)))
    )


WHY = "limited by the bandwidth of the network (8 Gbit/s Ethernet)"


@pytest.mark.parametrize(
    ("speed_ups", "changes", "says"),
    [
        (
            {1: 1, 2: 0.5},
            {"slower": WorkerRange(workers=2, searched=2)},
            f"Slower than one worker: 2 workers (0.50x); 4 workers are {WHY}.",
        ),
        (
            {2: 0.5},
            {"slower": WorkerRange(workers=32, searched=32)},
            f"Slower than one worker: 2 workers (0.50x); 4 workers are {WHY}; no number of workers up to 32 is faster.",
        ),
        (
            {1: 1, 2: 0.5, 4: 0.9, 8: 0.95},
            {"slower": WorkerRange(workers=11, searched=128)},
            f"Slower than one worker: 2 workers (0.50x), 4 workers (0.90x), 8 workers (0.95x); 4 workers are {WHY}; "
            "from 12 workers on it is faster.",
        ),
        (
            {2: 0.03, 4: 0.5, 8: 0.7, 16: 0.8, 32: 1.6},
            {"slower": WorkerRange(workers=19, searched=128)},
            f"Slower than one worker: 2 workers (0.03x) to 16 workers (0.80x); 4 workers are {WHY}; from 20 workers on "
            "it is faster; 32 workers are 1.60x as fast (5 % efficiency).",
        ),
        (
            {2: 1.5, 4: 1.2, 8: 0.8},
            {},
            f"Slower than one worker: 8 workers (0.80x); 4 workers are {WHY}; 2 workers are 1.50x as fast "
            "(75 % efficiency).",
        ),
        (
            {2: 1.9, 4: 3.6},
            {"well": WorkerRange(workers=99, searched=100)},
            "Faster than one worker: 4 workers are 3.60x as fast (90 % efficiency).",
        ),
        (
            {2: 1.5},
            {"well": WorkerRange(workers=1, searched=9)},
            "Faster than one worker: 2 workers are 1.50x as fast (75 % efficiency), "
            f"{WHY}; 80 % efficiency up to 1 worker.",
        ),
        (
            {2: 1.9, 4: 1.2},
            {"well": WorkerRange(workers=99, searched=100)},
            "Faster than one worker: 4 workers are 1.20x as fast (30 % efficiency); fewer are faster: 2 workers are "
            "1.90x as fast (95 % efficiency); 4 workers are 0.63x as fast as 2.",
        ),
    ],
)
def test_the_answer_says_faster_or_slower_than_one_by_how_much_and_why(speed_ups, changes, says):
    assert answered(speed_ups, **changes) == says


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        (replace(FOUND.limit, bound="latency"), "the latency of the network (8 Gbit/s Ethernet, 20 us)"),
        (
            replace(FOUND.limit, wire=replace(WIRE, where="inside", name="PCIe")),
            "the bandwidth inside the host (PCIe, 8 Gbit/s)",
        ),
        (replace(FOUND.limit, wire=replace(WIRE, name="")), "the bandwidth of the network (8 Gbit/s)"),
        (replace(FOUND.limit, bound="server", wire=None), "the server's own work"),
        (replace(FOUND.limit, bound="server"), "the server's link (8 Gbit/s Ethernet)"),
        (
            replace(FOUND.limit, bound="encryption", wire=None, cipher=2e9),
            "encryption of messages to servers (16 Gbit/s per process)",
        ),
        (replace(FOUND.limit, bound="compute", wire=None), "computing itself"),
    ],
)
def test_the_limit_is_named_with_its_link(limit, says):
    assert f"limited by {says}" in answered(
        {1: 1, 2: 0.5}, limit=limit, slower=WorkerRange(workers=2, searched=2)
    )


def test_the_heading_names_what_is_not_usual():
    said = {
        "codecs": ("int8", "half"),
        "collective": "ring",
        "servers": 4,
        "jitter": 0.1,
        "per_host": 8,
        "inside": "nvlink3",
    }
    series = replace(told().series[0], strategy="ps")
    one = replace(told(series), settings=said, scaling="strong", codecs=(compared(FAST),))
    assert heading(one) == (
        "net, 10 parameters, a batch of 32 divided among all workers, ps, codec int8, collective ring, 4 servers, "
        "jitter 0.1, 8 workers per host, nvlink3 inside"
    )
    usual = {"codecs": ("identity", "int8"), "collective": "native", "servers": 1}
    assert heading(replace(told(), settings=usual)) == heading(told())


def test_the_last_doubling_is_told_where_it_gains_little():
    assert verdict(told()).endswith("; 4 workers are 1.00x as fast as 2.")


def test_parts_of_a_row_add_up_to_its_step():
    titles, *rows = (line.split() for line in table_lines(told()))
    cells = dict(zip(titles[: titles.index("step")], rows[-1], strict=False))
    parts = [float(cells[name]) for name in ("forward", "backward", "apply", "comm")]
    assert sum(parts) - float(cells["hidden"]) == pytest.approx(200)


def test_columns_of_nothing_are_left_out_and_money_appears_where_there_is_a_price():
    assert "cost/1M" not in table_lines(told())[0]
    assert "wait" not in table_lines(told())[0]
    priced = StrategyPrediction(
        strategy="ps", rows=(row(1, cost_million=1.5, finish=7200.0, cost=88.0),), findings=FOUND
    )
    line = table_lines(told(priced))
    assert line[0].split()[-3:] == ["cost/1M", "time", "cost"]
    assert line[1].split()[-4:] == ["1.5", "2.0", "h", "88"]


def test_several_strategies_get_one_table_and_a_verdict_by_ranges():
    slow = StrategyPrediction(strategy="ps", rows=(row(1, 0.08), row(2), row(4, 0.3)), findings=FOUND)
    both = told(told().series[0], slow)
    assert verdict(both) == ("Fastest in samples a second: ps with 1 worker, all-reduce with 2 to 4 workers.")
    lines = table_lines(both)
    assert lines[0].split()[:2] == ["strategy", "workers"]
    assert [line.split()[:2] for line in lines[1:3]] == [["all-reduce", "1"], ["ps", "1"]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"crossover": WorkerRange(workers=1000, searched=1000)},
            "up to 1,000 workers computing takes longer",
        ),
        (
            {"bandwidth": replace(FOUND.bandwidth, needed=None)},
            "no bandwidth makes 4 workers compute-bound (an unlimited one leaves 1",
        ),
        (
            {"bandwidth": replace(FOUND.bandwidth, needed=5e8)},
            "4 Gbit/s makes 4 workers compute-bound; the network has 8 Gbit/s",
        ),
        (
            {"knee": replace(FOUND.knee, reach=WorkerRange(workers=0, searched=9))},
            "Knee: 1 worker; beyond it doubling gives less than 1.5x, limited by the bandwidth",
        ),
        (
            {"knee": replace(FOUND.knee, reach=WorkerRange(workers=9, searched=9))},
            "Knee: none up to 4 workers; doubling gives at least 1.5x.",
        ),
        (
            {"knee": replace(FOUND.knee, reach=WorkerRange(workers=60, searched=99))},
            "beyond what was asked it ends at 60 workers, limited by the bandwidth of the network.",
        ),
        (
            {"knee": replace(FOUND.knee, reach=WorkerRange(workers=7400, searched=99999))},
            "Knee: none up to 4 workers; doubling gives at least 1.5x.",
        ),
        ({"knee": replace(FOUND.knee, dip=1)}, "less also from 1 to 2"),
        ({}, "What would help: --network 50gbit makes 4 workers 1.30x as fast as now, 2.30x one worker."),
    ],
)
def test_findings_say_what_was_found_and_how_far_was_looked(change, says):
    assert says in "\n".join(findings(replace(told().series[0], findings=replace(FOUND, **change))))


def test_the_chart_marks_every_row_and_keeps_to_ascii_where_it_must():
    lines = chart_lines(told(), unicode=False)
    assert "".join(lines).isascii()
    assert sum(line.count("o") for line in lines[1:-1]) == 3
    assert len({len(line) > 100 for line in lines}) == 1


def test_the_picture_is_xml_with_a_line_a_strategy_and_escaped_names():
    odd = replace(told().series[0], strategy="<ps&>")
    tree = ElementTree.fromstring(picture(told(told().series[0], odd)))
    names = [element.tag.partition("}")[2] for element in tree.iter()]
    assert names.count("polyline") == 2
    assert any((element.text or "").startswith("<ps&>") for element in tree.iter())


def test_the_picture_shows_knee_limit_and_one_worker_in_both_colours_and_tells_intervals_apart():
    other = replace(told().series[0], strategy="ps")
    drawn = picture(told(told().series[0], other))
    tree = ElementTree.fromstring(drawn)
    texts = [element.text for element in tree.iter() if element.tag.endswith("text")]
    assert texts.count("knee 2") == 2
    assert "ps: 4 workers limited by the bandwidth of the network (8 Gbit/s Ethernet)" in texts
    assert "prefers-color-scheme: dark" in drawn
    assert "#ffffff" not in drawn.partition("</style>")[2], "a fixed colour stays as it is in the dark"
    dashes = [element.get("stroke-dasharray") for element in tree.iter() if element.tag.endswith("polygon")]
    assert len(set(dashes)) == 2
    lines = [element for element in tree.iter() if element.get("class") == "reference"]
    assert any(line.get("y1") == line.get("y2") for line in lines), "the rate of one worker"


def test_a_knee_beyond_what_is_shown_is_not_drawn():
    far = replace(FOUND.knee, reach=WorkerRange(workers=438, searched=1000))
    series = replace(told().series[0], findings=replace(FOUND, knee=far))
    assert "knee" not in picture(told(series))


def test_a_single_count_still_has_axes():
    axis = Axis.around([8.0])
    assert axis.place(8.0) == pytest.approx(0.5)
    assert [tick_label(value) for value in (0.5, 64, 20_000, 5e6)] == ["0.5", "64", "20k", "5M"]


def test_layers_end_with_their_sum():
    layer = ModuleCost(
        module="a", kinds="norm", flops=1e9, bytes=2e6, forward=0.001, backward=0.002, share=0.5
    )
    lines = module_lines([layer, layer])
    assert lines[-1].split() == ["all", "2.000", "4", "MB", "2.000", "4.000", "100.0", "%"]


def compared(*steps: CodecStep, strategy: str = "all-reduce") -> CodecComparison:
    plain = CodecStep(codec="identity", sent=40e6, coding=0.0, step=0.1, gain=1.0)
    return CodecComparison(strategy=strategy, workers=4, wire=WIRE, steps=(plain, *steps))


FAST = CodecStep(codec="int8", sent=1e7, coding=0.004, step=0.04, gain=2.5, pays="below", below=2e9)
LOSING = CodecStep(codec="top-k", sent=4e6, coding=0.06, step=0.12, gain=0.83, pays="below", below=1e8)


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (
            (LOSING, FAST),
            "Codecs: int8 is fastest, 2.50x as fast as identity at 8 Gbit/s, for a worker sends 10 MB a step instead "
            "of 40 MB; it pays below 16 Gbit/s; top-k is slower (0.83x), for encoding and decoding take 60 ms a step; "
            "it pays below 800 Mbit/s.",
        ),
        (
            (FAST,),
            "Codecs: int8 is 2.50x as fast as identity at 8 Gbit/s, for a worker sends 10 MB a step instead of 40 MB; "
            "it pays below 16 Gbit/s.",
        ),
        (
            (replace(LOSING, gain=1.004),),
            "Codecs: none pays at 8 Gbit/s; top-k gains nothing, and pays below 800 Mbit/s.",
        ),
        (
            (replace(LOSING, sent=2e8, pays="never", below=None),),
            "Codecs: none pays at 8 Gbit/s; top-k is slower (0.83x), for a worker sends 200 MB a step instead of "
            "40 MB; it pays at no bandwidth.",
        ),
        (
            (FAST, replace(FAST, codec="half", gain=1.5, pays="always", below=None)),
            "; half gives 1.50x and pays at any bandwidth.",
        ),
    ],
)
def test_the_codec_that_wins_is_named_first_with_why_and_where_each_pays(steps, says):
    (answer,) = codec_answers([compared(*steps)])
    assert answer.endswith(says)


def test_codecs_have_a_table_of_their_own_below_the_one_of_the_first():
    lines = text_lines(replace(told(), codecs=(compared(FAST, LOSING),)))
    assert lines[1].startswith("Codecs: int8 is fastest")
    place = lines.index("Codecs, 4 workers, at 8 Gbit/s:")
    assert lines[place + 2 : place + 6] == [
        "codec     sent a step  coding ms  step ms  against identity  pays below",
        "identity        40 MB          -    100.0             1.00x           -",
        "int8            10 MB        4.0     40.0             2.50x   16 Gbit/s",
        "top-k            4 MB       60.0    120.0     0.83x: slower  800 Mbit/s",
    ]


def with_codecs(*codecs: str, comparisons: tuple[CodecComparison, ...] = ()) -> list[str]:
    return text_lines(replace(told(), codecs=comparisons, settings={"codecs": codecs}))


def test_the_codec_that_rows_are_of_is_named_with_them_and_a_faster_one_is_a_remedy():
    lines = with_codecs("top-k", "int8", comparisons=(compared(LOSING, FAST),))
    assert lines[0].startswith("With top-k: faster than one worker: 4 workers")
    place = lines.index("With top-k:")
    assert lines[place + 1].startswith("  Knee: ")
    assert (
        lines[place + 5]
        == "  What would help: --codec int8 makes 4 workers 3.01x as fast as now (see above)."
    )
    lines = with_codecs("int8", "top-k", comparisons=(compared(FAST, LOSING),))
    assert "With int8:" in lines
    assert not any("--codec" in line for line in lines), "it is the fastest already"
    assert "With int8:" not in with_codecs("int8", comparisons=(compared(FAST),)), "one codec needs no title"
    assert with_codecs("identity:memory=none", "int8", comparisons=(compared(FAST),))


def test_one_worker_is_told_that_its_codec_is_unused():
    lines = with_codecs("half")
    assert lines[0].startswith("Faster than one worker")
    assert lines[2].endswith(", codec half (unused: one worker sends nothing)")


def test_what_is_assumed_of_messages_of_which_only_data_tell_the_length_stands_below_the_table():
    both = [compared(replace(FAST, codec="threshold", assumed=0.0099999)), compared(FAST, strategy="ps")]
    assert codec_lines(both)[-2:] == [
        "",
        "Assumed, as only data can tell: a message of threshold has 1 % of the elements.",
    ]


def test_codecs_of_several_strategies_share_a_table_and_have_a_sentence_each():
    both = [compared(FAST), compared(LOSING, strategy="ps")]
    assert [line.partition(":")[0] for line in codec_answers(both)] == [
        "Codecs with all-reduce",
        "Codecs with ps",
    ]
    assert [line.split()[0] for line in codec_lines(both)[3:]] == ["all-reduce", "all-reduce", "ps", "ps"]
