"""What to expect of a run, from figures that were worked out by hand for a known link and a known codec."""

from dataclasses import dataclass, replace
from math import prod

import pytest

from paceline.clusters.cluster import Cluster, Host, Link
from paceline.codecs.quantised import Half
from paceline.costs.collectives import AllReduceCosts, through_server
from paceline.costs.topology import Topology
from paceline.jobs.spec import JobSpec
from paceline.records.files import from_document, read_json, to_document
from paceline.records.folder import RunFolder
from paceline.records.spans import StepBreakdown, Totals
from paceline.records.summary import Probe, Started, Summary
from paceline.reports.forecast import Expectation, expect, sentence
from paceline.runtimes.settings import Settings
from paceline.studies.predict.forecast import CodecForecast, RunForecast, forecast_codec
from paceline.studies.predict.prediction import CodecStep

SHAPES = ((1000, 1000), (1000,), (3000, 1000), (10,))
SLOW = Link(bandwidth=12.5e6, latency=1e-4)
STEP = StepBreakdown(data=0.001, forward=0.03, backward=0.06, apply=0.004)
RUN = Settings(job=JobSpec(), codec="int8", iterations=10)


def probe(
    link: Link = SLOW,
    nodes: tuple[int, ...] = (0, 1),
    collective: str = "native",
    *,
    served: bool = False,
    **changes,
) -> Probe:
    """Of sums that take as long as the model of them says, on this link."""
    hosts = {node: nodes.count(node) for node in ((0, *nodes) if served else nodes)}
    cluster = Cluster.of(
        Host(name=str(node), link=link, inside=link, workers=many, backend="gloo")
        for node, many in hosts.items()
    )
    topology = Topology(cluster)
    costs = AllReduceCosts(collective, topology)
    sums = [
        through_server(topology, topology.workers, 0, size) if served else costs.price(size, 4)
        for size in (65_536, 4_194_304)
    ]
    measured = Probe(
        steps=(STEP,) * len(nodes),
        ready=(1.0, 0.9, 0.5, 0.1),
        shapes=SHAPES,
        dtype="float32",
        buffers=0,
        nodes=nodes,
        sums=tuple(zip((65_536, 4_194_304), (one.seconds for one in sums), strict=True)),
        coding=0.02,
        coders=len(nodes),
    )
    return replace(measured, **changes)


@pytest.mark.parametrize("nodes", [(0, 1), (0, 1, 2, 3), (0, 0)])
@pytest.mark.parametrize("collective", ["native", "ring"])
def test_the_link_is_the_one_that_explains_the_sums(nodes, collective):
    run = replace(RUN, codec="half", batch_sizes=(8,) * len(nodes), collective=collective)
    found = forecast_codec(run, probe(nodes=nodes, collective=collective), "gloo")
    assert found.comparison.wire.where == ("network" if len(set(nodes)) > 1 else "inside")
    assert found.comparison.wire.bandwidth == pytest.approx(SLOW.bandwidth, rel=0.01)
    assert found.comparison.wire.latency == pytest.approx(SLOW.latency, rel=0.1)


@pytest.mark.parametrize("nodes", [(0, 1), (1, 2)])
def test_with_servers_it_is_the_link_to_them(nodes):
    """The server is on host 0, with a worker or without."""
    found = forecast_codec(replace(RUN, strategy="ps"), probe(nodes=nodes, served=True), "encrypted TCP")
    assert found.comparison.wire.bandwidth == pytest.approx(SLOW.bandwidth, rel=0.01)
    crossing = sum(node > 0 for node in nodes)
    assert found.plain.step == pytest.approx(STEP.total + crossing * 2 * 16e6 / SLOW.bandwidth, rel=0.1)
    assert found.coded.gain > 2


def test_what_a_codec_makes_for_a_server_on_the_same_host_goes_through_sockets_and_not_through_memory():
    found = forecast_codec(replace(RUN, strategy="ps"), probe(nodes=(0, 0), served=True), "encrypted TCP")
    assert found.plain.step < 2 * STEP.total < found.coded.step


def test_on_a_slow_link_a_codec_gains_and_below_which_bandwidth_is_said():
    found = forecast_codec(RUN, probe(), "gloo")
    plain, coded = found.comparison.steps
    assert plain.step == pytest.approx(0.095 + 16e6 / 12.5e6 - 0.06, rel=0.1), (
        "two hosts swap, behind backward"
    )
    assert coded.coding == pytest.approx(0.02, rel=0.01), "as it was measured"
    assert 2 < coded.gain < 4
    assert 5 * SLOW.bandwidth < coded.below < 1000 * SLOW.bandwidth


def test_on_a_fast_link_it_loses_and_the_bandwidth_is_the_same():
    fast = forecast_codec(RUN, probe(Link(bandwidth=1e10, latency=1e-5)), "gloo")
    assert fast.coded.gain < 1
    assert fast.coded.below == pytest.approx(forecast_codec(RUN, probe(), "gloo").coded.below, rel=0.3)


def test_workers_that_wait_for_all_take_as_long_as_the_slowest_and_others_as_the_mean():
    uneven = probe(Link(bandwidth=1e12, latency=0.0), steps=(STEP, STEP * 3))
    together = forecast_codec(RUN, uneven, "gloo")
    assert together.plain.step == pytest.approx(3 * STEP.total, rel=0.05)
    apart = forecast_codec(replace(RUN, strategy="async"), uneven, "encrypted TCP")
    assert apart.plain.step == pytest.approx(2 * (STEP.total - STEP.apply), rel=0.2)


def test_the_document_is_read_as_it_was_written():
    found = forecast_codec(RUN, probe(), "gloo")
    assert from_document(to_document(found), CodecForecast) == found


def predicted(coded: CodecStep) -> CodecForecast:
    found = forecast_codec(RUN, probe(), "gloo")
    plain = CodecStep(codec="identity", sent=4e7, coding=0.0, step=1.45, gain=1.0)
    wire = replace(found.comparison.wire, bandwidth=11.75e6)
    return replace(found, comparison=replace(found.comparison, wire=wire, steps=(plain, coded)))


FASTER = CodecStep(codec="int8", sent=1e7, coding=0.1, step=0.398, gain=3.64, pays="below", below=1.5e8)


@pytest.mark.parametrize(
    ("coded", "says"),
    [
        (
            FASTER,
            "expected: 398 ms a step, 3.64x as fast as without a codec (1.45 s); int8 pays (1 % or more) below about "
            "1.2 Gbit/s, and this link has about 94 Mbit/s",
        ),
        (
            replace(FASTER, step=1.75, gain=0.83, pays="never", below=None),
            "expected: 1.75 s a step, slower than without a codec (1.45 s, 0.83x); int8 pays (1 % or more) at no "
            "bandwidth, and this link has about 94 Mbit/s",
        ),
    ],
)
def test_what_is_expected_is_said_with_whether_it_pays(coded, says):
    assert sentence(predicted(coded)) == says


def summary_of(*seconds: float, sent: float = FASTER.sent) -> Summary:
    totals = [Totals(steps=9, typical=StepBreakdown(forward=one), step_sent=int(9 * sent)) for one in seconds]
    words = {"name": "x", "runtime": "live", "ending": "budget", "workers": 2, "steps": 9, "epochs": 1.0}
    return Summary(**words, seconds=1.0, samples=9, parameters=9, totals=totals)


def test_after_the_last_step_it_is_said_whether_it_was_so():
    expectation = Expectation("", RunForecast(codec=predicted(FASTER), made=""))
    assert expectation.after(summary_of(0.402, 0.422)) == (
        "it paid: 412 ms a step against 1.45 s expected without a codec; expected with int8 were 398 ms (+4 %)"
    )
    assert expectation.after(summary_of(1.44, sent=4e7)) == (
        "it did not pay: 1.44 s a step against 1.45 s expected without a codec; expected with int8 were 398 ms "
        "(+262 %); a worker sent 40 MB a step, expected were 10 MB"
    )
    assert expectation.after(summary_of()) == ""
    assert Expectation("").after(summary_of(1.0)) == ""


VARYING = replace(RUN, codec="threshold:memory=error,bound=0.001,density=0.01")
SIZES = [prod(shape) for shape in SHAPES]


def test_messages_of_which_only_data_tell_the_length_are_as_long_as_those_of_the_gradient_that_was_encoded():
    tenth = forecast_codec(VARYING, probe(lengths=tuple(size // 10 for size in SIZES)), "gloo")
    assert tenth.coded.sent == pytest.approx(8 * sum(SIZES) / 10, rel=0.01), "values and indices"
    assert tenth.coded.assumed is None
    whole = forecast_codec(VARYING, probe(lengths=tuple(SIZES)), "gloo")
    assert whole.coded.sent == pytest.approx(whole.plain.sent, rel=0.01), "the sum is a dense one"
    assert whole.coded.gain < 1
    assert "assumed" not in sentence(whole)


def test_where_no_gradient_tells_the_length_it_is_said_which_one_is_assumed():
    found = forecast_codec(replace(VARYING, strategy="local-sgd"), probe(), "gloo")
    said = "; assumed, as only data can tell: a message of threshold has 1 % of the elements"
    assert sentence(found).endswith(said)


def test_a_codec_is_named_as_the_header_names_it():
    found = forecast_codec(replace(RUN, codec="top-k:memory=error,ratio=0.05+half"), probe(), "gloo")
    assert found.coded.codec == "top-k:ratio=0.05+half"


@pytest.mark.parametrize(
    ("run", "measured"),
    [
        (RUN, probe(sums=((65_536, 2e-3), (4_194_304, 1e-3)))),  # the larger sum was the faster one
        (replace(RUN, strategy="ps"), probe(nodes=(0, 0), served=True)),  # what memory does is not measured
    ],
)
def test_a_link_that_could_not_be_measured_has_no_figure_and_none_rests_on_it(run, measured):
    found = forecast_codec(run, measured, "shm")
    assert (found.link_measured, found.coded.pays, found.coded.below) == (False, None, None)
    assert sentence(found).endswith("; the link could not be measured")


@dataclass(frozen=True, kw_only=True)
class Unpredictable(Half):
    """Its program looks at values, which a prediction does not have."""

    def reduce(self, vector, context):
        if float(vector.sum()) > 0:
            yield from super().reduce(vector, context)


def begun(tmp_path, found: Probe | None) -> Started:
    words = {"name": "x", "job": "job", "parameters": 9, "strategy": "all-reduce", "batch_sizes": (1, 1)}
    counts = {"last_step": 9, "steps_per_epoch": 9}
    return Started(**words, **counts, transport="gloo", folder=str(tmp_path), probe=found)


def test_the_prediction_is_kept_in_the_run_folder(tmp_path):
    expectation = expect(RUN, begun(tmp_path, probe()))
    kept = from_document(read_json(RunFolder(tmp_path).prediction), RunForecast)
    assert kept == expectation.forecast
    assert expect(RUN, begun(tmp_path, None)) is None


def test_what_cannot_be_predicted_is_said_and_is_no_error(tmp_path):
    run = replace(RUN, codec=f"{__file__}:Unpredictable")
    expectation = expect(run, begun(tmp_path, probe()))
    assert expectation.before.startswith("what to expect of a step cannot be said: ")
    assert "\n" not in expectation.before
    assert expectation.after(summary_of(1.0)) == ""
    assert not RunFolder(tmp_path).prediction.exists()
