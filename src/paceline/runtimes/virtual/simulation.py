"""One simulated run: its nodes and what they are given, built from the settings, and its summary."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf

import torch

from paceline.clusters.cluster import Cluster
from paceline.collectives import NATIVE
from paceline.costs.network import FlowNetwork
from paceline.costs.stated import StatedCosts
from paceline.costs.topology import Topology
from paceline.errors import RunFailed, UsageError
from paceline.jobs.job import Job
from paceline.jobs.sharding import Shards
from paceline.records.events import MetricsRow
from paceline.records.summary import Observer, Started, Summary
from paceline.runtimes.prepare import check_strategy, server_count
from paceline.runtimes.replica import ParameterShard, Replica
from paceline.runtimes.session import Position, Session
from paceline.runtimes.settings import Settings, Triggers
from paceline.runtimes.virtual.node import Node, StepLedger
from paceline.runtimes.virtual.recording import SimulationRecorder
from paceline.runtimes.virtual.shape import JobShape, sizes_only
from paceline.runtimes.virtual.timeline import Timeline
from paceline.specs import shorten
from paceline.strategies import STRATEGIES, build_strategy
from paceline.strategies.base import Server, Strategy, SyncPoint, Worker, server_slices
from paceline.strategies.effects import Peer, Program

CPU = torch.device("cpu")
NEAR = 1e-6
"""What is done within this part of the horizon after it is done in time: sums of stated times are not exact."""


class Simulation:
    """The settings on a cluster, run once; the same arguments give the same run.

    With ``gradients`` they are computed and only time is simulated; without, there is time only, and a job's shape is
    enough. Nothing is written: checkpoints only take their time. ``strategy`` is built from the settings unless given;
    ``folder`` is where the recorder keeps the run, for the observer. At the ``horizon``, in seconds, a run with servers
    is over; what is unfinished then does not count. Raises UsageError for what cannot be simulated; running it raises
    RunFailed where a strategy gets stuck.

    With ``server_groups``, one worker of each group of equal hosts is simulated and stands for all of them, so 100,000
    workers cost what one costs; the servers are on these groups, of one host each. The settings and costs are those of
    the simulated workers, and the cluster's links as messages find them. That is right without gradients, for
    strategies in which the workers of a group act in step.
    """

    def __init__(
        self,
        settings: Settings,
        job: Job | JobShape,
        cluster: Cluster,
        costs: StatedCosts,
        *,
        gradients: bool = True,
        strategy: Strategy | None = None,
        observer: Observer | None = None,
        recorder: SimulationRecorder | None = None,
        name: str = "",
        folder: str | None = None,
        horizon: float = inf,
        server_groups: Sequence[int] | None = None,
    ) -> None:
        self.settings, self.cluster, self.costs = settings, cluster, costs
        self.strategy = strategy or build_strategy(settings.strategy)
        self.observer, self.recorder = observer or Observer(), recorder or SimulationRecorder()
        self.steady = costs.steady
        self._horizon = horizon
        self.horizon = horizon * (1 + NEAR)
        self.shape = job if isinstance(job, JobShape) else JobShape.of(job)
        self._name, self._folder = name or self.shape.name, folder
        sizes = settings.step_sizes(self.shape.accumulate)
        self.shards = Shards(self.shape.train_samples, sizes, settings.seed)
        self.triggers = Triggers(settings, self.shards.steps_per_epoch)
        self._metrics, self._step = (tuple(job.metrics), job.step) if isinstance(job, Job) else ((), "")
        servers = server_count(settings, self.strategy)
        if server_groups is not None:
            self.topology = Topology(cluster, by_group=True)
        else:
            self._check(job, gradients)
            server_groups = cluster.place_servers(servers)
            # Messages to servers on other hosts are encrypted.
            self.topology = Topology(cluster.encrypted(server_groups) if servers else cluster)
        self._job = replace(job, loader_workers=0) if gradients and isinstance(job, Job) else None
        """What is computed; None where only time is simulated."""
        self._vector = sizes_only(self.shape.size, self.shape.dtype)
        self._buffers = sizes_only(self.shape.buffers)
        self._rows: list[MetricsRow] = []
        self.timeline = Timeline(FlowNetwork(self.topology.capacities))
        self.workers: Sequence[Node] = [self._worker(*one) for one in enumerate(self.topology.workers)]
        self.servers: Sequence[Node] = [self._server(*one) for one in enumerate(server_groups)]
        self.nodes = {node.peer: node for node in (*self.workers, *self.servers)}
        self.ready: deque[Node] = deque()

    def _check(self, job: Job | JobShape, gradients: bool) -> None:
        check(self.settings, job, self.cluster, self.strategy, gradients, self._horizon)

    @property
    def initial_workers(self) -> tuple[int, ...]:
        topology = self.topology
        return tuple(rank for rank, place in enumerate(topology.workers) if not topology.hosts[place].start)

    def _worker(self, rank: int, place: int) -> Node:
        host, replica, learning_rate = self.topology.hosts[place], None, _constant_rate
        tensors = self._vector, self._vector, self._buffers
        if self._job:
            replica = Replica(self._job, self.shards, rank, self.settings.seed, CPU)
            tensors = replica.flat.params, replica.flat.grad, replica.buffers
            learning_rate = replica.learning_rate
        servers = server_count(self.settings, self.strategy)
        me = Worker(rank, len(self.topology.workers), *tensors, servers=servers)
        session = Session(
            strategy=self.strategy,
            me=me,
            triggers=self.triggers,
            shards=self.shards,
            position=Position(),
            metrics=self._metrics,
            target=self.settings.target_accuracy,
            buffers=self.settings.buffers,
            learning_rate=learning_rate,
            report=self._report,
            stopping=partial(self._stopping, rank),
        )
        dies = inf if host.dies is None else host.dies
        node = Node(
            peer=Peer("worker", rank),
            host=place,
            me=me,
            replica=replica,
            program=self._program(session),
            session=session,
            ledger=StepLedger(partial(self.recorder.stepped, rank) if self.recorder.detailed else None),
            starts=host.start,
            steps=inf if host.steps is None else host.steps,
            dies=dies,
            ends=min(dies, self.horizon),
        )
        if self.steady:
            last = self.shards.steps_per_epoch - 1
            sizes = (self.shards.batch_size(rank), self.shards.size(rank, last))
            node.prices = tuple((self.costs.gradient(rank, size, 0), size) for size in sizes)
            node.apply_seconds = self.costs.apply(rank, 0)
        return node

    def _program(self, session: Session) -> Program:
        return session.program()

    def _stopping(self, rank: int) -> bool:  # noqa: ARG002
        return False

    def _server(self, rank: int, host: int) -> Node:
        servers, shard = self.settings.servers, None
        part = grad = server_slices(self._vector, servers)[rank]
        if self._job:
            shard = ParameterShard(self._job, rank, servers, self.settings.seed, CPU)
            part, grad = shard.params, shard.grad
        me = Server(rank, servers, part, grad, initial_workers=self.initial_workers)
        program = self.strategy.server(me)
        return Node(peer=Peer("server", rank), host=host, me=me, replica=shard, program=program)

    def _report(self, row: MetricsRow) -> None:
        """Every worker at a sync point reports the same row; it is passed on once."""
        if not self._rows or self._rows[-1].step < row.step:
            self._rows.append(row)
            self.observer.evaluated(row)

    def started(self) -> Started:
        return Started(
            name=self._name,
            job=self.shape.name,
            parameters=self.shape.size,
            strategy=shorten(self.settings.strategy, STRATEGIES),
            batch_sizes=self.settings.batch_sizes,
            step=self._step,
            transport=self._describe(),
            last_step=self.triggers.last,
            steps_per_epoch=self.triggers.steps_per_epoch,
            target=self.settings.target_accuracy,
            folder=self._folder,
        )

    def _describe(self) -> str:
        collective = self.settings.collective
        return str(self.cluster) if collective == NATIVE else f"{self.cluster}, by {collective}"

    def summary(self) -> Summary:
        totals = [worker.ledger.times.totals() for worker in self.workers]
        positions = [worker.session.position for worker in self.workers if worker.session is not None]
        steps = positions[0].progress
        if self.strategy.sync_point is SyncPoint.ON_REQUEST and self.servers:
            steps = self.shards.steps_through(self.servers[0].me.seen)
        return Summary(
            name=self._name,
            runtime="virtual",
            ending=self._ending(),
            workers=len(totals),
            steps=steps,
            epochs=self.triggers.epoch(steps),
            seconds=min(self._horizon, max(worker.me.now for worker in self.workers)),
            samples=sum(total.samples for total in totals),
            parameters=self.shape.size,
            target=self.settings.target_accuracy,
            target_seconds=next((one.reached for one in positions if one.reached is not None), None),
            final=self._rows[-1].to_json() if self._rows else {},
            totals=totals,
            servers=[server.totals for server in self.servers],
        )

    def _ending(self) -> str:
        """How the run ended for the workers that were there at the end; a horizon is a budget too."""
        endings = [worker.ending for worker in self.workers]
        if self._horizon == inf and not any(endings):
            step = max(worker.me.clock for worker in self.workers)
            raise RunFailed(f"no worker is left: all {len(endings)} died, the last at step {step}")
        return next((ending for ending in endings if ending not in (None, "left")), None) or "budget"


def _constant_rate(epoch: float) -> float:  # noqa: ARG001
    return 1.0


def check(
    settings: Settings,
    job: Job | JobShape,
    cluster: Cluster,
    strategy: Strategy,
    gradients: bool,
    horizon: float = inf,
) -> None:
    cluster.check_workers(settings.workers)
    if gradients and isinstance(job, JobShape):
        raise UsageError(f"job {job.name!r} is only a shape, without weights; simulate it without gradients")
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
            f"{churn[0]} has no place beside strategy {settings.strategy!r}, which needs every worker at every "
            "exchange; leave it out, or choose ps, ssp or async"
        )
