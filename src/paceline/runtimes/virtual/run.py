"""One simulated run, from its parts to its summary."""

from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from paceline.clusters.cluster import Cluster, Host
from paceline.collectives import NATIVE
from paceline.costs.all_reduce import AllReduceCosts, all_reduce_costs
from paceline.costs.base import Costs
from paceline.costs.compressed import Compressed
from paceline.costs.compression import Whole
from paceline.costs.network import Network
from paceline.costs.topology import Topology
from paceline.errors import RunFailed
from paceline.jobs.job import Job, constant
from paceline.jobs.sharding import Shards
from paceline.records.events import MetricsRow
from paceline.records.observer import Observer, Started
from paceline.records.summary import Summary
from paceline.runtimes.agenda import Triggers
from paceline.runtimes.prepare import server_count
from paceline.runtimes.session import Position, Session
from paceline.runtimes.settings import Settings
from paceline.runtimes.virtual.books import Books, FullBooks
from paceline.runtimes.virtual.engine import Carrier, Engine
from paceline.runtimes.virtual.mail import NetworkMail
from paceline.runtimes.virtual.mathematics import Compute, NoCompute, RealCompute
from paceline.runtimes.virtual.node import Node
from paceline.runtimes.virtual.recorder import Recorder
from paceline.runtimes.virtual.shape import JobShape
from paceline.runtimes.virtual.timeline import Timeline
from paceline.runtimes.virtual.world import World
from paceline.specs import shorten
from paceline.strategies import STRATEGIES
from paceline.strategies.base import Strategy, SyncPoint
from paceline.strategies.effects import Peer, Program

NEAR = 1e-6
"""What is done within this part of the horizon after it is done in time: sums of stated times are not exact."""


class Run:
    """The workers, the servers and what they are given; built from the settings, and run once."""

    def __init__(
        self,
        settings: Settings,
        job: Job | JobShape,
        cluster: Cluster,
        costs: Costs,
        gradients: bool,
        strategy: Strategy,
        observer: Observer,
        recorder: Recorder,
        name: str,
        folder: str | None,
        horizon: float,
    ) -> None:
        self.settings, self.cluster, self.costs, self.strategy = settings, cluster, costs, strategy
        self.observer, self.recorder, self.horizon = observer, recorder, horizon
        self.servers = server_count(settings, strategy)
        self.shape = job if isinstance(job, JobShape) else JobShape.of(job)
        self.name, self.folder = name or self.shape.name, folder
        sizes = settings.step_sizes(self.shape.accumulate)
        self.shards = Shards(self.shape.train_samples, sizes, settings.seed)
        self.agenda = Triggers(settings, self.shards.steps_per_epoch)
        self.metrics, self.step = (tuple(job.metrics), job.step) if isinstance(job, Job) else ((), "")
        self.learning_rate: Callable[[float], float] = constant
        self.mathematics: Compute = NoCompute(self.shape, cluster.workers, self.servers)
        if gradients and isinstance(job, Job):
            self.mathematics = real = RealCompute(
                job, self.shards, cluster.workers, settings.seed, self.servers
            )
            self.learning_rate = real.learning_rate
        self.rows: list[MetricsRow] = []
        self.carrier: Carrier = NetworkMail

    def run(self) -> Summary:
        """Simulate."""
        world = self._world()
        self.observer.started(self._started())
        Engine(world, Timeline(Network(world.topology.capacities)), self.carrier).run()
        summary = self._summary(world)
        self.observer.finished(summary)
        return summary

    def _world(self) -> World:
        topology = self._topology()
        places = self._places()
        return World(
            workers=[self._worker(rank, host) for rank, host in enumerate(topology.workers)],
            servers=[self._server(rank, host) for rank, host in enumerate(places)],
            strategy=self.strategy,
            shape=self.shape,
            shards=self.shards,
            agenda=self.agenda,
            topology=topology,
            costs=self.costs,
            mathematics=self.mathematics,
            observer=self.observer,
            recorder=self.recorder,
            share_buffers=self.settings.buffers == "rank0",
            all_reduce=self._all_reduce(topology),
            horizon=self.horizon * (1 + NEAR),
        )

    def _all_reduce(self, topology: Topology) -> AllReduceCosts:
        """What sums cost among these links, by the codec where there is one."""
        plain = all_reduce_costs(self.settings.collective, topology)
        compression = self.shape.compression
        return plain if isinstance(compression, Whole) else Compressed(plain, topology, compression)

    def _topology(self) -> Topology:
        """The links, and the workers that are run; messages to servers on other hosts are encrypted."""
        return Topology(self.cluster.encrypted(self._places()) if self.servers else self.cluster)

    def _places(self) -> Sequence[int]:
        """The host of every server."""
        return self.cluster.place_servers(self.servers)

    def _worker(self, rank: int, host: int) -> Node:
        me = self.mathematics.worker(rank)
        session = Session(
            strategy=self.strategy,
            me=me,
            agenda=self.agenda,
            shards=self.shards,
            position=Position(),
            metrics=self.metrics,
            target=self.settings.target_accuracy,
            buffers=self.settings.buffers,
            learning_rate=self.learning_rate,
            report=self._report,
            stopping=partial(self._stops, rank),
        )
        detailed = self.recorder.detailed
        node = Node(
            peer=Peer("worker", rank),
            host=host,
            me=me,
            program=self._program(session),
            session=session,
            books=FullBooks(partial(self.recorder.stepped, rank)) if detailed else Books(),
        )
        self._set_life(node, self.cluster.hosts[host])
        if self.costs.steady:
            last = self.shards.steps_per_epoch - 1
            sizes = (self.shards.batch_size(rank), self.shards.size(rank, last))
            node.prices = tuple((self.costs.gradient(rank, size, 0), size) for size in sizes)
            node.apply_seconds = self.costs.apply(rank, 0)
        return node

    def _stops(self, rank: int) -> bool:  # noqa: ARG002
        """Whether a worker is to stop before its time."""
        return False

    def _program(self, session: Session) -> Program:
        """What a worker runs."""
        return session.program()

    def _server(self, rank: int, host: int) -> Node:
        assert self.strategy.served
        me = self.mathematics.server(rank)
        me.initial_workers = self.founders
        return Node(peer=Peer("server", rank), host=host, me=me, program=self.strategy.server(me))

    @property
    def founders(self) -> tuple[int, ...]:
        """The workers with which the run begins."""
        places = self.cluster.place_workers()
        return tuple(rank for rank, host in enumerate(places) if not self.cluster.hosts[host].start)

    def _set_life(self, node: Node, host: Host) -> None:
        """When a worker of a host comes and goes."""
        node.starts = host.start
        node.steps = inf if host.steps is None else host.steps
        node.dies = inf if host.dies is None else host.dies
        node.ends = min(node.dies, self.horizon * (1 + NEAR))

    def _report(self, row: MetricsRow) -> None:
        """Every worker of a meeting tells the same; it is told on once, whoever of them is still there."""
        if not self.rows or self.rows[-1].step < row.step:
            self.rows.append(row)
            self.observer.evaluated(row)

    def _started(self) -> Started:
        return Started(
            name=self.name,
            job=self.shape.name,
            parameters=self.shape.size,
            strategy=shorten(self.settings.strategy, STRATEGIES),
            batch_sizes=self.settings.batch_sizes,
            step=self.step,
            transport=self._transport(),
            last_step=self.agenda.last,
            steps_per_epoch=self.agenda.steps_per_epoch,
            target=self.settings.target_accuracy,
            folder=self.folder,
        )

    def _transport(self) -> str:
        collective = self.settings.collective
        return str(self.cluster) if collective == NATIVE else f"{self.cluster}, by {collective}"

    def _summary(self, world: World) -> Summary:
        totals = [worker.books.totals() for worker in world.workers]
        sessions = [worker.session for worker in world.workers if worker.session is not None]
        steps = sessions[0].position.progress
        if self.strategy.sync_point is SyncPoint.ON_REQUEST and world.servers:
            steps = self.shards.steps_through(world.servers[0].me.seen)
        reached = [session.position.reached for session in sessions]
        return Summary(
            name=self.name,
            runtime="virtual",
            ending=_ending(world),
            workers=len(totals),
            steps=steps,
            epochs=self.agenda.epoch(steps),
            seconds=min(self.horizon, max(worker.me.now for worker in world.workers)),
            samples=sum(total.samples for total in totals),
            parameters=self.shape.size,
            target=self.settings.target_accuracy,
            target_seconds=next((seconds for seconds in reached if seconds is not None), None),
            final=self.rows[-1].to_json() if self.rows else {},
            totals=totals,
            servers=[server.totals for server in world.servers],
        )


def _ending(world: World) -> str:
    """How the run ended for those who were there at the end; a horizon and a worker's own steps are budgets too."""
    endings = [worker.ending for worker in world.workers]
    if world.horizon == inf and not any(endings):
        raise RunFailed(
            f"no worker is left: all {len(endings)} died, the last at step "
            f"{max(worker.me.clock for worker in world.workers)}"
        )
    return next((ending for ending in endings if ending not in (None, "left")), None) or "budget"
