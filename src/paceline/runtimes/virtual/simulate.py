"""Run a training in virtual time."""

from collections.abc import Callable
from functools import partial

from paceline import specs
from paceline.clusters.cluster import Cluster
from paceline.collectives.choose import NATIVE
from paceline.costs.all_reduce import all_reduce_costs
from paceline.costs.base import Costs
from paceline.costs.network import Network
from paceline.costs.topology import Topology
from paceline.errors import Mistake
from paceline.jobs.job import Job, constant
from paceline.jobs.sharding import Shards
from paceline.records.metrics import Row
from paceline.records.observer import Observer, Silent, Started
from paceline.records.summary import Summary
from paceline.runtimes.agenda import Agenda
from paceline.runtimes.prepare import check_buffers
from paceline.runtimes.randomness import AllStreams, undisturbed
from paceline.runtimes.session import Position, Session
from paceline.runtimes.settings import Settings
from paceline.runtimes.virtual.books import Books, FullBooks
from paceline.runtimes.virtual.engine import Engine
from paceline.runtimes.virtual.mathematics import Mathematics, Nothing, Real
from paceline.runtimes.virtual.node import Node
from paceline.runtimes.virtual.recorder import Recorder, TotalsOnly
from paceline.runtimes.virtual.shape import JobShape
from paceline.runtimes.virtual.timeline import Timeline
from paceline.runtimes.virtual.world import World
from paceline.strategies import STRATEGIES
from paceline.strategies.base import Served, Strategy
from paceline.strategies.effects import Peer


def simulate(
    settings: Settings,
    job: Job | JobShape,
    cluster: Cluster,
    costs: Costs,
    *,
    gradients: bool = True,
    strategy: Strategy | None = None,
    observer: Observer | None = None,
    recorder: Recorder | None = None,
    name: str = "",
    folder: str | None = None,
) -> Summary:
    """Run the settings on the cluster and return how it went; the same arguments give the same run.

    With ``gradients`` the mathematics is true and only time is simulated; without, there is time only, and a
    job's shape is enough. Nothing is written: checkpoints only take their time. ``strategy`` is built from the
    settings unless given; ``folder`` is where the recorder keeps the run, for the observer to tell. Raises
    Mistake for what cannot be simulated and RunFailed where a strategy gets stuck.
    """
    strategy = strategy or specs.build(settings.strategy, STRATEGIES, "strategy")
    check(settings, job, cluster, strategy, gradients)
    run = _Run(
        settings,
        job,
        cluster,
        costs,
        gradients,
        strategy,
        observer or Silent(),
        recorder or TotalsOnly(),
        name,
        folder,
    )
    with undisturbed(AllStreams()):
        return run.run()


def check(
    settings: Settings, job: Job | JobShape, cluster: Cluster, strategy: Strategy, gradients: bool
) -> None:
    """Raise a Mistake for what cannot be simulated, before anything is written."""
    cluster.check_workers(settings.workers)
    if gradients and isinstance(job, JobShape):
        raise Mistake(f"job {job.name!r} is only a shape, without weights; simulate it without gradients")
    if not gradients and settings.target_accuracy is not None:
        raise Mistake(
            f"--target-accuracy {settings.target_accuracy:g} cannot be met without gradients; "
            "leave it out or simulate with gradients"
        )
    if not gradients and settings.evaluate.count:
        raise Mistake(
            f"--evaluate-every '{settings.evaluate}' has nothing to evaluate without gradients; "
            "say 'never' or simulate with gradients"
        )
    check_buffers(settings, strategy)


class _Run:
    """One simulated run, from its parts to its summary."""

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
    ) -> None:
        self.settings, self.cluster, self.costs, self.strategy = settings, cluster, costs, strategy
        self.observer, self.recorder = observer, recorder
        self.shape = job if isinstance(job, JobShape) else JobShape.of(job)
        self.name, self.folder = name or self.shape.name, folder
        self.shards = Shards(self.shape.train_samples, settings.batch_sizes, settings.seed)
        self.agenda = Agenda(settings, self.shards.steps_per_epoch)
        self.metrics = tuple(job.metrics) if isinstance(job, Job) else ()
        self.learning_rate: Callable[[float], float] = constant
        self.mathematics: Mathematics = Nothing(self.shape, settings.workers)
        if gradients and isinstance(job, Job):
            self.mathematics = real = Real(job, self.shards, settings.workers, settings.seed)
            self.learning_rate = real.learning_rate
        self.rows: list[Row] = []

    def run(self) -> Summary:
        """Simulate."""
        world = self._world()
        self.observer.started(self._started())
        Engine(world, Timeline(Network(world.topology.capacities))).run()
        summary = self._summary(world)
        self.observer.finished(summary)
        return summary

    def _world(self) -> World:
        topology = Topology(self.cluster)
        served = self.strategy.servers if isinstance(self.strategy, Served) else 0
        return World(
            workers=[self._worker(rank, host) for rank, host in enumerate(topology.workers)],
            servers=[
                self._server(rank, host) for rank, host in enumerate(self.cluster.place_servers(served))
            ],
            strategy=self.strategy,
            shape=self.shape,
            shards=self.shards,
            topology=topology,
            costs=self.costs,
            mathematics=self.mathematics,
            observer=self.observer,
            recorder=self.recorder,
            share_buffers=self.settings.buffers == "rank0",
            all_reduce=all_reduce_costs(self.settings.collective, topology),
        )

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
            report=self._report if rank == 0 else _ignore,
            stopping=_never,
        )
        detailed = self.recorder.detailed
        node = Node(
            peer=Peer("worker", rank),
            host=host,
            me=me,
            program=session.program(),
            session=session,
            books=FullBooks(partial(self.recorder.stepped, rank)) if detailed else Books(),
        )
        if self.costs.steady:
            last = self.shards.steps_per_epoch - 1
            sizes = (self.settings.batch_sizes[rank], self.shards.size(rank, last))
            node.prices = tuple((self.costs.gradient(rank, size, 0), size) for size in sizes)
            node.apply_seconds = self.costs.apply(rank, 0)
        return node

    def _server(self, rank: int, host: int) -> Node:
        assert isinstance(self.strategy, Served)
        me = self.mathematics.server(rank)
        return Node(peer=Peer("server", rank), host=host, me=me, program=self.strategy.server(me))

    def _report(self, row: Row) -> None:
        self.rows.append(row)
        self.observer.evaluated(row)

    def _started(self) -> Started:
        return Started(
            name=self.name,
            job=self.shape.name,
            parameters=self.shape.size,
            strategy=self.settings.strategy,
            batch_sizes=self.settings.batch_sizes,
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
        first = world.workers[0]
        assert first.session is not None
        assert first.ending is not None
        position = first.session.position
        totals = [worker.books.totals() for worker in world.workers]
        return Summary(
            name=self.name,
            runtime="virtual",
            ending=first.ending,
            workers=len(totals),
            steps=position.progress,
            epochs=self.agenda.epoch(position.progress),
            seconds=max(worker.me.now for worker in world.workers),
            samples=sum(total.samples for total in totals),
            parameters=self.shape.size,
            target=self.settings.target_accuracy,
            target_seconds=position.reached,
            final=self.rows[-1].to_json() if self.rows else {},
            totals=totals,
        )


def _ignore(row: Row) -> None:
    """Only rank 0 talks."""


def _never() -> bool:
    return False
