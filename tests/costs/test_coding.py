"""What codecs cost, as their own programs tell."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from collective_prices import uniform_cluster
from paceline.clusters.cluster import Link
from paceline.codecs import CODECS, build_codec
from paceline.codecs.context import Layout
from paceline.codecs.exchanges import AllGather, AllToAll, Sum
from paceline.codecs.messages import encoded_bytes
from paceline.codecs.reduction import reduce
from paceline.codecs.state import CodecState
from paceline.costs import coding
from paceline.costs.coding import CodecCosts, CodedExchange, CodedReduction, MemoryRate
from paceline.costs.collectives import AllReduceCosts
from paceline.costs.topology import Topology
from paceline.costs.trace.meta import RULES, meta_result
from paceline.costs.trace.recorder import OperatorRecorder
from paceline.costs.trace.trace import without_values
from paceline.runtimes.virtual.served_coding import served_coding

LAYOUT = Layout(("a", "b", "c", "d"), ((512, 256), (512,), (1000, 512), (1000,)))
SIZE = 4 * LAYOUT.elements
SPECS = sorted({*CODECS, "top-k:ratio=0.5", "int8:memory=error", "half:memory=error", "sign:memory=none"})


def coded(spec, workers, layout=LAYOUT, rate=1.0) -> CodedReduction:
    """At a byte a second, times are bytes."""
    return CodecCosts(codec=build_codec(spec), timed=MemoryRate(rate)).reduction(
        layout, torch.float32, workers
    )


def costs(workers, bandwidth=1e9, latency=1e-4, per_host=1):
    cluster = uniform_cluster(
        workers // per_host, Link(bandwidth=bandwidth, latency=latency), per_host=per_host
    )
    return AllReduceCosts("native", Topology(cluster))


def run_whole(spec, workers, layout):
    """The obvious way: the program of rank 0 with every loop over all ranks; bytes moved between exchanges."""
    codec = build_codec(spec)
    state = CodecState(codec, layout, {}, device="meta", workers=workers)
    context = state.context(0, layout.elements, 2**62, 1 / workers)
    vector = torch.empty(layout.elements, device="meta")
    for _ in range(2):  # lengths of messages are found in the first
        recorder = OperatorRecorder(without_values)
        exchanges, moved, answer = [], [], None
        program = reduce(codec, vector, context)
        with recorder:
            recorder.phase = "forward"
            while True:
                try:
                    asked = program.send(answer)
                except StopIteration:
                    asked = None
                calls = [operator for operator, _ in recorder.calls["forward"]]
                moved.append(sum(one.read + one.written for one in calls))
                recorder.begin()
                match asked:
                    case None:
                        break
                    case Sum(tensor):
                        answer = None
                        exchanges.append(("sum", tensor.nbytes))
                    case AllGather(one):
                        answer = [one] * workers
                        exchanges.append(("all-gather", one.nbytes))
                    case AllToAll(rows):
                        answer = list(rows)
                        exchanges.append(("all-to-all", rows[0].nbytes))
    return exchanges, moved


@pytest.mark.parametrize("spec", SPECS)
def test_a_few_ranks_tell_what_all_of_them_cost(spec) -> None:
    # 60,480 elements: every number of workers here divides them, so that all chunks are equally long.
    layout = Layout(("a", "b"), ((240, 240), (2880,)))
    for workers in (2, 3, 4, 7, 20, 90):
        exchanges, moved = run_whole(spec, workers, layout)
        found = coded(spec, workers, layout)
        assert [(one.kind, one.size) for one in found.exchanges] == exchanges
        assert found.seconds == pytest.approx(moved)


@pytest.mark.parametrize("spec", SPECS)
def test_the_rules_give_what_the_kernels_of_torch_give(spec, monkeypatch) -> None:
    """A wrong shape or stride would surface operators later, as a copy that nobody makes."""

    def look(result):
        if isinstance(result, tuple | list):
            return [look(one) for one in result]
        return (result.shape, result.stride(), result.dtype) if isinstance(result, torch.Tensor) else result

    def both(function, args, kwargs):
        result = meta_result(function, args, kwargs)
        if function._opname in RULES and not function._opname.endswith("_"):
            assert look(result) == look(function(*args, **kwargs)), function
        return result, 0.0

    monkeypatch.setattr(coding, "without_values", both)
    layout = Layout(("a", "b"), ((30, 17), (901,)))  # of its own, so that nothing is known yet
    for workers in (2, 5):
        coded(spec, workers, layout)


@given(st.sampled_from(SPECS), st.integers(1, 5000), st.integers(2, 40))
@settings(max_examples=60, deadline=None)
def test_any_vector_among_any_number_of_workers_has_a_price(spec, elements, workers) -> None:
    found = coded(spec, workers, Layout.of_vectors(elements))
    assert len(found.seconds) == len(found.exchanges) + 1
    assert min(found.seconds) >= 0
    assert found.held >= 0
    assert costs(workers).price_coded(found).seconds > 0


@pytest.mark.parametrize(
    ("spec", "ratio"),
    [
        ("half", 0.5),
        ("int8", 0.25),
        ("sign", 1 / 32),
        ("top-k:ratio=0.01", 0.02),
        ("random-k:ratio=0.01", 0.01),
    ],
)
def test_the_bytes_of_a_whole_model_are_the_codecs(spec, ratio) -> None:
    coding = CodecCosts(codec=build_codec(spec))
    for message in served_coding(coding, LAYOUT, torch.float32, servers=1)[0]:
        assert message.size == encoded_bytes(build_codec(spec), LAYOUT, torch.float32)
        assert message.size == pytest.approx(ratio * SIZE, rel=0.02)


def test_powersgd_sees_the_matrices() -> None:
    first, second = coded("powersgd:rank=4", 8).exchanges
    assert first == ("sum", 4 * (4 * (512 + 1000) + 512 + 1000), 4)
    assert second == ("sum", 4 * 4 * (256 + 512), 4)


def test_messages_to_servers_and_back_take_what_their_two_ends_do() -> None:
    # Half reads 4 bytes an element and writes 2, and bounds these in place; a worker copies its gradient before.
    half, int8, halved = (
        served_coding(
            CodecCosts(codec=build_codec(spec), timed=MemoryRate(1.0), scale=scale), LAYOUT, torch.float32, 2
        )
        for spec, scale in (("half", 1.0), ("int8", 1.0), ("int8", 0.5))
    )
    for slower, faster in ((int8, half), (int8, halved)):
        assert all(
            one.encode > other.encode and one.decode > other.decode
            for both, others in zip(slower, faster, strict=True)
            for one, other in zip(both, others, strict=True)
        )
    (first, second) = half
    assert first.push.encode + second.push.encode == pytest.approx(4.5 * SIZE)


def test_a_sparse_message_is_added_without_reading_the_whole_vector() -> None:
    one, two = (coded("top-k:ratio=0.001", workers).seconds[-1] for workers in (3, 4))
    assert two - one < 0.02 * SIZE


def test_what_int8_sends_and_computes_does_not_grow_with_the_workers() -> None:
    traffic = [costs(n).traffic_coded(coded("int8", n))[0][0] for n in (8, 64)]
    assert traffic[1] < 1.2 * traffic[0] < 1.2 * SIZE / 2 * 1.01
    seconds = [coded("int8", workers).coding for workers in (8, 64)]
    assert seconds[1] < 1.2 * seconds[0]
    # What is gathered does.
    gathered = [costs(n).traffic_coded(coded("top-k:ratio=0.01", n))[0][0] for n in (8, 32)]
    assert gathered[1] == pytest.approx(31 / 7 * gathered[0])


@pytest.mark.parametrize("spec", ["int8", "int8:bits=3", "sign", "top-k:ratio=0.5", "top-k:ratio=0.5+half"])
def test_the_number_of_operators_does_not_grow_with_the_workers(spec) -> None:
    """A device spends a few microseconds on each, however short the chunks are."""
    costs = CodecCosts(codec=build_codec(spec), timed=lambda _: 1.0)
    few, many = (costs.reduction(Layout.of_vector(10**6 + 3), torch.float32, n).coding for n in (8, 4096))
    assert many <= few


def test_exchanges_cost_what_their_schedules_do() -> None:
    def price(kind, size, workers=8, per_host=1):
        reduction = CodedReduction((CodedExchange(kind, size, 1),), (0.0, 0.0), 0)
        return costs(workers, per_host=per_host).price_coded(reduction).seconds

    assert price("all-gather", 10**6) == pytest.approx(7 * (1e-4 + 1e-3))
    assert price("all-to-all", 10**6) == pytest.approx(7 * (1e-4 + 1e-3))
    assert price("sum", 8 * 10**6) == pytest.approx(14 * (1e-4 + 1e-3))
    # Between hosts of 4 workers a ring passes one message at a time, and pairs pass up to 4.
    crossing = [1, 2, 3, *[4] * 9, 3, 2, 1]
    ends = price("all-to-all", 10**6, 16, 4)
    assert ends == pytest.approx(15 * 1e-4 + 1e-3 * sum(crossing), rel=0.1)
    assert price("all-gather", 10**6, 16, 4) < 0.5 * ends


def test_workers_of_one_host_exchange_in_memory() -> None:
    reduction = CodedReduction((CodedExchange("all-gather", 10**6, 1),), (0.0, 0.0), 0)
    inside = Link(bandwidth=1e10, latency=1e-6)
    cluster = uniform_cluster(1, Link(bandwidth=1e3, latency=1.0), per_host=4, inside=inside)
    price = AllReduceCosts("native", Topology(cluster)).price_coded(reduction)
    assert price.seconds == pytest.approx(2e-6 + 4 * 3 * 10**6 / 1e10)


def test_coding_delays_the_exchanges() -> None:
    exchanges = (CodedExchange("all-to-all", 1000, 1), CodedExchange("all-gather", 1000, 1))
    free, slow = (CodedReduction(exchanges, seconds, 0) for seconds in ((0.0,) * 3, (1.0, 2.0, 4.0)))
    assert costs(4).price_coded(slow).seconds - costs(4).price_coded(free).seconds == pytest.approx(7)


@given(st.integers(1, 10**6), st.integers(2, 9), st.sampled_from(["sum", "all-gather", "all-to-all"]))
def test_fewer_bytes_are_never_slower(size, workers, kind) -> None:
    def seconds(many):
        reduction = CodedReduction((CodedExchange(kind, many, 1),), (0.0, 0.0), 0)
        return costs(workers).price_coded(reduction).seconds

    assert seconds(size) <= seconds(size + size // 10 + 1)


def test_a_warm_up_is_priced_by_its_round_or_left_out() -> None:
    codec = build_codec("dgc:ratio=0.001,warmup=8")
    by_round, steady = CodecCosts(codec=codec, by_round=True), CodecCosts(codec=codec)
    sizes = [
        one.reduction(LAYOUT, torch.float32, 2, one.at(round_)).exchanges[0].size
        for one, round_ in ((by_round, 0), (by_round, 100), (steady, 0))
    ]
    assert sizes[0] > 100 * sizes[1]
    assert sizes[1] == sizes[2]


def test_state_and_messages_of_others_are_counted_in_memory() -> None:
    def held(spec, workers):
        return coded(spec, workers).held

    assert held("top-k:ratio=0.01", 20) - held("top-k:ratio=0.01", 10) == pytest.approx(
        10 * 0.02 * SIZE, rel=0.01
    )
    # The scaled elements, their noise and its conversion; of more elements than these, a part at a time.
    assert all(2 * SIZE < held("int8", workers) < 4 * SIZE for workers in (8, 64))
    large = Layout.of_vector(2**26)
    assert coded("int8", 8, large).held < 2.5 * 4 * large.elements
    assert Counter(
        {
            spec: CodecCosts(codec=build_codec(spec)).state_bytes(LAYOUT, torch.float32)
            for spec in ("half", "sign", "dgc")
        }
    ) == {"half": 0, "sign": SIZE, "dgc": 2 * SIZE}
