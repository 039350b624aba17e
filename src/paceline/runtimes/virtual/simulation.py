"""One simulated run: its nodes and what they are given, built from the settings, and its summary."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from math import inf

import torch

from paceline.clusters.cluster import Cluster
from paceline.costs.coding import CodecCosts, MemoryRate
from paceline.costs.network import FlowNetwork
from paceline.costs.stated import StatedCosts
from paceline.costs.topology import Topology
from paceline.errors import RunFailed, UsageError
from paceline.jobs.job import Job
from paceline.jobs.schedules import Constant
from paceline.records.events import MetricsRow
from paceline.records.summary import Observer, Summary
from paceline.runtimes.compression import Compressor
from paceline.runtimes.prepare import Prepared, check_strategy
from paceline.runtimes.replica import ParameterShard, Replica
from paceline.runtimes.served_compression import server_messages, worker_messages
from paceline.runtimes.session import Position, Session
from paceline.runtimes.virtual.node import Node, StepLedger
from paceline.runtimes.virtual.recording import SimulationRecorder
from paceline.runtimes.virtual.served_coding import served_coding
from paceline.runtimes.virtual.shape import JobShape, sized, sizes_only
from paceline.runtimes.virtual.timeline import Timeline
from paceline.strategies.base import Server, SyncPoint, Worker, server_slices
from paceline.strategies.effects import Peer, Program
from paceline.strategies.messages import Model, Push

CPU = torch.device("cpu")
NEAR = 1e-6
"""What is done within this part of the horizon after it is done in time: sums of stated times are not exact."""


class Simulation:
    """A prepared run on a cluster, once; the same arguments give the same run.

    With ``gradients`` they are computed and only time is simulated; without, there is time only, and a job's shape is
    enough. Nothing is written: checkpoints only take their time. At the ``horizon``, in seconds, a run with servers is
    over; what is unfinished then does not count.

    With ``server_groups``, one worker of each group of equal hosts is simulated and stands for all of them, so 100,000
    workers cost what one costs; the servers are on these groups, of one host each. The settings and costs are those of
    the simulated workers, and the cluster's links as messages find them. That is right without gradients, for
    strategies in which the workers of a group act in step.

    A run that is repeated says who its ``initial_workers`` were, by which ``transport`` messages travel, and how a
    worker's ``program`` is made of its session. Unless ``coding`` is given, a codec takes the time that the cluster
    states. A run that is simulated from later on begins after ``begun`` steps.
    """

    def __init__(
        self,
        prepared: Prepared[Job | JobShape],
        cluster: Cluster,
        costs: StatedCosts,
        *,
        gradients: bool = True,
        observer: Observer | None = None,
        recorder: SimulationRecorder | None = None,
        name: str = "",
        horizon: float = inf,
        server_groups: Sequence[int] | None = None,
        initial_workers: tuple[int, ...] | None = None,
        transport: str = "",
        program: Callable[[Session], Program] = Session.program,
        coding: CodecCosts | None = None,
        begun: int = 0,
    ) -> None:
        self.prepared, self.cluster, self.costs, self.gradients = prepared, cluster, costs, gradients
        self.observer, self.recorder = observer or Observer(), recorder or SimulationRecorder()
        self.horizon, self.deadline = horizon, horizon * (1 + NEAR)
        self.shape = prepared.job if isinstance(prepared.job, JobShape) else JobShape.of(prepared.job)
        coding = coding or CodecCosts(
            codec=prepared.codec, timed=MemoryRate(costs.times.coding), by_round=True
        )
        # All workers wait for the slowest.
        self.coding = replace(coding, scale=coding.scale / min(costs.speeds))
        self._served_coding = cache(
            partial(served_coding, coding, self.shape.layout, self.shape.dtype, prepared.servers)
        )
        self._name, self._transport = name or self.shape.name, transport or str(cluster)
        self._program, self._begun = program, begun
        if server_groups is not None:
            self.topology = Topology(cluster, by_group=True)
        else:
            server_groups = cluster.place_servers(prepared.servers)
            # Messages to servers on other hosts are encrypted, and all that a codec makes.
            inside = prepared.compresses
            self.topology = Topology(
                cluster.encrypted(server_groups, inside=inside) if prepared.servers else cluster
            )
        # A worker that joined late has batches of its own.
        self.steady = costs.steady and len(self.topology.workers) == prepared.settings.workers
        self._job = (
            replace(prepared.job, loader_workers=0) if gradients and isinstance(prepared.job, Job) else None
        )
        """What is computed; None where only time is simulated."""
        self._coded = prepared
        if not self._job:
            self._coded = replace(prepared, codec=sized(prepared.codec, by_round=coding.by_round))
        rows = (prepared.learners,) if prepared.learners > 1 else ()
        self._vector, self._grad = (sizes_only((*rows, self.shape.size), self.shape.dtype) for _ in range(2))
        self._buffers = sizes_only((*rows, self.shape.buffers), self.shape.dtype)
        self._rows: list[MetricsRow] = []
        self.timeline = Timeline(FlowNetwork(self.topology.capacities))
        self.workers: Sequence[Node] = [self._worker(*one) for one in enumerate(self.topology.workers)]
        if initial_workers is None:
            initial_workers = tuple(rank for rank, worker in enumerate(self.workers) if not worker.starts)
        self._initial_workers = initial_workers
        self.servers: Sequence[Node] = [self._server(*one) for one in enumerate(server_groups)]
        self.nodes = {node.peer: node for node in (*self.workers, *self.servers)}
        self.ready: deque[Node] = deque()

    def _worker(self, rank: int, place: int) -> Node:
        host, shards, replica = self.topology.hosts[place], self.prepared.shards, None
        tensors = self._vector, self._grad, self._buffers
        learning_rate: Callable[[float], float] = Constant()
        if self._job:
            seed, plan = self.prepared.settings.seed, self.prepared.strategy.learner_plan
            replica = Replica(self._job, shards, rank, seed, CPU, plan=plan, clients=self.prepared.clients)
            tensors = replica.flat.params, replica.flat.grad, replica.buffers
            learning_rate = replica.learning_rate
        me = Worker(
            rank, len(self.topology.workers), *tensors, clock=self._begun, servers=self.prepared.servers
        )
        me.clients = self.prepared.clients
        compressor = None
        if self._job and self.prepared.compresses and me.workers > 1 and not self.prepared.servers:
            compressor = Compressor(
                self.prepared.codec,
                me,
                self.shape.layout,
                self.prepared.settings.seed,
                replicated=self.prepared.strategy.replicated,
            )
        session = Session(
            prepared=self.prepared,
            me=me,
            position=Position(progress=self._begun, last_sync=self._begun),
            learning_rate=learning_rate,
            noise_scale=self._noise_scale,
            report=self._report,
        )
        dies = inf if host.dies is None else host.dies
        node = Node(
            peer=Peer("worker", rank),
            host=place,
            me=me,
            replica=replica,
            messages=worker_messages(self._coded, me, self.shape.layout),
            compressor=compressor,
            program=self._program(session),
            session=session,
            ledger=StepLedger(partial(self.recorder.recorded, rank) if self.recorder.detailed else None),
            starts=host.start,
            steps=inf if host.steps is None else host.steps,
            dies=dies,
            ends=min(dies, self.deadline),
        )
        if self.steady:
            sizes = (shards.batch_size(rank), shards.size(rank, shards.steps_per_epoch - 1))
            node.prices = tuple((self.costs.gradient(rank, size, 0), size) for size in sizes)
            node.apply_seconds = self.costs.apply(rank, 0)
        return node

    def _server(self, rank: int, host: int) -> Node:
        servers, shard = self.prepared.settings.servers, None
        part = grad = server_slices(self._vector, servers)[rank]
        if self._job:
            shard = ParameterShard.of(self._job, rank, servers, self.prepared.settings.seed, CPU)
            part, grad = shard.params, shard.grad
        me = Server(rank, servers, part, grad, initial_workers=self._initial_workers)
        program = self.prepared.strategy.server(me)
        messages = server_messages(self._coded, me, self.shape.layout)
        return Node(
            peer=Peer("server", rank), host=host, me=me, replica=shard, messages=messages, program=program
        )

    def coding_seconds(self, node: Node, server: int, message: Push | Model, *, encodes: bool) -> float:
        """What an end of an encoded message takes: of a worker on its device, or of a server on one of speed 1."""
        number = message.clock if isinstance(message, Push) else message.version
        costs = self._served_coding(self.coding.at(number))[server]
        cost = costs.push if isinstance(message, Push) else costs.model
        seconds = cost.encode if encodes else cost.decode
        return seconds if node.session is None else seconds / self.costs.speeds[node.peer.rank]

    def _noise_scale(self) -> float | None:
        first = self.workers[0].replica
        return first.noise.value if first else None

    def _report(self, row: MetricsRow) -> None:
        """Every worker at a sync point reports the same row; it is passed on once."""
        if not self._rows or self._rows[-1].step < row.step:
            self._rows.append(row)
            self.observer.evaluated(row)

    def start(self) -> None:
        folder = self.recorder.folder
        where = str(folder.path) if folder else None
        rate = self.workers[0].replica.base_rate if self._job else None
        self.observer.started(
            self.prepared.started(self._name, self.shape.size, self._transport, where, rate)
        )

    def finish(self) -> Summary:
        prepared = self.prepared
        totals = [worker.ledger.times.totals() for worker in self.workers]
        positions = [worker.session.position for worker in self.workers if worker.session is not None]
        steps = positions[0].progress
        if prepared.strategy.sync_point is SyncPoint.ON_REQUEST and self.servers:
            steps = prepared.shards.steps_through(self.servers[0].me.seen)
        summary = Summary(
            name=self._name,
            runtime="virtual",
            ending=self._ending(),
            workers=len(totals),
            steps=steps,
            epochs=prepared.triggers.epoch(steps),
            seconds=min(self.horizon, max(worker.me.now for worker in self.workers)),
            samples=sum(total.samples for total in totals),
            parameters=self.shape.size,
            target=prepared.settings.target_accuracy,
            target_seconds=next((one.reached for one in positions if one.reached is not None), None),
            final=self._rows[-1].to_json() if self._rows else {},
            totals=totals,
            servers=[server.totals for server in self.servers],
            noise_scale=self.workers[0].replica.noise.summary() if self._job else None,
        )
        self.observer.finished(summary)
        return summary

    def _ending(self) -> str:
        """How the run ended for the workers that were there at the end; a horizon is a budget too."""
        endings = [worker.ending for worker in self.workers]
        if self.horizon == inf and not any(endings):
            step = max(worker.me.clock for worker in self.workers)
            raise RunFailed(f"no worker is left: all {len(endings)} died, the last at step {step}")
        return next((ending for ending in endings if ending not in (None, "left")), None) or "budget"


def check(prepared: Prepared[Job | JobShape], cluster: Cluster, gradients: bool, horizon: float) -> None:
    settings, strategy = prepared.settings, prepared.strategy
    cluster.check_workers(settings.workers)
    if gradients and isinstance(prepared.job, JobShape):
        raise UsageError(
            f"job {prepared.job.name!r} is only a shape, without weights; simulate it without gradients"
        )
    if not gradients and (settings.target_accuracy is not None or settings.evaluate.count):
        asked = f"an evaluation every {settings.evaluate}"
        if settings.target_accuracy is not None:
            asked = f"a target accuracy of {settings.target_accuracy:g}"
        raise UsageError(f"{asked} needs gradients; leave it out or simulate with gradients")
    check_strategy(settings, strategy)
    if not horizon > 0:
        raise UsageError(f"a horizon of {horizon:g} s is too short: give a time such as '0.6 s'")
    churn = [f"{what} of host {g.name(0)!r}" for g in cluster.groups for what in g.host.churn]
    if horizon < inf:
        churn.append(f"a horizon of {horizon:g} s")
    if churn and not strategy.served:
        raise UsageError(
            f"{churn[0]} cannot be used with strategy {settings.strategy!r}, which needs every worker at every "
            "exchange; leave it out, or choose ps, ssp or async"
        )
