"""The study on cost models that can be worked out by hand."""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from predict_setups import make_setup

from paceline.clusters.cluster import MEMORY, Cluster, Host, Link
from paceline.clusters.profile import LinkFit, Profile
from paceline.codecs import build_codec
from paceline.codecs.context import Layout
from paceline.costs.coding import CodecCosts
from paceline.costs.device import StepCost
from paceline.costs.trace.trace import Trace, trace
from paceline.errors import UsageError
from paceline.jobs.build import traceable_of
from paceline.records.files import from_document, to_document
from paceline.records.spans import StepBreakdown
from paceline.runtimes.virtual.shape import JobShape
from paceline.studies.predict import price_request
from paceline.studies.predict.compute import BatchTraces
from paceline.studies.predict.deployment import (
    Deployment,
    equal_hosts,
    equal_machines,
    find_deployment,
    first_workers,
    one_machine,
)
from paceline.studies.predict.findings import find_remedies
from paceline.studies.predict.interval import interval, longest
from paceline.studies.predict.model import PacelineModel, find_model
from paceline.studies.predict.prediction import Basis, Memory, PredictedStep, Prediction, StepBounds
from paceline.studies.predict.request import PredictRequest, parse_counts
from paceline.studies.predict.search import holds_up_to, least_factor, pays_up_to
from paceline.studies.predict.setup import Setup, with_link, with_slower

LINK = Link(bandwidth=1e9, latency=1e-5)


@dataclass(frozen=True, kw_only=True)
class ByHand(PacelineModel):
    """A step of a second a sample, then whatever the exchange of so many workers takes; nothing overlaps."""

    request: PredictRequest = None
    subject: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(name="hand", train_samples=None))
    profile: None = None
    sheet: None = None
    compute: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(accumulate=1, typical=None))
    deployment: Deployment = Deployment(
        layout=lambda workers, *_: equal_hosts(workers, 8, LINK, lambda many: MEMORY),
        most=10**6,
        words="a formula",
        network="a cable",
    )
    device: None = None
    exchange: Callable[[int], float]
    sample: float = 1.0
    shape: ClassVar[JobShape] = JobShape(
        name="hand", layout=Layout.of_vectors(1000), train_samples=1, test_samples=1
    )

    def coding_by(self, spec: str) -> CodecCosts:
        return CodecCosts(codec=build_codec(spec))

    basis: ClassVar[Basis] = Basis(
        level="catalogue", compute="a stated time", links="a formula", interval="a guess"
    )

    def memory(self, setup: Setup) -> Memory:
        parts = ("parameters", "gradients", "optimizer", "activations", "workspace", "exchange", "base")
        nothing = dict.fromkeys((*parts, "total", "needed"), 0.0)
        return Memory(**nothing, server=None, device="hand", capacity=None)

    def cost(self, batch: int) -> StepCost:
        step = StepBreakdown(forward=self.sample * batch)
        return StepCost(samples=batch, step=step, ready=(), spread=0.1)

    def changed(self, settings: Iterable[tuple[str, str]]) -> "ByHand":
        """A network "x8" has 8 times the bandwidth."""
        request = self.request.changed(settings)
        factor = 1.0 if request.network is None else float(request.network[1:])
        model = replace(self, request=request, exchange=lambda workers: self.exchange(workers) / factor)
        model.check()
        return model

    def bounds(self, setup: Setup) -> StepBounds:
        parts = self.step(setup).breakdown
        return StepBounds("bandwidth" if parts.communicate > parts.forward else "compute", "bandwidth")

    def step(self, setup: Setup) -> PredictedStep:
        workers, forward = setup.cluster.workers, setup.cost.step.forward
        slower = LINK.bandwidth / setup.cluster.groups[0].host.link.bandwidth
        talk = self.exchange(workers) * slower if workers > 1 else 0.0
        return PredictedStep(
            breakdown=StepBreakdown(forward=forward, communicate=talk),
            sent=1.0,
            rate=workers * setup.cost.samples / (forward + talk),
        )


def asked(exchange: Callable[[int], float], seconds: float = 1.0, model=None, **settings) -> ByHand:
    settings = {"model": "hand", "device": "a100", "batch_size": 1, "workers": (1, 2, 4)} | settings
    model = model or ByHand(exchange=exchange, sample=seconds)
    found = replace(model, request=PredictRequest(**settings))
    found.check()
    return found


def predict(model: ByHand, *remedies: tuple[str, str]) -> Prediction:
    return price_request(model, remedies)


def findings(model: ByHand, *remedies: tuple[str, str]):
    return predict(model, *remedies).series[0].findings


def test_the_worked_case_crosses_over_at_67_workers():
    found = findings(asked(lambda workers: 3 + 0.015 * workers, seconds=4.0))
    assert found.crossover.workers + 1 == 67


def test_never_is_said_with_how_far_was_looked():
    found = findings(asked(lambda workers: 0.5))
    assert found.crossover.open
    assert found.crossover.searched == 100_000


def test_two_workers_at_half_the_time_each_way_are_one_and_a_third_times_as_fast():
    rows = predict(asked(lambda workers: 0.5)).series[0].rows
    assert rows[1].step == 1.5
    assert rows[1].speed_up == pytest.approx(2 / 1.5)
    assert rows[1].efficiency == pytest.approx(1 / 1.5)


def test_strong_scaling_divides_the_batch_and_compares_with_the_whole_of_it():
    """96 samples on 5 workers: the largest share is 20 s, and 96 samples are done in it."""
    rows = predict(asked(lambda workers: 5.0, batch_size=96, scaling="strong", workers=(1, 5))).series[0].rows
    assert [row.batch for row in rows] == [96, 20]
    assert rows[1].step == 25
    assert rows[1].rate == pytest.approx(96 / 25)
    assert rows[1].speed_up == pytest.approx(96 / 25)


def test_the_knee_is_the_last_number_whose_doubling_gives_half_as_much_again():
    """n / (1 + n/100) doubles by 2 (1 + x) / (1 + 2x), x = n/100: that is 1.5 at x = 0.5, so at 50 workers."""
    found = findings(asked(lambda workers: workers / 100))
    assert found.knee.reach.workers == 50
    assert found.knee.dip is None


def test_the_network_is_in_the_way_of_a_second_worker_though_computing_takes_longer():
    found = findings(asked(lambda workers: 0.6))
    assert predict(asked(lambda workers: 0.6)).series[0].rows[1].bound == "compute"
    assert (found.knee.dip, found.knee.bound) == (1, "bandwidth")
    assert findings(asked(lambda workers: 0.6 * workers**2)).knee.reach.workers == 0


def test_shares_that_cannot_be_divided_are_computing_itself():
    """Two samples a worker become one and nothing beyond: the last doubling is short of samples, not of a network."""
    found = findings(asked(lambda workers: 0.001, batch_size=5, scaling="strong", workers=(1, 5)))
    assert found.knee.bound == "compute"


def test_a_dip_before_the_knee_is_told():
    """The network begins beyond one worker: two are no faster than one, yet from then on doubling pays."""
    found = findings(asked(lambda workers: 1.0 + workers / 1000))
    assert found.knee.dip == 1
    assert found.knee.reach.workers > 100


def test_efficiency_of_four_fifths_ends_where_the_exchange_is_a_quarter_of_computing():
    found = findings(asked(lambda workers: workers / 100))
    assert found.well.workers == 25


def test_what_the_table_shows_as_80_percent_scales_well():
    """1 / 1.255 is 79.7 %, and the table says 80 %."""
    assert findings(asked(lambda workers: 0.255, workers=(1, 2))).well.workers > 1


def test_the_bandwidth_that_makes_it_compute_bound_leaves_a_tenth_for_links():
    found = findings(asked(lambda workers: 2.0)).bandwidth
    assert found.needed == pytest.approx(20e9, rel=0.03)
    assert found.wire.bandwidth == 1e9


def offered(exchange: Callable[[int], float], *networks: float) -> Prediction:
    """With networks of so many times the bandwidth to choose from."""
    return predict(asked(exchange), *(("network", f"x{factor:g}") for factor in networks))


def test_the_slowest_network_that_is_enough_is_told_with_what_was_predicted_for_it():
    """Four workers exchange for 2 s beside 1 s of computing: 8 times the bandwidth leaves 0.25 s, 80 % efficiency."""
    (told,) = offered(lambda workers: 2.0, 1.05, 8, 100).series[0].findings.helps
    assert (told.change, told.workers) == ((("network", "x8"),), 4)
    assert told.gain == pytest.approx(3.0 / 1.25)
    assert told.speed_up == pytest.approx(4 / 1.25)
    (told,) = offered(lambda workers: 2.0, 1.5, 4, 4.1).series[0].findings.helps
    assert told.change == (("network", "x4"),), (
        "where none is enough, one that is no better is not worth its price"
    )
    assert offered(lambda workers: 2.0, 1.05).series[0].findings.helps == ()
    assert offered(lambda workers: 0.01, 8).series[0].findings.helps == ()


def test_a_larger_batch_helps_only_where_it_helps_against_one_worker_too():
    """Twice the batch computes twice as long: as many samples a second for one worker, more for four that exchange."""
    larger = ("batch_size", "2")
    for exchange, told in ((2.0, [(larger,)]), (0.05, [])):
        found = findings(asked(lambda workers, seconds=exchange: seconds), larger).helps
        assert [one.change for one in found] == told
        assert all(one.speed_up == pytest.approx(8 / 4) for one in found)


def test_the_limit_is_that_of_the_slowest_number_that_is_slower_than_one_worker():
    found = findings(asked(lambda workers: 3.0, workers=(1, 2, 4, 8)))
    assert (found.limit.workers, found.limit.bound, found.limit.wire.name) == (2, "bandwidth", "a cable")
    assert found.limit.without == pytest.approx(2)
    assert found.slower.workers == 4, "four workers of 1 s and 3 s are as fast as one, no faster"
    assert findings(asked(lambda workers: 0.5, workers=(1, 2, 4))).limit.workers == 4


@dataclass(frozen=True, kw_only=True)
class Served(ByHand):
    """Servers are what everybody waits for, and there is room for so many."""

    room: int = 10**6

    def step(self, setup: Setup) -> PredictedStep:
        if setup.servers > self.room:
            raise UsageError(f"{setup.servers} servers do not fit")
        if setup.cluster.groups[0].host.link == LINK:
            setup = with_link(setup, "network", bandwidth=setup.servers)
        return super().step(setup)

    def bounds(self, setup: Setup) -> StepBounds:
        return StepBounds("server", "bandwidth")


def test_more_servers_are_told_only_where_there_is_room_for_them_and_a_run_may_have_them():
    more = ("servers", "4")
    for room, told in ((4, [(more,)]), (3, [])):
        model = Served(exchange=lambda workers: 90.0, room=room)
        found = findings(asked(model.exchange, model=model, strategies=("ps",), servers=2), more)
        assert [one.change for one in found.helps] == told


@pytest.mark.parametrize(
    ("device", "precision", "says"),
    [
        ("a100", None, ("FP32 with TF32 tensor cores in convolutions (PyTorch's default)", "bf16")),
        ("v100", None, ("FP32 (PyTorch's default)", "fp16")),
        ("a100", "bf16", ("BF16 mixed precision", None)),
        ("k40", None, ("FP32 (PyTorch's default)", None)),
    ],
)
def test_the_precision_is_said_with_the_flag_that_changes_it(device, precision, says):
    words = PredictRequest(
        model="mlp:hidden=2000", shape=(1, 28, 28), classes=10, device=device, precision=precision
    )
    basis = find_model(words).basis
    assert (basis.precision, basis.faster_precision and basis.faster_precision[0]) == says


def test_what_bf16_gains_is_what_it_gains_when_it_is_typed():
    words = PredictRequest(model="resnet18", device="a100", workers=(1,))
    usual, narrow = (find_model(one).cost(32).step for one in (words, replace(words, precision="bf16")))
    gain = usual.compute / narrow.compute
    assert find_model(words).basis.faster_precision == ("bf16", pytest.approx(gain))


def test_twice_the_servers_are_offered_as_far_as_a_run_may_have_them():
    words = PredictRequest(model="mlp", device="a100", strategies=("ps",), servers=32)
    assert ("servers", "64") in find_remedies(find_model(words))
    assert "servers" not in dict(find_remedies(find_model(replace(words, servers=33))))


def test_an_epoch_has_whole_steps_and_a_batch_is_no_larger_than_the_data():
    """100 samples in steps of 8 are 13 steps; the last one is short and is a step all the same."""
    money = {"price": 3600.0, "samples": 100, "epochs": 2}
    rows = predict(asked(lambda workers: 1.0, workers=(1, 8), **money)).series[0].rows
    assert [row.finish for row in rows] == pytest.approx([200 * 1.0, 26 * 2.0])
    assert rows[1].cost == pytest.approx(8 * 26 * 2.0)
    with pytest.raises(
        UsageError, match=r"a batch of 128 samples over all workers is larger than the training data \(100"
    ):
        asked(lambda workers: 1.0, workers=(1, 128), **money)
    strong = asked(lambda workers: 1.0, workers=(3,), batch_size=100, scaling="strong", **money)
    assert predict(strong).series[0].rows[0].finish == pytest.approx(2 * 35.0)
    with pytest.raises(UsageError, match="larger than the training data"):
        asked(lambda workers: 1.0, workers=(3,), batch_size=101, scaling="strong", **money)


def test_no_more_workers_are_looked_at_than_there_is_data_for():
    assert asked(lambda workers: 0.0, samples=1000, epochs=1, batch_size=10).most == 100


def test_money_counts_whole_hosts_and_the_whole_training():
    money = {"host_price": 8.0, "samples": 3600, "epochs": 2}
    rows = predict(asked(lambda workers: 0.0, workers=(1, 9), **money)).series[0].rows
    assert rows[0].finish == pytest.approx(7200)
    assert rows[0].cost == pytest.approx(16.0)
    assert rows[1].finish == pytest.approx(800)
    assert rows[1].cost == pytest.approx(2 * 8.0 * 800 / 3600)


def test_a_prediction_is_read_back_as_it_was_written():
    prediction = offered(lambda workers: 2.0, 9.0)
    assert prediction.series[0].findings.helps
    document = json.loads(json.dumps(to_document(prediction)))
    assert from_document(document, Prediction).series == prediction.series
    with pytest.raises(ValueError, match="schema"):
        from_document(document | {"schema": 1}, Prediction)


@given(st.floats(0.0, 2.0), st.floats(0.0, 2.0), st.floats(0, 100))
def test_the_interval_holds_the_point_and_grows_with_either_doubt(compute, links, exchange):
    def edges(one: float, two: float) -> tuple[float, float]:
        return interval(1 + exchange, lambda computing, moving: computing + moving * exchange, one, two)

    low, high = edges(compute, links)
    assert low <= 1 + exchange <= high
    wider = edges(compute + 0.1, links + 0.1)
    assert wider[0] <= low
    assert high <= wider[1]


def test_an_interval_of_computing_alone_is_its_tenths():
    low, high = interval(1.0, lambda computing, moving: computing, 0.1, 0.2)
    assert math.log(high) == pytest.approx(0.12816, rel=1e-3)
    assert low == pytest.approx(1 / high)


@given(st.integers(0, 5000), st.integers(1, 5000))
def test_a_search_finds_the_last_number_exactly_or_within_a_hundredth(last, limit):
    found = holds_up_to(lambda workers: workers <= last, limit)
    true = min(last, limit)
    assert found.workers <= true
    assert true - found.workers <= (true // 50 if true > 1000 else 0)


def test_no_factor_is_found_where_none_is_enough():
    assert least_factor(lambda factor: False) is None
    assert pays_up_to(lambda workers: 1.0, 1000)[0].workers == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0", "out of range"),
        ("1,x", "is no count"),
        ("-3", "is no count"),
        ("8-2", "is no count"),
        ("1-100000", "1 to 64"),
        ("9999999999999999999999", "is no count"),
        ("1.5", "is no count"),
        (",", "1 to 64"),
    ],
)
def test_nonsense_counts_are_refused(text, says):
    with pytest.raises(UsageError, match=says):
        parse_counts(text)


def test_counts_may_be_ranges_in_any_order():
    assert parse_counts("16, 1-4,2") == (1, 2, 3, 4, 16)


def test_more_workers_than_samples_are_refused():
    with pytest.raises(UsageError, match="without a sample"):
        asked(lambda workers: 0.0, batch_size=3, scaling="strong", workers=(1, 4))


def test_usual_counts_leave_out_those_that_a_strategy_cannot_do_with():
    words = PredictRequest(model="mlp", device="a100", strategies=("all-reduce", "ps:backup=2"))
    assert words.counts(10**6) == (4, 8, 16, 32, 64, 128)
    assert words.counts(3) == (3,)
    assert replace(words, strategies=("ps:backup=200",)).counts(10**6) == (201,)
    with pytest.raises(UsageError, match="needs at least 3 workers, and this run has 2"):
        words.counts(2)
    assert replace(words, workers=(3, 4)).counts(10**6) == (3, 4)


PLAIN = (False, 0.0)
SERVED = (True, 0.0)


def test_hosts_fill_in_order_and_the_last_is_partly_used():
    for workers, hosts in ((10, [4, 4, 2]), (3, [3])):
        cluster = equal_hosts(workers, 4, LINK, lambda many: MEMORY)
        assert [host.workers for host in cluster.hosts] == hosts


def test_a_hundred_thousand_hosts_are_two_groups():
    cluster = equal_hosts(400_003, 4, LINK, lambda many: MEMORY)
    assert [group.count for group in cluster.groups] == [100_000, 1]


def test_a_described_cluster_gives_its_first_workers_and_keeps_its_servers():
    link = Link(bandwidth=1e9, latency=0.0)
    hosts = (
        Host(name="a", link=link, workers=2),
        Host(name="b", link=link, workers=0, servers=1),
        Host(name="c", link=link, workers=2),
    )
    layout = partial(first_workers, Cluster.of(hosts))
    assert [(host.name, host.workers) for host in layout(1, *SERVED).hosts] == [("a", 1), ("b", 0)]
    assert [host.name for host in layout(4, *PLAIN).hosts] == ["a", "c"], "no worker sends to servers"


def test_a_host_that_only_keeps_servers_is_no_second_host_of_workers_that_have_none():
    """If this fails, a faster network speeds up two workers of one host, or not, by how it is worked out."""
    cluster = "hosts=1,workers=2,bandwidth=1 Gbit/s"
    words = PredictRequest(
        model="mlp:hidden=500", shape=(1, 28, 28), classes=10, device="v100", cluster=cluster, batch_size=8
    )
    model = find_model(words)
    keeper = Host(name="keeper", link=Link(bandwidth=1e6, latency=1e-3), workers=0, servers=1)
    whole = model.deployment.described.with_hosts((*model.deployment.described.hosts, keeper))
    model = replace(model, deployment=replace(model.deployment, layout=partial(first_workers, whole)))
    setup = model.setup("all-reduce", 2)
    faster = with_link(setup, "inside", bandwidth=4.0)
    assert model.step(faster).seconds < model.step(setup).seconds
    assert model.bounds(faster).link == "inside"
    other = with_link(setup, "network", bandwidth=100.0, latency=0.0)
    assert model.step(other).seconds == model.step(setup).seconds, "nothing crosses it"


def test_only_the_link_that_is_named_is_made_faster():
    plain = make_setup(4, per_host=2, link=Link(bandwidth=1e9, latency=1e-6))
    (group,) = plain.cluster.groups

    def host(changed: Setup) -> Host:
        (found,) = changed.cluster.groups
        return found.host

    several = host(with_link(plain, "network", bandwidth=2.0, latency=3.0))
    assert several.link == Link(bandwidth=2e9, latency=3e-6)
    assert several.inside == group.host.inside
    within = host(with_link(plain, "inside", bandwidth=2.0))
    assert within.link == group.host.link
    assert within.inside.bandwidth == 2 * group.host.inside.bandwidth
    worse = host(with_slower(plain, transfers=2.0))
    assert worse.link.bandwidth == 0.5e9
    assert worse.inside.bandwidth == group.host.inside.bandwidth / 2


def test_a_trace_on_the_line_of_two_others_is_that_of_its_batch():
    subject = traceable_of("cnn", shape=(1, 8, 8), classes=10)
    made = []

    def tracer(samples: int) -> Trace:
        made.append(samples)
        return trace(subject, samples)

    traces = BatchTraces(tracer)
    found = [traces.trace(samples) for samples in (32, 16, 4, 1)]
    assert made == [32, 2, 1], "a batch of one is a case of its own"
    assert found[1] == trace(subject, 16)
    assert found[2] == trace(subject, 4)


def test_workers_of_a_measured_machine_talk_as_it_was_measured_and_compute_in_company():
    links = tuple(
        LinkFit(name=name, bandwidth=rate, latency=0.0, spread=0.1, points=9)
        for name, rate in (("memory", 1e9), ("messages", 2e9))
    )
    profile = Profile(
        name="here", made="now", versions={}, machine={}, device={}, links=links, contention=(1.0, 1.5)
    )
    layout = partial(one_machine, profile, "shm")
    (host,) = layout(2, *PLAIN).hosts
    assert (host.workers, host.inside.bandwidth, host.contention) == (2, 1e9, (1.0, 1.5))
    assert layout(2, *SERVED).hosts[0].inside.bandwidth == 2e9


def measured_across(*names: str) -> Profile:
    """A profile with these links, each of a rate of its own."""
    links = tuple(
        LinkFit(name=name, bandwidth=rate * 1e8, latency=0.0, spread=0.1, points=9)
        for rate, name in enumerate(names, 1)
    )
    return Profile(
        name="here", made="now", versions={}, machine={}, device={}, links=links, contention=(1.0, 1.5)
    )


def test_workers_on_several_measured_machines_talk_over_the_network_that_was_measured():
    layout = partial(equal_machines, measured_across("network", "wire", "memory"), 2)
    cluster = layout(3, *PLAIN)
    assert [host.workers for host in cluster.hosts] == [2, 1]
    assert {(host.link.bandwidth, host.inside.bandwidth) for host in cluster.hosts} == {(1e8, 3e8)}
    assert cluster.hosts[0].contention == (1.0, 1.5)
    assert layout(3, *SERVED).hosts[0].link.bandwidth == 2e8, "messages have a fit of their own"


def test_a_profile_of_several_hosts_puts_a_worker_on_each():
    words = PredictRequest(model="mlp", profile=Path("here.json"))
    assert find_deployment(words, measured_across("network", "wire")).hosts(4) == 4
    here = measured_across("memory", "network")
    assert find_deployment(words, here).hosts(4) == 1, "the machine itself, unless the network is asked for"
    assert find_deployment(replace(words, network="measured"), here).hosts(4) == 4
    with pytest.raises(UsageError, match="has no network"):
        find_deployment(replace(words, network="measured"), measured_across("memory"))
    with pytest.raises(UsageError, match="give a profile"):
        find_deployment(PredictRequest(model="mlp", device="a100", network="measured"), None)


def test_the_interval_holds_what_operators_without_a_measured_relative_may_really_take():
    """Guessed as one pass over memory, they took four to eight times as long as the whole step was predicted to."""
    guessed = {"linalg_matrix_exp": 0.25, "_fft_r2c": 0.1, "special_bessel_j0": 0.05}
    sure, related, foreign = (
        interval(1.25e-3, lambda compute, links: 1.25e-3 * compute, 0.15, 0.2, longest(shares))
        for shares in ({}, {"gelu": 0.4}, guessed)
    )
    assert sure == related, "what has measured relatives is doubted by how far those are apart"
    assert sure[1] < 1.7e-3
    assert foreign[0] == sure[0], "it is wider upwards only"
    assert foreign[1] > 9.7e-3


def test_what_is_guessed_is_said_beside_the_interval():
    class Guessing(ByHand):
        def cost(self, batch: int) -> StepCost:
            return replace(super().cost(batch), unmeasured={"_fft_r2c": 0.5})

    guessing = Guessing(exchange=lambda workers: 0.5)
    sure, unsure = predict(asked(guessing.exchange)), predict(asked(guessing.exchange, model=guessing))
    assert sure.basis.interval == "a guess"
    assert "50 % of computing is guessed" in unsure.basis.interval
    assert unsure.basis.interval.endswith("may take 10 times as long")
    assert unsure.series[0].rows[0].high > 5 * sure.series[0].rows[0].high


def test_only_numbers_that_were_asked_about_are_told_to_who_waits():
    told: list[str] = []
    words = PredictRequest(model="mlp", device="a100", workers=(1, 2, 4))
    price_request(find_model(words, progress=told.append))
    assert {one.rpartition(", ")[2] for one in told} == {"1 worker", "2 workers", "4 workers"}
