"""``paceline simulate``: the same training in virtual time."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from paceline.cli.options import RECORD, WHERE, RunOptions
from paceline.errors import Mistake
from paceline.records.folder import RunFolder
from paceline.runtimes.settings import Settings

if TYPE_CHECKING:
    from paceline.clusters.cluster import Cluster
    from paceline.records.observer import Observer

DEFAULT_WORKERS = 2
DEFAULT_CLUSTER = "bandwidth=1 Gbit/s,latency=50 us,data=0.1 ms,forward=0.7 ms,backward=1.3 ms,apply=0.1 ms"


@Parameter(name="*")
@dataclass(kw_only=True)
class ClusterOptions:
    """None means that an option was not given."""

    cluster: Annotated[str | None, Parameter(group=WHERE)] = None
    """A .toml file, or inline: 'hosts=4,workers=2,bandwidth=1 Gbit/s,latency=50 us,forward=1 ms,backward=2 ms'."""
    workers: Annotated[int | None, Parameter(name=["--workers", "-np"], group=WHERE)] = None
    """Without --cluster: so many hosts with one worker each (default 2)."""
    times: Annotated[Path | None, Parameter(group=WHERE)] = None
    """A run folder: a step takes as long here as its typical step took there, communication apart."""
    gradients: Annotated[bool, Parameter(group=WHERE)] = True
    """True mathematics and simulated time, or time only."""

    def read(self) -> "Cluster":
        """The described cluster, with the times that hold on it."""
        from paceline.clusters.description import read_cluster
        from paceline.costs.recorded import typical_times

        if self.workers is not None and self.workers < 1:
            raise Mistake(f"--workers {self.workers} is too small: at least 1 worker must train")
        hosts = self.workers or DEFAULT_WORKERS
        cluster = read_cluster(self.cluster or f"hosts={hosts},{DEFAULT_CLUSTER}")
        if self.workers is not None:
            cluster.check_workers(self.workers)
        return replace(cluster, times=typical_times(RunFolder(self.times))) if self.times else cluster


@Parameter(name="*")
@dataclass(kw_only=True)
class KeepOptions:
    """What is kept and shown."""

    runs: Annotated[Path, Parameter(group=RECORD)] = Path("runs")
    """Where run folders are made."""
    name: Annotated[str | None, Parameter(group=RECORD)] = None
    """What to call the run (default: the job)."""
    as_json: Annotated[bool, Parameter(name="--json", group=RECORD, negative=())] = False
    """One JSON document on stdout instead of text."""

    def observer(self, settings: Settings) -> "Observer":
        """Who is told of the run."""
        from paceline.reports.progress import ConsoleObserver, JsonObserver

        return JsonObserver(settings.to_json()) if self.as_json else ConsoleObserver(clock="simulated")


def simulate(
    *, options: RunOptions | None = None, where: ClusterOptions | None = None, keep: KeepOptions | None = None
) -> None:
    """Run the same training in virtual time, on a cluster that nobody owns.

    The strategy's program is the one that 'paceline train' runs. Time comes from the cluster's description:
    links by latency, bandwidth and fair sharing, steps by the times that it states. Same seed, same record,
    byte for byte.
    """
    import torch

    from paceline.costs.given import given_costs
    from paceline.reports.progress import Tee
    from paceline.reports.trace import write_trace
    from paceline.runtimes.prepare import prepare
    from paceline.runtimes.virtual.keeping import FolderObserver, FolderRecorder, new_folder
    from paceline.runtimes.virtual.simulate import check
    from paceline.runtimes.virtual.simulate import simulate as run

    torch.set_num_threads(1)  # as a live worker's, so that sums come out alike to the last bit
    options, where, keep = options or RunOptions(), where or ClusterOptions(), keep or KeepOptions()
    cluster = where.read()
    if not where.gradients and options.evaluate_every is None and options.target_accuracy is None:
        options.evaluate_every = "never"
    settings = options.settings(cluster.workers)
    costs = given_costs(cluster, settings.batch_sizes, settings.slow, settings.seed)
    prepared = prepare(settings)
    check(settings, prepared.job, cluster, prepared.strategy, where.gradients)
    name = keep.name or prepared.job.name
    folder = new_folder(keep.runs, name, settings, cluster, where.gradients)
    observer = Tee([FolderObserver(folder), keep.observer(settings)])
    with FolderRecorder(folder, settings.workers, prepared.agenda.last) as recorder:
        if not recorder.detailed:
            observer.noted("too many workers or steps to keep every step: only totals are recorded")
        run(
            settings,
            prepared.job,
            cluster,
            costs,
            gradients=where.gradients,
            observer=observer,
            recorder=recorder,
            name=name,
            folder=str(folder.path),
        )
    if recorder.detailed:
        write_trace(folder)
