"""Small jobs and clusters for the tests of virtual time."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

import torch
from torch import Tensor, nn, optim

from paceline.clusters.cluster import Cluster, Host, Link, StepTimes
from paceline.codecs.context import Layout
from paceline.costs.stated import stated_costs
from paceline.jobs.job import Job
from paceline.jobs.spec import JobSpec
from paceline.records.events import MetricsRow
from paceline.records.servers import Entry
from paceline.records.spans import StepBreakdown, StepRecord
from paceline.records.summary import Observer, Summary
from paceline.runtimes.prepare import Prepared, prepare_job
from paceline.runtimes.settings import Cadence, Settings
from paceline.runtimes.virtual.recording import SimulationRecorder
from paceline.runtimes.virtual.shape import JobShape
from paceline.runtimes.virtual.simulate import simulate
from paceline.runtimes.virtual.simulation import Simulation
from paceline.strategies import build_strategy
from paceline.strategies.base import Strategy

torch.set_num_threads(1)

NEVER = Cadence(0)
TIMES = StepTimes(step=StepBreakdown(data=0.5, forward=1.0, backward=2.0, apply=0.25))
SHAPE = JobShape(name="shape", layout=Layout.of_vectors(600, 400), train_samples=800, test_samples=100)


class Clouds:
    """Two clouds of points, one a class."""

    def __init__(self, samples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._targets = torch.arange(samples) % 2
        self._inputs = torch.randn(samples, 6, generator=generator) + self._targets[:, None] * 1.5

    def __len__(self) -> int:
        return len(self._targets)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self._inputs[indices], self._targets[indices]


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).sum()


def sgd(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    return optim.SGD(parameters, lr=0.1)


def plain_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def random_model() -> nn.Module:
    """Draws random numbers, and keeps statistics."""
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 2))


def make_job(model=plain_model, train: int = 96) -> Job:
    return Job(
        name="clouds",
        model=model,
        loss=nn.functional.cross_entropy,
        train=Clouds(train, 1),
        test=Clouds(50, 2),
        optimizer=sgd,
        metrics={"accuracy": accuracy},
    )


def make_cluster(
    workers: int, *, bandwidth: float = 1e6, latency: float = 0.0, times: StepTimes = TIMES, per_host: int = 1
) -> Cluster:
    link = Link(bandwidth=bandwidth, latency=latency)
    hosts = [Host(name=f"h{i}", link=link, workers=per_host) for i in range(workers // per_host)]
    return Cluster.of(hosts, times=times)


@dataclass
class Kept(SimulationRecorder, Observer):
    """Keeps all that a run tells."""

    detailed: bool = True
    records: dict[int, list[StepRecord]] = field(default_factory=dict)
    rows: list[MetricsRow] = field(default_factory=list)
    model: dict[str, Tensor] | None = None
    logs: dict[int, list[Entry]] = field(default_factory=dict)

    def served(self, rank: int, entry: Entry) -> None:
        self.logs.setdefault(rank, []).append(entry)

    def evaluated(self, row: MetricsRow) -> None:
        self.rows.append(row)

    def exported(self, state) -> None:
        self.model = dict(state)

    def recorded(self, rank: int, record: StepRecord) -> None:
        self.records.setdefault(rank, []).append(record)


def settings_of(workers: int, **changes) -> Settings:
    values = {
        "batch_sizes": (8,) * workers,
        "evaluate": NEVER,
        "checkpoint": NEVER,
        "iterations": 5,
    } | changes
    if "epochs" in changes:
        values["iterations"] = None
    return Settings(job=JobSpec(), **values)


def prepared_of(settings: Settings, job: Job | JobShape, strategy: Strategy | None = None) -> Prepared:
    return prepare_job(settings, job, strategy or build_strategy(settings.strategy))


def time_only(
    cluster: Cluster,
    shape: JobShape = SHAPE,
    *,
    detailed=True,
    strategy=None,
    strategy_name="all-reduce",
    horizon=inf,
    **changes,
):
    """Simulate without gradients; return the summary and what was recorded."""
    settings = settings_of(cluster.workers, strategy=strategy_name, **changes)
    kept = Kept(detailed=detailed)
    costs = stated_costs(cluster, settings.batch_sizes, settings.slow, settings.seed)
    prepared = prepared_of(settings, shape, strategy)
    simulation = Simulation(prepared, cluster, costs, gradients=False, recorder=kept, horizon=horizon)
    return simulate(simulation), kept


def with_gradients(
    job: Job, cluster: Cluster, *, strategy=None, strategy_name="all-reduce", **changes
) -> tuple[Summary, Kept]:
    """Simulate with gradients; return the summary and what was recorded and told."""
    settings = settings_of(cluster.workers, strategy=strategy_name, **changes)
    kept, prepared = Kept(), prepared_of(settings, job, strategy)
    costs = stated_costs(cluster, settings.batch_sizes, settings.slow, settings.seed)
    return simulate(Simulation(prepared, cluster, costs, observer=kept, recorder=kept)), kept
