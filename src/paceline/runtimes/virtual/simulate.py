"""Run a training in virtual time."""

from math import inf

from paceline import specs
from paceline.clusters.cluster import Cluster
from paceline.costs.base import Costs
from paceline.errors import UsageError
from paceline.jobs.job import Job
from paceline.records.observer import Observer
from paceline.records.summary import Summary
from paceline.runtimes.prepare import check_buffers
from paceline.runtimes.randomness import AllStreams, undisturbed
from paceline.runtimes.settings import Settings
from paceline.runtimes.virtual.recorder import Recorder, TotalsOnly
from paceline.runtimes.virtual.run import Run
from paceline.runtimes.virtual.shape import JobShape
from paceline.strategies import STRATEGIES
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
    recorder: Recorder | None = None,
    name: str = "",
    folder: str | None = None,
    horizon: float = inf,
) -> Summary:
    """Run the settings on the cluster and return how it went; the same arguments give the same run.

    With ``gradients`` the mathematics is true and only time is simulated; without, there is time only, and a
    job's shape is enough. Nothing is written: checkpoints only take their time. ``strategy`` is built from the
    settings unless given; ``folder`` is where the recorder keeps the run, for the observer to tell. At the
    ``horizon``, in seconds, a run with servers is over; what is unfinished then does not count. Raises UsageError
    for what cannot be simulated and RunFailed where a strategy gets stuck.
    """
    strategy = strategy or specs.build(settings.strategy, STRATEGIES, "strategy")
    check(settings, job, cluster, strategy, gradients, horizon)
    run = Run(
        settings,
        job,
        cluster,
        costs,
        gradients,
        strategy,
        observer or Observer(),
        recorder or TotalsOnly(),
        name,
        folder,
        horizon,
    )
    with undisturbed(AllStreams()):
        return run.run()


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
            f"--target-accuracy {settings.target_accuracy:g} cannot be met without gradients; "
            "leave it out or simulate with gradients"
        )
    if not gradients and settings.evaluate.count:
        raise UsageError(
            f"--evaluate-every '{settings.evaluate}' has nothing to evaluate without gradients; "
            "say 'never' or simulate with gradients"
        )
    check_buffers(settings, strategy)
    if not strategy.served:
        _check_churn(settings, cluster, horizon)
    elif not horizon > 0:
        raise UsageError(f"--horizon {horizon:g} is too short: give a time such as '0.6 s'")


def _check_churn(settings: Settings, cluster: Cluster, horizon: float) -> None:
    """Refuse what needs servers that outlive a worker."""
    instead = "choose ps, ssp or async"
    for group in cluster.groups:
        for setting in group.host.churn:
            raise UsageError(
                f"{setting} of host {group.name(0)!r}: strategy {settings.strategy!r} needs every worker at every "
                f"exchange, so none can come late or go early; leave it out, or {instead}"
            )
    if horizon < inf:
        raise UsageError(
            f"--horizon '{horizon:g} s' would cut strategy {settings.strategy!r} off in the middle of an exchange; "
            f"leave it out, or {instead}"
        )
