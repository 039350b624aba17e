"""``ask = "run"`` and ``ask = "crossover"``: a strategy's own program, run with stated times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isclose
from typing import Annotated

from msgspec import Meta

from paceline.clusters import toml_reader as toml
from paceline.clusters.cluster import Cluster, Host
from paceline.codecs.context import Layout
from paceline.collectives import NATIVE
from paceline.costs.stated import stated_costs
from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec
from paceline.records.servers import Entry, Received, Updated
from paceline.records.spans import StepRecord
from paceline.records.summary import Summary
from paceline.runtimes.prepare import check_settings, prepare_job
from paceline.runtimes.settings import Cadence, Settings
from paceline.runtimes.virtual.recording import SimulationRecorder
from paceline.runtimes.virtual.shape import JobShape
from paceline.runtimes.virtual.simulate import simulate
from paceline.runtimes.virtual.simulation import Simulation
from paceline.strategies import build_strategy
from paceline.studies.scenarios.scenario import Answer, Scenario

LENGTHS = ("epochs", "batches", "iterations", "rounds")
MOST_STEPS = 1_000_000
"""Steps of all workers together that a scenario may take: some seconds."""
MOST_ENTRIES = 1_000
"""Messages and updates that are kept, to show a short run one by one."""
MOST_KINDS = 12
MOST_UPDATES = 24
ENDLESS = 10**12
"""Steps that no worker takes: its own number of steps, or the horizon, ends the run."""
USUAL_CROSSOVER, MOST_CROSSOVER = 1_024, 4_096
"""Workers up to which a crossover is looked for, and the most that a file may ask for."""


@dataclass(frozen=True, kw_only=True)
class RunTable:
    """The [run] table: what is trained, in time only."""

    batch: toml.Count
    """Samples of a mini-batch; what the cluster's times are stated for."""
    parameters: int
    strategy: toml.Name = "all-reduce"
    collective: toml.Name = NATIVE
    servers: toml.Count = 1
    horizon: toml.Seconds = inf
    epochs: toml.Count = 0
    batches: toml.Count = 0
    iterations: toml.Count = 0
    rounds: toml.Count = 0
    """Exchanges, each after ``local_epochs`` of a worker's own samples."""
    samples: toml.Count = 0
    local_epochs: toml.Count = 0

    def local_batches(self, workers: int) -> int:
        share = -(-self.samples // workers)
        return -(-share // self.batch) * self.local_epochs if self.local_epochs else 1

    def steps(self, workers: int) -> list[int]:
        """Steps of each worker: batches are dealt out whole, one per worker and round, until none is left."""
        if each := self.iterations or self.rounds:
            return [each] * workers
        batches = self.batches or -(-self.samples // self.batch) * self.epochs
        return [-(-(batches - rank) // workers) for rank in range(workers)]


def _read_run_table(reader: toml.Reader) -> RunTable:
    work = reader.fill(RunTable, parameters=_read_parameters(reader))
    reader.finish()
    given = [key for key in LENGTHS if key in reader.values]
    if len(given) > 1:
        raise reader.wrong(
            given[1], reader.values[given[1]], f"{given[0]} already says it; leave one of them out"
        )
    if not given and work.horizon == inf:
        raise UsageError(
            f"{reader.place('epochs')} is missing: say how long, by one of {', '.join(LENGTHS)} or horizon"
        )
    if bool(work.rounds) != bool(work.local_epochs):
        key = "rounds" if work.rounds else "local-epochs"
        raise reader.wrong(key, reader.values[key], "rounds and local-epochs go together; state both")
    needs = [key for key in ("epochs", "local-epochs") if key in reader.values]
    if needs and not work.samples:
        raise UsageError(f"{reader.place('samples')} is missing: {needs[0]} are passes over the samples")
    if work.samples and not needs:
        raise reader.wrong("samples", work.samples, "only epochs or local-epochs need them; leave them out")
    return work


def _read_parameters(reader: toml.Reader) -> int:
    reader.need("batch = 32")
    size, parameters = reader.get("model", toml.Bytes, 0.0), reader.get("parameters", toml.Count, 1)
    if "model" in reader.values and "parameters" in reader.values:
        raise reader.wrong("parameters", parameters, "model already says it; leave one of them out")
    return int(size / 4) or parameters


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Consecutive updates of a server that are alike."""

    count: int
    workers: int
    seconds: float
    """Of one of them, on average: since the update before, or since the beginning."""


@dataclass(frozen=True, kw_only=True)
class RunAnswer:
    strategy: str
    workers: tuple[str, ...]
    seconds: float
    """Until the last update, where there are servers; else until the last worker has ended."""
    batches: int
    local_batches: int
    """Mini-batches of a worker between two exchanges, where a round is more than one."""
    compute: float
    """Seconds that a worker computes between two exchanges; the slowest one's."""
    communicate: float | None
    """Seconds of a worker over the whole run, on average; None where there are servers, and rounds tell it."""
    wait: float | None
    horizon: float | None
    updates: int
    rounds: tuple[Rounds, ...]
    """In order; empty where there are no servers, and where too many of them differ."""
    unfinished: tuple[str, ...]
    """Workers that came and whose first gradient did not reach the server."""
    entries: tuple[Entry, ...]
    """The server's log, where the run is short enough to be shown update by update."""


class RunLog(SimulationRecorder):
    """Follows the first server: what the rounds were like, and everything it did as long as that is short."""

    detailed = True

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.rounds: list[Rounds] = []
        self.came: set[int] = set()
        self.pushed: set[int] = set()
        self.exchanges: list[int] = []
        self.updates = 0
        self.last = 0.0

    def recorded(self, rank: int, record: StepRecord) -> None:
        if rank == 0 and record.is_step and record.sent:
            self.exchanges.append(record.step)

    def served(self, rank: int, entry: Entry) -> None:
        if rank:
            return
        if len(self.entries) < MOST_ENTRIES:
            self.entries.append(entry)
        match entry:
            case Updated():
                self._add(len(entry.used), entry.at - self.last)
                self.updates, self.last = entry.version, entry.at
            case Received(kind="Join"):
                self.came.add(entry.worker)
            case Received(kind="Push"):
                self.pushed.add(entry.worker)

    def _add(self, workers: int, seconds: float) -> None:
        """One more of the same kind, or a new kind; beyond those that are listed, all are one."""
        last = self.rounds[-1] if self.rounds else None
        if last and last.workers == workers and isclose(last.seconds, seconds, rel_tol=1e-4):
            total, count = last.seconds * last.count + seconds, last.count + 1
            self.rounds[-1] = replace(last, count=count, seconds=total / count)
        elif len(self.rounds) <= MOST_KINDS:
            self.rounds.append(Rounds(count=1, workers=workers, seconds=seconds))


def run(scenario: Scenario) -> RunAnswer:
    work = _read_run_table(scenario.reader.table("run"))
    return _run(work, scenario.cluster())[0]


def _run(work: RunTable, cluster: Cluster) -> tuple[RunAnswer, RunLog]:
    """Run on a cluster; a UsageError where that cannot be simulated.

    A step of a worker is all that it does between two exchanges: one mini-batch, or its own epochs.
    """
    strategy = build_strategy(work.strategy)
    local, steps = work.local_batches(cluster.workers), work.steps(cluster.workers)
    iterations = ENDLESS
    if strategy.served:
        cluster = _deal(cluster, steps)
    else:
        iterations = _same_for_all(work, steps)
    workers = cluster.workers
    settings = Settings(
        job=JobSpec(),
        strategy=work.strategy,
        batch_sizes=(work.batch * local,) * workers,
        iterations=iterations,
        evaluate=Cadence(0),
        checkpoint=Cadence(0),
        collective=work.collective,
        servers=work.servers,
    )
    samples = sum(settings.batch_sizes)
    shape = JobShape(
        name="scenario", layout=Layout.of_vectors(work.parameters), train_samples=samples, test_samples=0
    )
    costs = stated_costs(cluster, (work.batch,) * workers, {})
    compute = max(sum(costs.gradient(rank, size, 0)) for rank, size in enumerate(settings.batch_sizes))
    check_settings(settings)
    _check_size(work, sum(steps), workers, compute)
    log, horizon = RunLog(), work.horizon
    prepared = prepare_job(settings, shape, strategy)
    costs = replace(costs, applying=prepared.learners)
    summary = simulate(Simulation(prepared, cluster, costs, gradients=False, recorder=log, horizon=horizon))
    return _answer(work, cluster, summary, log, compute, local), log


def _answer(
    work: RunTable, cluster: Cluster, summary: Summary, log: RunLog, compute: float, local: int
) -> RunAnswer:
    names = [host.name for host in cluster.hosts for _ in range(host.workers)]
    served, totals = bool(summary.servers), summary.totals
    steps = summary.servers[0].used if served else sum(total.steps for total in totals)
    short = 0 < log.updates <= MOST_UPDATES and len(log.entries) < MOST_ENTRIES

    def mean(kind: str) -> float | None:
        return None if served else sum(one.seconds[kind] for one in totals) / len(totals)

    return RunAnswer(
        strategy=work.strategy,
        workers=tuple(names),
        seconds=log.last if served else summary.seconds,
        batches=steps * local,
        local_batches=local,
        compute=compute,
        communicate=mean("communicate"),
        wait=mean("wait"),
        horizon=None if work.horizon == inf else work.horizon,
        updates=log.updates,
        rounds=tuple(log.rounds) if len(log.rounds) <= MOST_KINDS else (),
        unfinished=tuple(names[rank] for rank in sorted(log.came - log.pushed)),
        entries=tuple(log.entries) if short else (),
    )


def _deal(cluster: Cluster, steps: Sequence[int]) -> Cluster:
    """Every host's workers leave after their steps; where the work states none, the hosts do."""
    if not steps[0]:
        return cluster
    hosts, rank = [], 0
    for host in cluster.hosts:
        if host.steps is not None:
            raise UsageError(
                f"steps = {host.steps} of host {host.name!r} and the length in [run] contradict each other; "
                "leave one of them out"
            )
        hosts.append(_with_steps(host, steps[rank : rank + host.workers]))
        rank += host.workers
    return cluster.with_hosts(hosts)


def _with_steps(host: Host, steps: Sequence[int]) -> Host:
    if len(set(steps)) > 1:
        raise UsageError(
            f"the {len(steps)} workers of host {host.name!r} do not get as many batches each "
            f"({', '.join(map(str, steps))}); give every worker a host of its own, or other batches"
        )
    if not steps:
        return host
    return replace(host, steps=steps[0]) if steps[0] else replace(host, workers=0)


def _same_for_all(work: RunTable, steps: Sequence[int]) -> int:
    if len(set(steps)) > 1:
        raise UsageError(
            f"{sum(steps):,} batches do not go evenly among {len(steps)} workers, and strategy {work.strategy!r} "
            f"needs every worker at every exchange; choose ps, or a multiple of {len(steps)}"
        )
    return steps[0] or ENDLESS


def _check_size(work: RunTable, steps: float, workers: int, compute: float) -> None:
    if work.horizon < inf:
        if not compute:
            raise UsageError(
                "a gradient takes no time here, so the horizon is never reached; state forward or backward"
            )
        steps = min(steps or inf, workers * work.horizon / compute)
    if steps > MOST_STEPS:
        raise UsageError(
            f"{steps:,.0f} steps are too many for a scenario: at most {MOST_STEPS:,} of all workers"
        )


def find_crossover(scenario: Scenario) -> Answer:
    """From how many workers the rest of a round takes longer than computing; None up to the ``most`` that were tried.

    Each number of workers is a run of its own: twice as many until it is so, then halves in between. The rest of a
    round is taken to grow with the workers, as it does wherever there is a crossover at all.
    """
    limit, step = scenario.reader.table("crossover"), scenario.reader.table("run")
    most = limit.get("most", Annotated[int, Meta(ge=1, le=MOST_CROSSOVER)], USUAL_CROSSOVER)
    endless = dict.fromkeys((*LENGTHS, "samples", "local_epochs"), 0)
    work = step.fill(RunTable, parameters=_read_parameters(step), horizon=inf, **endless)
    limit.finish()
    step.finish()
    cluster = scenario.cluster()
    tried: dict[int, dict[str, float]] = {}

    def beyond(workers: int) -> bool:
        tried[workers] = _balance(work, _widen(cluster, workers))
        return tried[workers]["rest"] > tried[workers]["compute"]

    found = _first(beyond, most)
    return {"workers": found, "most": most, "tried": [tried[workers] for workers in sorted(tried)]}


def _first(beyond: Callable[[int], bool], most: int) -> int | None:
    low, high = 0, 1
    while not beyond(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if beyond(middle) else (middle, high)
    return high


def _balance(work: RunTable, cluster: Cluster) -> dict[str, float]:
    """A round in the long run: the second one, for the first may begin otherwise."""
    answer, log = _run(replace(work, iterations=2), cluster)
    if answer.rounds:
        seconds = answer.rounds[-1].seconds
    else:
        period = _exchange_period(work, cluster, log)
        once, twice = (_run(replace(work, iterations=many * period), cluster)[0].seconds for many in (1, 2))
        seconds = (twice - once) / period
    return {"workers": cluster.workers, "compute": answer.compute, "rest": seconds - answer.compute}


def _exchange_period(work: RunTable, cluster: Cluster, log: RunLog) -> int:
    """Steps of a worker from one exchange to the next, observed in runs that are twice as long each time."""
    steps = 2
    while len(log.exchanges) < 2:
        steps *= 2
        if cluster.workers == 1 or steps * cluster.workers > MOST_STEPS:
            return 1
        log = _run(replace(work, iterations=steps), cluster)[1]
    return log.exchanges[1] - log.exchanges[0]


def _widen(cluster: Cluster, workers: int) -> Cluster:
    training = [host for host in cluster.hosts if host.workers]
    like = training[0]
    for host in training:
        if host != like or host.workers > 1:
            raise UsageError(
                f"host {host.name!r} has {host.workers} workers or differs from {like.name!r}; to try other numbers "
                "of workers, all that train must be alike and have one worker each"
            )
    copies = (replace(like, name=f"{like.name}-{rank}") for rank in range(workers))
    return cluster.with_hosts([*copies, *(host for host in cluster.hosts if not host.workers)])
