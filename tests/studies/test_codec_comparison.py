"""Which codec pays, and below which bandwidth: found by varying it, and true on both sides of it."""

from dataclasses import replace

import pytest
from predict_setups import make_setup, with_link
from test_predict_codecs import MATRICES, coded

from paceline.clusters.cluster import Link
from paceline.codecs.base import Codec
from paceline.errors import UsageError
from paceline.studies.predict import PredictRequest, predict
from paceline.studies.predict.codecs import PAYS, compare_steps, link_in_question
from paceline.studies.predict.prediction import LimitingLink
from paceline.studies.predict.step import predict_step

MLP = PredictRequest(model="mlp", device="t4", network="1gbit", workers=(1, 4), batch_size=256)
SLOW = Link(bandwidth=1e7, latency=5e-5)


class Longer(Codec):
    """Sends every number twice."""

    sums = True
    memory = "none"

    def encode(self, vector, context):
        return vector, vector.clone()

    def decode(self, message, context):
        return message[0].clone()


def compared(spec, rate=0.0, link=SLOW, workers=4, strategy="all-reduce", **changes):
    """The steps with and without a codec whose operators move so many bytes a second; 0: they take no time."""
    encoded = coded(workers, strategy, spec, rate, link=link, **changes)
    plain = make_setup(workers, strategy, shape=MATRICES, link=link, **changes)
    where = link_in_question(plain)
    found = plain.cluster.hosts[0].link if where == "network" else plain.cluster.hosts[0].inside
    wire = LimitingLink(where=where, name="", bandwidth=found.bandwidth, latency=found.latency)
    _, step = compare_steps(plain, {spec: encoded}, wire)
    return plain, encoded, step


@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd:period=3", "ps"])
@pytest.mark.parametrize(("spec", "rate"), [("half", 2e9), ("int8", 2e9), ("top-k", 1e9), ("powersgd", 1e10)])
def test_below_the_bandwidth_that_is_told_the_codec_is_faster_and_above_it_is_not(spec, rate, strategy):
    plain, encoded, step = compared(spec, rate, strategy=strategy)
    assert step.pays == "below"
    for factor, pays in ((0.95, True), (1.05, False)):
        link = Link(bandwidth=factor * step.below, latency=SLOW.latency)
        gain = predict_step(with_link(plain, link)).seconds / predict_step(with_link(encoded, link)).seconds
        assert (gain >= PAYS) is pays, (factor, gain)


def test_the_bandwidth_is_the_same_from_wherever_it_is_searched():
    slow, fast = (compared("int8", 1e9, link=replace(SLOW, bandwidth=rate))[2] for rate in (1e6, 1e11))
    assert (slow.gain > 1.5, fast.gain < 1) == (True, True)
    assert slow.below == pytest.approx(fast.below, rel=0.05)


def test_of_workers_on_one_host_it_is_the_bandwidth_inside():
    plain, _, step = compared("half", 2e9, per_host=4)
    assert link_in_question(plain) == "inside"
    assert step.pays == "below"


def test_of_workers_that_do_not_wait_it_is_the_network_though_the_one_beside_the_server_is_the_fastest():
    assert link_in_question(make_setup(8, "async", shape=MATRICES, link=SLOW)) == "network"


def test_a_codec_that_takes_no_time_pays_as_long_as_transfers_take_some():
    _, _, step = compared("half")
    assert step.coding == 0
    assert step.below > 10 * SLOW.bandwidth


def test_encoding_and_decoding_are_told_as_a_step_waits_for_them():
    _, encoded, step = compared("half", 1e9)
    reduction = encoded.coding.reduction(MATRICES.layout, MATRICES.dtype, 4)
    assert step.coding == pytest.approx(reduction.coding, rel=0.01)


def test_what_sends_more_never_pays():
    plain = make_setup(4, shape=MATRICES, link=SLOW)
    encoded = replace(plain, coding=replace(coded(4, "all-reduce", "half", 1e9).coding, codec=Longer()))
    wire = LimitingLink(where="network", name="", bandwidth=SLOW.bandwidth, latency=SLOW.latency)
    _, step = compare_steps(plain, {"longer": encoded}, wire)
    assert (step.pays, step.below) == ("never", None)
    assert step.gain < 0.6


def test_each_strategy_is_compared_with_the_most_workers_and_identity_comes_first():
    request = replace(MLP, codecs=("int8", "half"), strategies=("all-reduce", "ps"))
    prediction = predict(request)
    assert [(one.strategy, one.workers) for one in prediction.codecs] == [("all-reduce", 4), ("ps", 4)]
    for one, series in zip(prediction.codecs, prediction.series, strict=True):
        assert [step.codec for step in one.steps] == ["identity", "int8", "half"]
        assert one.steps[1].step == series.rows[-1].step, "the rows are those of the first codec"
        assert one.steps[0].sent > one.steps[2].sent > one.steps[1].sent
        for step in one.steps[1:]:
            assert one.pays_here(step) == (step.gain >= PAYS)


def test_what_is_not_sent_is_not_compared():
    assert predict(MLP).codecs == ()
    assert predict(replace(MLP, codecs=("int8",), workers=(1,))).codecs == ()
    assert len(predict(replace(MLP, codecs=("int8",), workers=(1,), strategies=("ps",))).codecs) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"codecs": ("int8", "int8")}, "name each codec once"),
        ({"codecs": ()}, "name each codec once"),
        (
            {"codecs": ("half", "top-k"), "collective": "ring"},
            "collective ring cannot be used with codec 'top-k'",
        ),
        ({"codecs": ("dgc",)}, "the SGD of job 'mlp' has momentum too"),
        ({"codecs": ("dgc",), "strategies": ("local-sgd",)}, "send differences of parameters"),
        ({"codecs": ("low-rank",)}, "powersgd"),
    ],
)
def test_what_cannot_be_trained_is_not_predicted(change, says):
    with pytest.raises(UsageError, match=says):
        predict(replace(MLP, **change))


def test_with_servers_a_schedule_does_not_matter_to_the_codec():
    request = replace(MLP, collective="ring", codecs=("half",), strategies=("all-reduce", "ps"))
    assert len(predict(request).codecs) == 2
