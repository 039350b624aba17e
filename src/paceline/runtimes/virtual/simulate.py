"""Run a training in virtual time."""

from collections.abc import Sequence
from math import inf

from paceline.clusters.cluster import Cluster
from paceline.costs.stated import Costs
from paceline.errors import UsageError
from paceline.jobs.job import Job
from paceline.records.summary import Observer, Summary
from paceline.runtimes.prepare import check_buffers
from paceline.runtimes.randomness import AllStreams, undisturbed
from paceline.runtimes.settings import Settings
from paceline.runtimes.virtual.engine import VirtualEngine
from paceline.runtimes.virtual.recording import SimulationRecorder
from paceline.runtimes.virtual.shape import JobShape
from paceline.runtimes.virtual.simulation import Simulation
from paceline.strategies import build_strategy
from paceline.strategies.base import Strategy


def simulate(
    settings: Settings,
    job: Job | JobShape,
    cluster: Cluster,
    costs: Costs,
    *,
    gradients: bool = True,
    strategy: Strategy | None = None,
    observer: Observer | None = None,
    recorder: SimulationRecorder | None = None,
    name: str = "",
    folder: str | None = None,
    horizon: float = inf,
    server_groups: Sequence[int] | None = None,
) -> Summary:
    """Run the settings on the cluster and return how it went; the same arguments give the same run.

    With ``gradients`` they are computed and only time is simulated; without, there is time only, and a job's shape is
    enough. Nothing is written: checkpoints only take their time. ``strategy`` is built from the settings unless given;
    ``folder`` is where the recorder keeps the run, for the observer. At the ``horizon``, in seconds, a run with servers
    is over; what is unfinished then does not count. Raises UsageError for what cannot be simulated and RunFailed where
    a strategy gets stuck.

    With ``server_groups``, one worker of each group of equal hosts is simulated and stands for all of them, so 100,000
    workers cost what one costs; the servers are on these groups, of one host each. The settings and costs are those of
    the simulated workers, and the cluster's links as messages find them. That is right without gradients, for
    strategies in which the workers of a group act in step.
    """
    strategy = strategy or build_strategy(settings.strategy)
    if server_groups is None:
        check(settings, job, cluster, strategy, gradients, horizon)
    with undisturbed(AllStreams()):
        simulation = Simulation(
            settings,
            job,
            cluster,
            costs,
            gradients=gradients,
            strategy=strategy,
            observer=observer or Observer(),
            recorder=recorder or SimulationRecorder(),
            name=name,
            folder=folder,
            horizon=horizon,
            server_groups=server_groups,
        )
        return run(simulation, VirtualEngine(simulation))


def run(simulation: Simulation, engine: VirtualEngine) -> Summary:
    """Run to the end; the observer is told."""
    simulation.observer.started(simulation.started())
    engine.run()
    summary = simulation.summary()
    simulation.observer.finished(summary)
    return summary


def check(
    settings: Settings,
    job: Job | JobShape,
    cluster: Cluster,
    strategy: Strategy,
    gradients: bool,
    horizon: float = inf,
) -> None:
    """Raise a UsageError for what cannot be simulated, before anything is written."""
    cluster.check_workers(settings.workers)
    if gradients and isinstance(job, JobShape):
        raise UsageError(f"job {job.name!r} is only a shape, without weights; simulate it without gradients")
    if not gradients and settings.target_accuracy is not None:
        raise UsageError(
            f"a target accuracy of {settings.target_accuracy:g} cannot be met without gradients; "
            "leave it out or simulate with gradients"
        )
    if not gradients and settings.evaluate.count:
        raise UsageError(
            f"an evaluation every {settings.evaluate} has nothing to evaluate without gradients; "
            "evaluate never or simulate with gradients"
        )
    check_buffers(settings, strategy)
    if not strategy.served:
        _check_no_churn(settings, cluster, horizon)
    elif not horizon > 0:
        raise UsageError(f"a horizon of {horizon:g} s is too short: give a time such as '0.6 s'")


def _check_no_churn(settings: Settings, cluster: Cluster, horizon: float) -> None:
    """Refuse what needs servers that outlive a worker."""
    instead = "choose ps, ssp or async"
    for group in cluster.groups:
        for setting in group.host.churn:
            raise UsageError(
                f"{setting} of host {group.name(0)!r}: strategy {settings.strategy!r} needs every worker at every "
                f"exchange, so none can start late or leave early; leave it out, or {instead}"
            )
    if horizon < inf:
        raise UsageError(
            f"a horizon of {horizon:g} s would cut strategy {settings.strategy!r} off in the middle of an exchange; "
            f"leave it out, or {instead}"
        )
