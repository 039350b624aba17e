"""Strategies with servers: messages take their way through the links, in order, and nobody waits in silence."""

from dataclasses import dataclass, replace
from itertools import count

import pytest
import torch
from torch import Tensor
from virtual_helpers import (
    StepTimes,
    make_cluster,
    make_job,
    prepared_of,
    settings_of,
    time_only,
    with_gradients,
)

from paceline.clusters.cluster import Cluster, Host, Link
from paceline.codecs.context import Layout
from paceline.costs.stated import stated_costs
from paceline.errors import RunFailed, UsageError
from paceline.records.spans import StepBreakdown
from paceline.runtimes.virtual.shape import JobShape
from paceline.runtimes.virtual.simulate import simulate
from paceline.runtimes.virtual.simulation import Simulation
from paceline.strategies.base import Server, Strategy, SyncPoint, Worker, server_slices
from paceline.strategies.effects import (
    AllReduce,
    Apply,
    Broadcast,
    Gradient,
    Peer,
    Program,
    Receive,
    Send,
)
from paceline.strategies.messages import HEADER, Leave

RATE = 0.1


@dataclass(frozen=True)
class Push:
    part: Tensor
    clock: int


@dataclass(frozen=True)
class Model:
    part: Tensor
    shard: int


@dataclass(frozen=True, kw_only=True)
class Served(Strategy):
    """What the two below share: each server keeps an equal part of the parameters."""

    sync_point = SyncPoint.EVERY_STEP

    def worker(self, me: Worker) -> Program:
        while True:
            yield Gradient()
            for rank, part in enumerate(server_slices(me.grad, me.servers)):
                yield Send(Peer("server", rank), Push(part, me.clock))
            for _ in range(me.servers):
                _, model = yield Receive()
                server_slices(me.params, me.servers)[model.shard].copy_(model.part)
            me.grad.zero_()
            yield Apply()  # a step of zero: counts the clock

    def central(self, me: Worker) -> Program:
        return me.params
        yield


@dataclass(frozen=True, kw_only=True)
class Asynchronous(Served):
    """Every gradient is applied as it comes, and answered at once."""

    def server(self, me: Server) -> Program:
        while True:
            sender, message = yield Receive()
            if isinstance(message, Push):
                me.params.sub_(message.part, alpha=RATE)
                yield Send(sender, Model(me.params, me.rank))


@dataclass(frozen=True, kw_only=True)
class Synchronous(Served):
    """The mean of all workers' gradients, then an answer to all."""

    def server(self, me: Server) -> Program:
        workers, left = len(me.initial_workers), list[int]()
        while len(left) < workers:
            pushed = {}
            while len(pushed) < workers and len(left) < workers:
                sender, message = yield Receive()
                if isinstance(message, Leave):
                    left.append(message.clock)
                else:
                    pushed[sender] = message.part
            if pushed:
                mean = torch.stack([pushed[peer] for peer in sorted(pushed)]).mean(0)
                me.params.sub_(mean, alpha=RATE)
            for sender in sorted(pushed):
                yield Send(sender, Model(me.params, me.rank))


SHAPE = JobShape(name="big", layout=Layout.of_vectors(2500), train_samples=800, test_samples=1)
MESSAGE = 10_000 + HEADER
TIMES = StepTimes(step=StepBreakdown(forward=1.0, backward=1.0))


def with_server(workers: int, servers: int = 1, **changes) -> Cluster:
    """Workers on hosts of their own, and one host that serves, all with the same links: 100 kB/s, 10 ms."""
    link = Link(bandwidth=100e3, latency=0.01)
    hosts = [Host(name=f"w{rank}", link=link) for rank in range(workers)]
    keepers = [Host(name=f"s{rank}", link=link, workers=0, servers=1) for rank in range(servers)]
    return Cluster.of((*hosts, *keepers), times=replace(TIMES, **changes))


def test_one_worker_and_a_server_by_hand() -> None:
    summary, kept = time_only(with_server(1), SHAPE, strategy=Asynchronous(), iterations=3)
    there = MESSAGE / 100e3 + 0.01
    assert summary.seconds == pytest.approx(3 * (2 + 2 * there))
    step = kept.records[0][0]
    assert [span.kind for span in step.spans] == ["forward", "backward", "wait", "communicate"]
    assert [span.length for span in step.spans] == pytest.approx([1, 1, there, there])
    assert (step.sent, step.received) == (MESSAGE, MESSAGE)


def test_messages_into_one_host_share_its_link() -> None:
    summary, _ = time_only(with_server(4), SHAPE, strategy=Synchronous(), iterations=2)
    # At the start, two rounds of a broadcast. Then four at once, in and out: each way takes four times as long.
    start = 2 * (10_000 / 100e3 + 0.01)
    assert summary.seconds == pytest.approx(start + 2 * (2 + 2 * (4 * MESSAGE / 100e3 + 0.01)))


def test_two_servers_halve_the_transfer() -> None:
    summary, _ = time_only(with_server(4, servers=2), SHAPE, strategy=Synchronous(), servers=2, iterations=2)
    half = 5_000 + HEADER
    # A worker's first message has left when its second starts, so both servers are in use only in part.
    one, _ = time_only(with_server(4), SHAPE, strategy=Synchronous(), iterations=2)
    assert 2 * (2 + 2 * (2 * half / 100e3 + 0.01)) < summary.seconds < one.seconds


def test_a_servers_work_on_each_message_adds_up() -> None:
    without, _ = time_only(with_server(3), SHAPE, strategy=Synchronous(), iterations=2)
    working, _ = time_only(with_server(3, serve=0.5), SHAPE, strategy=Synchronous(), iterations=2)
    assert working.seconds - without.seconds == pytest.approx(2 * 3 * 0.5)


def test_asynchronous_workers_do_not_wait_for_a_slow_one() -> None:
    slow = {1: 10.0}
    asynchronous, _ = time_only(with_server(2), SHAPE, strategy=Asynchronous(), iterations=5, slow=slow)
    synchronous, _ = time_only(with_server(2), SHAPE, strategy=Synchronous(), iterations=5, slow=slow)
    waited = [run.totals[0].seconds["wait"] for run in (asynchronous, synchronous)]
    assert waited[0] < 5 < 5 * 18 < waited[1]


@pytest.mark.parametrize("servers", [1, 2])
def test_synchronous_server_is_all_reduce(servers: int) -> None:
    job = make_job()
    _, served = with_gradients(
        job, make_cluster(3), strategy=Synchronous(), servers=servers, iterations=6, slow={1: 3.0}
    )
    _, reduced = with_gradients(job, make_cluster(3), iterations=6)
    for name, value in reduced.model.items():
        assert torch.allclose(served.model[name], value, atol=1e-6), name


@pytest.mark.parametrize("servers", [1, 2])
def test_asynchronous_training_depends_on_the_times_alone(servers: int) -> None:
    job = make_job()
    cluster = make_cluster(2, latency=0.01)
    _, first = with_gradients(job, cluster, strategy=Asynchronous(), servers=servers, iterations=6)
    _, again = with_gradients(job, cluster, strategy=Asynchronous(), servers=servers, iterations=6)
    _, other = with_gradients(
        job, cluster, strategy=Asynchronous(), servers=servers, iterations=6, slow={0: 2.0}
    )
    assert all(torch.equal(first.model[name], again.model[name]) for name in first.model)
    assert any(not torch.equal(first.model[name], other.model[name]) for name in first.model)


@dataclass(frozen=True, kw_only=True)
class Chatter(Strategy):
    """Worker 0 sends numbered messages of different sizes to worker 1, changing the tensor as it goes."""

    sync_point = SyncPoint.EVERY_STEP

    def worker(self, me: Worker) -> Program:
        for number in count():
            yield Gradient()
            if me.rank == 0:
                for size in (2000, 1, 500):
                    note = torch.full((size,), float(number))
                    yield Send(Peer("worker", 1), Push(note, number * 1000 + size))
                    note.fill_(-1.0)
            else:
                for size in (2000, 1, 500):
                    sender, message = yield Receive()
                    assert sender == Peer("worker", 0)
                    assert message.clock == number * 1000 + size
                    assert torch.equal(message.part, torch.full((size,), float(number)))
            yield Apply()

    def central(self, me: Worker) -> Program:
        return me.params
        yield


def test_messages_of_one_sender_keep_their_order_and_their_contents() -> None:
    summary, _ = with_gradients(make_job(), make_cluster(2, latency=0.1), strategy=Chatter(), iterations=4)
    sizes = 4 * (4 * 2501 + 3 * HEADER)
    broadcast = 4 * summary.parameters
    assert summary.totals[0].sent == summary.totals[1].received == sizes + broadcast


@dataclass(frozen=True, kw_only=True)
class Broken(Strategy):
    """Worker 1 does something else than the others."""

    effect: str = "receive"
    sync_point = SyncPoint.EVERY_STEP

    def worker(self, me: Worker) -> Program:
        while True:
            yield Gradient()
            if me.rank == 1 and self.effect == "receive":
                yield Receive()
            if me.rank == 1 and self.effect == "broadcast":
                yield Broadcast(me.params)
            if me.rank == 1 and self.effect == "send":
                yield Send(Peer("server", 7), Push(me.grad, 0))
            yield AllReduce(me.params)
            yield Apply()

    def central(self, me: Worker) -> Program:
        return me.params
        yield


def test_a_run_in_which_everybody_waits_says_who_waits_for_what() -> None:
    with pytest.raises(RunFailed) as caught:
        time_only(make_cluster(2), strategy=Broken())
    assert "worker 0 waits for the others in an all-reduce of 4000 bytes since 3.5" in str(caught.value)
    assert "worker 1 waits for a message" in str(caught.value)


def test_workers_that_disagree_are_named() -> None:
    with pytest.raises(
        RunFailed, match=r"disagree.*worker 1 .*a broadcast.*worker 0 .*an all-reduce.*step 0"
    ):
        time_only(make_cluster(2), strategy=Broken(effect="broadcast"))


def test_a_message_to_nobody_is_refused() -> None:
    with pytest.raises(RunFailed, match="worker 1 sends to server 7, and there is no such node"):
        time_only(make_cluster(2), strategy=Broken(effect="send"))


def test_more_servers_than_places_are_refused() -> None:
    with pytest.raises(UsageError, match="2 servers do not fit"):
        time_only(with_server(2), SHAPE, strategy=Synchronous(), servers=2)


def dying(cluster: Cluster, rank: int, time: float) -> Cluster:
    """The cluster, in which one host's worker dies at a time."""
    hosts = list(cluster.hosts)
    hosts[rank] = replace(hosts[rank], dies=time)
    return cluster.with_hosts(hosts)


def test_the_others_go_on_when_a_worker_of_an_asynchronous_run_dies() -> None:
    summary, _ = time_only(dying(with_server(3), 1, 7.0), SHAPE, strategy=Asynchronous(), iterations=10)
    assert [total.steps for total in summary.totals] == [10, 2, 10]


def test_a_run_that_needs_a_dead_worker_says_so() -> None:
    with pytest.raises(RunFailed, match=r"worker 0 waits for a message.*worker 2 .*; worker 1 left before"):
        time_only(dying(with_server(3), 1, 7.0), SHAPE, strategy=Synchronous(), iterations=10)


@dataclass(frozen=True, kw_only=True)
class Both(Asynchronous):
    """Messages and collectives at once: worker 0 pushes to the server, then all average their models."""

    def worker(self, me: Worker) -> Program:
        while True:
            yield Gradient()
            if me.rank == 0:
                yield Send(Peer("server", 0), Push(me.grad, me.clock))
            yield AllReduce(me.params)
            if me.rank == 0:
                yield Receive()
            yield Apply()


def test_a_collective_and_a_message_share_the_senders_link() -> None:
    cluster = with_server(2)
    still = cluster.with_hosts(replace(h, link=replace(h.link, latency=0.0)) for h in cluster.hosts)
    summary, kept = time_only(still, SHAPE, strategy=Both(), iterations=1)
    # Both leave worker 0 at 50 kB/s and have almost the same size; worker 1 ends with the collective.
    step = next(record for record in kept.records[1] if record.samples)
    (communicate,) = [span for span in step.spans if span.kind == "communicate"]
    assert communicate.length == pytest.approx(2 * 10_064 / 100e3)
    assert summary.ending == "budget"


def test_the_same_run_twice_is_the_same_record() -> None:
    cluster = with_server(4, jitter=0.3)
    settings = settings_of(4, iterations=20)
    costs = stated_costs(cluster, settings.batch_sizes, {}, 1)
    prepared = prepared_of(settings, SHAPE, Asynchronous())
    one, two = (simulate(Simulation(prepared, cluster, costs, gradients=False)) for _ in range(2))
    assert one == two


@pytest.mark.parametrize("start", [20.0, 39.0, 60.0])
def test_who_comes_after_the_end_does_not_carry_the_run_on(start: float) -> None:
    cluster = make_cluster(3, latency=0.001)
    hosts = (*cluster.hosts[:2], replace(cluster.hosts[2], start=start))
    alone, _ = time_only(make_cluster(2, latency=0.001), strategy_name="async", iterations=10)
    summary, _ = time_only(cluster.with_hosts(hosts), strategy_name="async", iterations=7)
    assert summary.ending == "budget"
    assert summary.seconds < alone.seconds + 5
    if start > summary.seconds:
        assert summary.totals[2].steps == 0
        assert [one.worker for one in summary.servers[0].changes] == [0, 1]
