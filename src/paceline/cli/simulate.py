"""``paceline simulate``: the same training in virtual time."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from paceline.cli.importing import skip_compiler_import
from paceline.cli.options import (
    DEFAULT_WORKERS,
    JOB,
    LENGTH,
    WHERE,
    KeepOptions,
    RunOptions,
    Whole,
    given_options,
)
from paceline.clusters.cluster import Cluster, StepTimes
from paceline.clusters.description import read_cluster
from paceline.costs.recorded import typical_step
from paceline.costs.stated import StatedCosts, stated_costs
from paceline.errors import UsageError
from paceline.records.folder import RunFolder
from paceline.records.servers import read_server_log
from paceline.reports.progress import Tee
from paceline.reports.timeline import is_short, sequential_updates, timeline_text
from paceline.reports.trace import write_trace
from paceline.runtimes.settings import Settings
from paceline.units import parse_seconds

if TYPE_CHECKING:
    from paceline.jobs.job import Job
    from paceline.runtimes.prepare import Prepared
    from paceline.runtimes.virtual.recording import FolderRecorder

MISSED = 3
"""The exit code of a run that did not reach its target, and of a replay that ends with other parameters."""
SCENARIO_SCHEMA = 1
LINK = "bandwidth=1 Gbit/s,latency=50 us"
TIMES = "data=0.1 ms,forward=0.7 ms,backward=1.3 ms,apply=0.1 ms"


@Parameter(name="*")
@dataclass(kw_only=True)
class ClusterOptions:
    """None means that an option was not given."""

    cluster: Annotated[str | None, Parameter(group=WHERE)] = None
    """A .toml file, or inline: 'hosts=4,workers=2,bandwidth=1 Gbit/s,latency=50 us,forward=1 ms,backward=2 ms'."""
    workers: Annotated[int | None, Whole, Parameter(name=["--workers", "-np"], group=WHERE)] = None
    """Without --cluster: this many hosts with one worker each (default 2)."""
    times: Annotated[Path | None, Parameter(group=WHERE)] = None
    """A run folder: a step takes as long as the typical step of that run, without communication."""
    gradients: Annotated[bool, Parameter(group=WHERE)] = True
    """Compute real gradients in simulated time, or simulate time only."""
    horizon: Annotated[str | None, Parameter(group=LENGTH)] = None
    """End a run with servers at this time, such as '0.6 s'; what is unfinished then does not count."""

    def given(self) -> list[str]:
        names = ("cluster", "workers", "times", "horizon")
        given = [f"--{name}" for name in names if getattr(self, name) is not None]
        return given if self.gradients else [*given, "--no-gradients"]

    @property
    def end(self) -> float:
        try:
            return inf if self.horizon is None else parse_seconds(self.horizon)
        except UsageError as mistake:
            raise UsageError(f"--horizon: {mistake}") from mistake

    def read(self, default_workers: int = DEFAULT_WORKERS) -> Cluster:
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"--workers {self.workers} is too small: at least 1 worker must train")
        times = "" if self.times else f",{TIMES}"
        cluster = read_cluster(self.cluster or f"hosts={self.workers or default_workers},{LINK}{times}")
        if self.workers is not None:
            cluster.check_workers(self.workers)
        if self.times and cluster.times != StepTimes():
            raise UsageError(
                f"--times {self.times} and the cluster's own times contradict each other; leave one of them out"
            )
        return cluster

    def costs(self, cluster: Cluster, settings: Settings) -> StatedCosts:
        timed, sizes = self.timed(cluster, settings)
        return stated_costs(timed, sizes, settings.slow, settings.seed, settings.slow_turns)

    def timed(self, cluster: Cluster, settings: Settings) -> tuple[Cluster, tuple[int, ...]]:
        """The cluster with its times, stated or as a run was recorded, and the mini-batches that they hold for."""
        from paceline.runtimes.config import check_same_job, read_config
        from paceline.runtimes.threads import HostCapacity
        from paceline.strategies import build_strategy

        sizes = settings.batch_sizes
        if self.times:
            recorded = RunFolder(self.times)
            step, samples, checkpoint = typical_step(recorded)
            check_same_job(recorded, settings)
            if capacity := HostCapacity.of_run(recorded):
                capacity.check_hosts(cluster, f"--times {self.times}")
            learners = build_strategy(read_config(recorded).settings.strategy).learner_plan.count or 1
            step = replace(step, apply=step.apply / learners)
            cluster = replace(cluster, times=StepTimes(step=step, checkpoint=checkpoint))
            sizes = (samples,) * cluster.workers
        return cluster, sizes

    @property
    def assumption(self) -> str:
        """A sentence about the step times where none were given; else nothing."""
        if self.cluster or self.times:
            return ""
        return f"no step times were given, so this assumes {TIMES}; state them with --cluster or --times"


def simulate(
    scenario: Path | None = None,
    /,
    *,
    replay: Annotated[Path | None, Parameter(group=JOB)] = None,
    options: RunOptions | None = None,
    where: ClusterOptions | None = None,
    keep: KeepOptions | None = None,
) -> int:
    """Run the same training in virtual time, on a cluster that you describe.

    The strategy's program is the one that 'paceline train' runs. Time comes from the cluster's description:
    links by latency, bandwidth and fair sharing, steps by the times that it states. Same seed, same record,
    byte for byte. Exit code 3 where it did not reach --target-accuracy.

    Args:
        scenario: A .toml file that says what is given and what is asked, instead of all options; see docs/scenarios.md.
        replay: The folder of a run with servers, live or simulated: repeat it message by message.
    """
    options, where, keep = options or RunOptions(), where or ClusterOptions(), keep or KeepOptions()
    given = [*given_options(options), *where.given()]
    if scenario is not None:
        return _answer(scenario, [*(["--replay"] if replay else []), *given, *keep.given()], keep.as_json)
    if replay is not None:
        return _repeat(replay, given, keep)
    return _run(options, where, keep)


def _refuse(given: list[str], what: str) -> None:
    if given:
        raise UsageError(f"{what} says all that is run, so {given[0]} has no place; leave one of them out")


def _answer(path: Path, given: list[str], as_json: bool) -> int:
    from paceline.reports.scenarios import RENDERERS
    from paceline.studies.scenarios.scenario import read_scenario

    _refuse(given, str(path))
    scenario = read_scenario(path)
    try:
        rendered = RENDERERS[scenario.ask](scenario.answer())
    except UsageError as mistake:
        raise mistake if str(path) in str(mistake) else UsageError(f"{path}: {mistake}") from mistake
    if as_json:
        document = {
            "schema": SCENARIO_SCHEMA,
            "scenario": str(path),
            "about": scenario.about,
            "ask": scenario.ask,
            "answer": rendered.words,
            "result": rendered.document,
        }
        print(json.dumps(document))  # noqa: T201
    else:
        lines = ["", *rendered.lines] if rendered.lines else []
        print("\n".join([rendered.words, f"({scenario.about})", *lines]))  # noqa: T201
    return 0


def _run(options: RunOptions, where: ClusterOptions, keep: KeepOptions) -> int:
    import torch

    from paceline.runtimes.prepare import prepare
    from paceline.runtimes.virtual.simulate import simulate
    from paceline.runtimes.virtual.simulation import Simulation, check
    from paceline.strategies import build_strategy

    skip_compiler_import()
    torch.set_num_threads(1)  # as a live worker's, so that sums come out alike to the last bit
    cluster = where.read()
    options, recipe = options.with_recipe()
    if not where.gradients and options.evaluate_every is None and options.target_accuracy is None:
        options.evaluate_every = "never"
    settings = options.settings(cluster.workers)
    prepared = prepare(settings)
    costs = replace(where.costs(cluster, settings), applying=prepared.learners)
    check(prepared, cluster, where.gradients, where.end)
    machinery = {"cluster": asdict(cluster), "gradients": where.gradients}
    name = keep.name or prepared.job.name
    with _recording(keep, name, prepared, machinery, settings.workers, "simulated") as (recorder, observer):
        if recipe:
            observer.noted(recipe)
        if where.assumption:
            observer.noted(where.assumption)
        if build_strategy(settings.strategy).learner_plan.count is None:
            observer.noted(
                f"{settings.strategy} trains 1 learner a worker here: at stated times k learners take k times as long, "
                "so that no throughput is gained; state how many, as in learners=4"
            )
        if not recorder.detailed:
            observer.noted("too many workers or steps to keep every step: only totals are recorded")
        simulation = Simulation(
            prepared,
            cluster,
            costs,
            gradients=where.gradients,
            observer=observer,
            recorder=recorder,
            name=name,
            horizon=where.end,
        )
        summary = simulate(simulation)
    if recorder.detailed:
        write_trace(recorder.folder)
        if not keep.as_json and is_short(summary):
            alone = sum(costs.gradient(0, prepared.shards.batch_size(0), 0))
            _print_timeline(recorder.folder, alone, where.end)
    return MISSED if summary.missed else 0


def _print_timeline(folder: RunFolder, alone: float, end: float) -> None:
    """``alone`` are the seconds of a gradient, by which one worker would have made updates until ``end``."""
    sequential = sequential_updates(alone, end) if end < inf else None
    entries = list(read_server_log(folder.server_events(0)))
    print(f"\n{timeline_text(entries, sequential)}")  # noqa: T201


@contextmanager
def _recording(
    keep: KeepOptions,
    name: str,
    prepared: "Prepared[Job]",
    machinery: dict[str, Any],
    workers: int,
    clock: str,
) -> Iterator[tuple["FolderRecorder", Tee]]:
    from paceline.runtimes.virtual.recording import FolderRecorder, new_folder

    folder = new_folder(keep.parent, name, prepared.settings, machinery)
    recorder = FolderRecorder(folder, workers, prepared.triggers.last)
    with closing(Tee([recorder, *keep.observers(prepared.settings, clock)])) as observer:
        yield recorder, observer


def _repeat(run: Path, given: list[str], keep: KeepOptions) -> int:
    import torch

    from paceline.runtimes.prepare import prepare
    from paceline.runtimes.virtual.replay import model_difference, read_recording, replay

    _refuse(given, f"--replay {run}")
    recording = read_recording(RunFolder(run))
    torch.set_num_threads(recording.threads)
    prepared = prepare(recording.settings)
    name = keep.name or f"{prepared.job.name}-replay"
    machinery = {"replay": str(recording.folder.path), "gradients": recording.gradients}
    with _recording(keep, name, prepared, machinery, recording.workers, "recorded") as (recorder, observer):
        replay(recording, prepared, observer=observer, recorder=recorder, name=name)
    difference, worst = model_difference(recording.folder, recorder.folder)
    if not worst:
        ending = "; there is no model to compare"
    elif difference:
        ending = f", and the parameters differ: by {difference:.3g} at most, in {worst}"
    else:
        ending = ", and the parameters are equal to the last bit"
    if not keep.as_json:
        print(f"every update is the recorded one{ending}")  # noqa: T201
    return MISSED if difference else 0
