"""The parts of the benchmark of collectives: the fit, the check of results, the columns, what may be asked for."""

import io
from dataclasses import asdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from collective_prices import predict_all_reduce, uniform_cluster
from paceline.clusters.cluster import Link
from paceline.collectives.execute import find_operation
from paceline.errors import UsageError
from paceline.reports.bench import BenchReport, conclusion, row, winners
from paceline.runtimes.live.run_store import check_equal
from paceline.shm.operations import OPERATIONS
from paceline.studies.collectives.group import PERIOD, BenchBackend, BenchGroup, Pattern, worth_measuring
from paceline.studies.collectives.probe import AlphaBeta, PiecewiseAlphaBeta, ProbeResult, fit_line, predict
from paceline.studies.collectives.request import (
    BENCH_BACKENDS,
    DTYPES,
    SIZES,
    BenchMeasurement,
    BenchPrediction,
    BenchRequest,
    BenchResult,
    BenchSettings,
    parse_only,
    parse_sizes,
)
from paceline.studies.collectives.run import measure_size

SAMPLES = (3_000, 30_000, 300_000, 3_000_000)


@given(st.floats(1e-6, 1e-2), st.floats(1e-11, 1e-7))
def test_the_fit_finds_the_latency_and_the_rate_that_made_the_times(latency, byte_seconds):
    true = AlphaBeta(latency=latency, byte_seconds=byte_seconds)
    found = fit_line([(size, true.seconds(size)) for size in SAMPLES])
    for size in (1_000, 50_000, 10_000_000):
        assert found.seconds(size) == pytest.approx(true.seconds(size), rel=1e-6)


def test_small_messages_count_as_much_as_large_ones():
    # 10 % too slow at the largest: by absolute squares that alone would set the latency, which is 100 us.
    times = [(size, 1e-4 + size * 8e-9 * (1.1 if size == SAMPLES[-1] else 1)) for size in SAMPLES]
    assert fit_line(times).latency == pytest.approx(1e-4, rel=0.1)


def test_no_figure_is_negative():
    faster_and_faster = [(1_000, 1e-6), (1_000_000, 5e-3)]
    assert fit_line(faster_and_faster).latency == 0
    ever_cheaper = [(1_000, 2e-3), (1_000_000, 1e-3)]
    assert fit_line(ever_cheaper).byte_seconds == 0


PAIRS = [
    (op, dtype)
    for op, operation in OPERATIONS.items()
    for dtype in DTYPES
    if getattr(torch, dtype) in operation.types
]


@pytest.mark.parametrize(("op", "dtype"), PAIRS)
def test_every_type_can_be_checked_exactly(op, dtype):
    kind = getattr(torch, dtype)
    operation = find_operation(op, kind)
    ranks = [Pattern(operation, kind, rank, 5) for rank in range(5)]
    tensors = [torch.zeros(2 * PERIOD + 100, dtype=kind) for _ in ranks]
    for pattern, tensor in zip(ranks, tensors, strict=True):
        pattern.fill(tensor)
    result = tensors[4].clone()  # another order than the expected result's own
    for tensor in tensors[:4]:
        operation.combine(result, tensor)
    operation.finish(result, 5)
    assert all(pattern.holds(result) for pattern in ranks)
    assert not any(torch.equal(result, tensor) for tensor in tensors)


@given(st.integers(1, 3 * PERIOD), st.data())
@settings(max_examples=40, deadline=None)
def test_one_wrong_element_is_seen(length, data):
    operation = find_operation("sum", torch.float32)
    pattern = Pattern(operation, torch.float32, 0, 2)
    mine, other = torch.zeros(length), torch.zeros(length)
    pattern.fill(mine)
    Pattern(operation, torch.float32, 1, 2).fill(other)
    total = mine + other
    assert pattern.holds(total)
    total[data.draw(st.integers(0, length - 1))] += 1
    assert not pattern.holds(total)


@pytest.mark.parametrize("op", ["sum", "max", "product"])
@pytest.mark.parametrize("workers", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [250, 2_500, 25_000, 250_000])
def test_a_chunk_in_the_wrong_place_is_seen(op, workers, size):
    operation = find_operation(op, torch.float32)
    tensors = [torch.zeros(size) for _ in range(workers)]
    for rank, tensor in enumerate(tensors):
        Pattern(operation, torch.float32, rank, workers).fill(tensor)
    for other in tensors[1:]:
        operation.combine(tensors[0], other)
    operation.finish(tensors[0], workers)
    pattern = Pattern(operation, torch.float32, 0, workers)
    assert pattern.holds(tensors[0])
    chunks = list(tensors[0].tensor_split(workers))
    assert not pattern.holds(torch.cat([*chunks[1:], chunks[0]]))
    assert not pattern.holds(torch.cat([chunks[1], chunks[0], *chunks[2:]]))


def test_a_link_without_time_a_byte_is_still_a_link():
    found = ProbeResult(
        across=AlphaBeta(latency=0.05, byte_seconds=0.0),
        inside=None,
        reduce_seconds=0.0,
        shared={},
        measured=(),
    )
    prediction = predict(found, [0, 1], ["ring", "gloo"], [1000], 4)
    assert prediction.seconds["ring"][1000] == pytest.approx(0.1, rel=0.01)


class Alone(BenchGroup):
    """A group with one rank."""

    rank, workers = 0, 1

    def __init__(self):
        pass

    def align(self):
        pass

    def slowest(self, seconds):
        return list(seconds)

    def agree(self, right):
        return right


def test_a_side_that_is_wrong_only_at_the_end_is_wrong():
    asked = BenchRequest(sizes=(4_000,), only=("good", "late"), repeats=5)
    calls = []

    def late(tensor):
        calls.append(1)
        if len(calls) > 6:
            tensor[17] += 1

    buffer = torch.zeros(1_000)
    backends = {"good": BenchBackend(buffer, lambda tensor: None), "late": BenchBackend(buffer, late)}
    turns = []
    pattern = Pattern(find_operation("sum", torch.float32), torch.float32, 0, 1)
    predicted = {"good": 1.0, "late": 1.0}
    cells = measure_size(asked, Alone(), pattern, backends, 4_000, predicted, turns.append)
    assert [(cell.what, cell.right, cell.repeats) for cell in cells] == [
        ("good", True, 5),
        ("late", False, 5),
    ]
    assert turns[:4] == ["late", "good", "late", "good"]
    assert sorted(turns) == ["good"] * 5 + ["late"] * 5


def cell(**changes) -> BenchMeasurement:
    values = {
        "what": "ring",
        "size": 10_000_000,
        "median": 0.01,
        "low": 0.009,
        "high": 0.012,
        "repeats": 9,
        "algbw": 1e9,
        "busbw": 1.5e9,
        "right": True,
        "predicted": 0.011,
        "measured_at": 0.0,
    }
    values |= changes
    return BenchMeasurement(**values, error=values["predicted"] / values["median"] - 1)


def test_rates_are_those_of_nccl_tests():
    class Four(Alone):
        workers = 4

    pattern = Pattern(find_operation("sum", torch.float32), torch.float32, 0, 1)
    backend = BenchBackend(torch.zeros(1_000_000), lambda tensor: None)
    asked = BenchRequest(repeats=1)
    (found,) = measure_size(asked, Four(), pattern, {"x": backend}, 4_000_000, {"x": 1.0}, lambda words: None)
    assert found.algbw == 4_000_000 / found.median
    assert found.busbw == pytest.approx(found.algbw * 2 * 3 / 4)


def test_a_row_says_all():
    assert " ".join(row(cell()).split()) == "10 MB ring 10 ms 9 ms .. 12 ms 1 GB/s 1.5 GB/s 11 ms +10 % ok"
    assert row(cell(right=False)).endswith("WRONG")
    assert conclusion([cell(), cell(predicted=0.01), cell(predicted=0.0105)], "done").endswith(
        "median error of the predictions 5 %"
    )
    slow = cell(size=1_000, median=3.65e-3, algbw=274e3, busbw=274e3)
    assert row(slow).index(" ok") == row(cell()).index(" ok")
    assert " 274 kB/s " in row(slow)
    assert conclusion([cell(), cell(right=False)], "wrong") == "WRONG results: ring at 10 MB"


def test_the_answer_names_the_fastest_that_was_right():
    cells = [
        cell(what="gloo", median=0.015),
        cell(what="shm", median=0.01),
        cell(what="shm-elsewhere", median=0.001, right=False),
        cell(what="tree", median=0.03),
        cell(what="ring", median=0.02),
        cell(what="gloo", size=1_000, median=0.001),
        cell(what="ring", size=1_000, median=0.002),
    ]
    assert [str(found) for found in winners(cells)] == [
        "10 MB: shm 10 ms, 1.5 times as fast as gloo; best schedule ring 20 ms",
        "1 kB: gloo 1 ms; best schedule ring 2 ms",
    ]


def test_the_settings_and_figures_stand_above_the_table():
    out, err = io.StringIO(), io.StringIO()
    report = BenchReport(as_json=False, out=out, err=err)
    request = BenchRequest(op="max", dtype="int32", repeats=7)
    settings = BenchSettings(request=request, hosts=(1, 2), threads=1, torch="2.99", workers=3)
    report.show(settings)
    report.show(BenchPrediction(made_at=0.0, how=("a sentence",), figures={}, probes=(), seconds={}))
    report.show([cell()])
    report.finish(BenchResult(settings=settings, cells=[cell()], ending="done"))
    text = out.getvalue()
    for words in (
        "all-reduce (max) of int32, 3 workers on 2 hosts",
        "torch 2.99",
        "7 timed calls",
        "  a sentence",
    ):
        assert words in text
    assert text.index("a sentence") < text.index("busbw") < text.index("10 MB")


def test_predictions_are_the_prices_of_what_the_probes_found():
    line = AlphaBeta(latency=1e-4, byte_seconds=8e-9)
    bent = PiecewiseAlphaBeta(limit=1_000, small=AlphaBeta(latency=1e-6, byte_seconds=0.0), large=line)
    found = ProbeResult(across=line, inside=None, reduce_seconds=0.0, shared={"shm": bent}, measured=())
    made = predict(found, (0, 1, 2), ("gloo", "shm", "ring", "hierarchical"), (900, 300_000), 4)
    hosts = uniform_cluster(3, Link(latency=1e-4, bandwidth=125e6))
    for name in ("ring", "hierarchical"):
        assert made.seconds[name][300_000] == pytest.approx(predict_all_reduce(name, hosts, 300_000))
    assert made.seconds["gloo"][300_000] == pytest.approx(4 * (1e-4 + 100_000 * 8e-9))
    assert made.seconds["shm"] == {900: 1e-6, 300_000: line.seconds(300_000)}


def test_workers_of_a_host_share_what_their_messages_took_together():
    # Two workers that exchange 1 MB in 1 ms move 2 GB/s: a swap takes that, and one message alone half of it.
    found = ProbeResult(
        across=None,
        inside=AlphaBeta(latency=0.0, byte_seconds=1e-9),
        reduce_seconds=0.0,
        shared={},
        measured=(),
    )
    made = predict(found, (0, 0), ("butterfly", "tree"), (1_000_000,), 4)
    assert made.seconds["butterfly"][1_000_000] == pytest.approx(1e-3)
    assert made.seconds["tree"][1_000_000] == pytest.approx(2 * 0.5e-3)


def test_sizes_and_sides_as_a_user_writes_them():
    assert parse_sizes("1MB, 1kB,1003,25MiB", 4) == (1_000, 1_000_000, 26_214_400)
    assert parse_sizes(None, 4) == SIZES
    assert parse_only("shm, ring,shm-elsewhere") == ("shm", "shm-elsewhere", "ring")
    for text, told in {
        "2": "one element takes 4 B",
        "1 parsec": "not a size",
        "9TB": "4 GB is the most",
    }.items():
        with pytest.raises(UsageError, match=told):
            parse_sizes(text, 4)


def test_two_hosts_that_differ_are_told_the_setting():
    here, there = (asdict(BenchRequest(sizes=(4, 8), only=(name,))) for name in ("shm", "ring"))
    check_equal([here, here])
    with pytest.raises(UsageError, match=r"rank 1 .* only is \('ring',\) there and \('shm',\) on rank 0"):
        check_equal([here, there])


def test_shared_memory_is_measured_where_it_is_shared():
    assert worth_measuring(BENCH_BACKENDS, [2]) == BENCH_BACKENDS
    assert worth_measuring(BENCH_BACKENDS, [2, 2]) == tuple(
        backend for backend in BENCH_BACKENDS if backend != "shm-elsewhere"
    )
    assert worth_measuring(BENCH_BACKENDS, [1, 1]) == tuple(
        backend for backend in BENCH_BACKENDS if not backend.startswith("shm")
    )
    with pytest.raises(UsageError, match=r"^shm, shm-elsewhere: no two workers share memory here; "):
        worth_measuring(("shm", "shm-elsewhere"), [1, 1])
