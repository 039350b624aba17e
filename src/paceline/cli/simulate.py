"""``paceline simulate``: the same training in virtual time."""

import json
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from paceline.cli.importing import spare_compiler
from paceline.cli.options import (
    DEFAULT_WORKERS,
    JOB,
    LENGTH,
    WHERE,
    KeepOptions,
    RunOptions,
    given_options,
    whole,
)
from paceline.errors import UsageError
from paceline.records.folder import RunFolder
from paceline.runtimes.settings import Settings
from paceline.units import parse_seconds

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.clusters.cluster import Cluster
    from paceline.costs.stated import StatedCosts
    from paceline.records.summary import Summary

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
    workers: Annotated[int | None, Parameter(converter=whole, name=["--workers", "-np"], group=WHERE)] = None
    """Without --cluster: so many hosts with one worker each (default 2)."""
    times: Annotated[Path | None, Parameter(group=WHERE)] = None
    """A run folder: a step takes as long here as its typical step took there, communication apart."""
    gradients: Annotated[bool, Parameter(group=WHERE)] = True
    """True mathematics and simulated time, or time only."""
    horizon: Annotated[str | None, Parameter(group=LENGTH)] = None
    """End a run with servers at this time, such as '0.6 s'; what is unfinished then does not count."""

    def given(self) -> list[str]:
        """The options that were given, as the user writes them."""
        names = ("cluster", "workers", "times", "horizon")
        return [f"--{name}" for name in names if getattr(self, name) is not None] + (
            [] if self.gradients else ["--no-gradients"]
        )

    @property
    def note(self) -> str:
        """What a person should know who has not said how long a step takes."""
        if self.cluster or self.times:
            return ""
        return f"nobody said how long a step takes, so this is made up: {TIMES}; see --cluster and --times"

    @property
    def end(self) -> float:
        """The horizon in seconds."""
        if self.horizon is None:
            return inf
        try:
            return parse_seconds(self.horizon)
        except UsageError as mistake:
            raise UsageError(f"--horizon: {mistake}") from mistake

    def read(self) -> "Cluster":
        """The described cluster."""
        from paceline.clusters.cluster import StepTimes
        from paceline.clusters.description import read_cluster

        if self.workers is not None and self.workers < 1:
            raise UsageError(f"--workers {self.workers} is too small: at least 1 worker must train")
        times = "" if self.times else f",{TIMES}"
        cluster = read_cluster(self.cluster or f"hosts={self.workers or DEFAULT_WORKERS},{LINK}{times}")
        if self.workers is not None:
            cluster.check_workers(self.workers)
        if self.times and cluster.times != StepTimes():
            raise UsageError(
                f"--times {self.times} and the cluster's own times contradict each other; leave one of them out"
            )
        return cluster

    def costs(self, cluster: "Cluster", settings: Settings) -> "StatedCosts":
        """How long things take there: as the cluster states it, or as a run was recorded."""
        from paceline.clusters.cluster import StepTimes
        from paceline.costs.recorded import typical_step
        from paceline.costs.stated import stated_costs
        from paceline.runtimes.config import check_same_job
        from paceline.runtimes.threads import HostRoom

        if not self.times:
            return stated_costs(
                cluster, settings.batch_sizes, settings.slow, settings.seed, settings.slow_turns
            )
        recorded = RunFolder(self.times)
        typical = typical_step(recorded)
        check_same_job(recorded, settings)
        if room := HostRoom.of_run(recorded):
            room.check_hosts(cluster, f"--times {self.times}")
        stated = replace(cluster, times=StepTimes(step=typical.step, checkpoint=typical.checkpoint))
        return stated_costs(
            stated, (typical.samples,) * cluster.workers, settings.slow, settings.seed, settings.slow_turns
        )


def simulate(
    scenario: Path | None = None,
    /,
    *,
    replay: Annotated[Path | None, Parameter(group=JOB)] = None,
    options: RunOptions | None = None,
    where: ClusterOptions | None = None,
    keep: KeepOptions | None = None,
) -> int:
    """Run the same training in virtual time, on a cluster that nobody owns.

    The strategy's program is the one that 'paceline train' runs. Time comes from the cluster's description:
    links by latency, bandwidth and fair sharing, steps by the times that it states. Same seed, same record,
    byte for byte. Exit code 3 where it did not reach --target-accuracy.

    Parameters
    ----------
    scenario
        A .toml file that says what is given and what is asked, instead of all the rest; see docs/scenarios.md.
    replay
        The folder of a run with servers, live or simulated: repeat it message by message, instead of all the rest.
    """
    if scenario is not None:
        return _answer(
            scenario, replay, options or RunOptions(), where or ClusterOptions(), keep or KeepOptions()
        )
    options, where = options or RunOptions(), where or ClusterOptions()
    if replay is not None:
        return _repeat(replay, options, where, keep or KeepOptions())
    import torch

    spare_compiler()
    torch.set_num_threads(1)  # as a live worker's, so that sums come out alike to the last bit
    cluster = where.read()
    if not where.gradients and options.evaluate_every is None and options.target_accuracy is None:
        options.evaluate_every = "never"
    settings = options.settings(cluster.workers)
    costs = where.costs(cluster, settings)
    return MISSED if _run(settings, cluster, costs, keep or KeepOptions(), where).missed else 0


def _answer(
    scenario: Path, replay: Path | None, options: RunOptions, where: ClusterOptions, keep: KeepOptions
) -> int:
    given = [*(["--replay"] if replay else []), *given_options(options), *where.given(), *keep.given()]
    return _answer_scenario(scenario, given, keep.as_json)


def _run(
    settings: Settings, cluster: "Cluster", costs: "StatedCosts", keep: KeepOptions, where: ClusterOptions
) -> "Summary":
    from paceline.reports.progress import Tee
    from paceline.reports.trace import write_trace
    from paceline.runtimes.prepare import prepare
    from paceline.runtimes.virtual.recording import FolderObserver, FolderRecorder, new_folder
    from paceline.runtimes.virtual.simulate import check, simulate

    prepared = prepare(settings)
    check(settings, prepared.job, cluster, prepared.strategy, where.gradients, where.end)
    name = keep.name or prepared.job.name
    folder = new_folder(
        keep.parent, name, settings, {"cluster": asdict(cluster), "gradients": where.gradients}
    )
    observer = Tee([FolderObserver(folder), *keep.observers(settings, "simulated")])
    with FolderRecorder(folder, settings.workers, prepared.triggers.last) as recorder, closing(observer):
        if where.note:
            observer.noted(where.note)
        if not recorder.detailed:
            observer.noted("too many workers or steps to keep every step: only totals are recorded")
        summary = simulate(
            settings,
            prepared.job,
            cluster,
            costs,
            gradients=where.gradients,
            observer=observer,
            recorder=recorder,
            name=name,
            folder=str(folder.path),
            horizon=where.end,
        )
    if recorder.detailed:
        write_trace(folder)
        if not keep.as_json:
            alone = sum(costs.gradient(0, prepared.shards.batch_size(0), 0))
            _tell_updates(folder, summary, alone, where.end)
    return summary


def _tell_updates(folder: RunFolder, summary: "Summary", gradient: float, horizon: float) -> None:
    """A short run with one server is told update by update, against one worker that trains alone as long."""
    from paceline.records.servers import read_server_log
    from paceline.reports.timeline import is_short, sequential_updates, timeline_text

    if is_short(summary):
        sequential = sequential_updates(gradient, horizon) if horizon < inf else None
        entries = list(read_server_log(folder.server_events(0)))
        print(f"\n{timeline_text(entries, sequential)}")  # noqa: T201


def _answer_scenario(path: Path, given: list[str], as_json: bool) -> int:
    """Answer what the file asks; ``given`` are other options, which have no place beside it."""
    from paceline import specs
    from paceline.reports.scenarios import RENDERERS
    from paceline.studies.scenarios.scenario import read_scenario

    if given:
        raise UsageError(f"{path} says all that is run, so {given[0]} has no place; leave one of them out")
    scenario = read_scenario(path)
    try:
        rendered = specs.find(RENDERERS[scenario.ask])(scenario.answer())
    except UsageError as mistake:
        raise scenario.placed(mistake) from mistake
    if as_json:
        head = {
            "schema": SCENARIO_SCHEMA,
            "scenario": str(path),
            "about": scenario.about,
            "ask": scenario.ask,
        }
        print(json.dumps({**head, "answer": rendered.answer, "result": rendered.document}))  # noqa: T201
    else:
        blank = [""] if rendered.lines else []
        lines = [rendered.answer, f"({scenario.about})", *blank, *rendered.lines]
        print("\n".join(lines))  # noqa: T201
    return 0


def _repeat(run: Path, options: RunOptions, where: ClusterOptions, keep: KeepOptions) -> int:
    """Repeat a run and say whether it ends with the same parameters; 3 where it does not."""
    import torch

    from paceline.reports.progress import Tee
    from paceline.runtimes.prepare import prepare
    from paceline.runtimes.virtual.recording import FolderObserver, FolderRecorder, new_folder
    from paceline.runtimes.virtual.replay import read_recording, replay

    if given := [*given_options(options), *where.given()]:
        raise UsageError(
            f"--replay {run} says all that is run, so {given[0]} has no place; leave one of them out"
        )
    recording = read_recording(RunFolder(run))
    torch.set_num_threads(recording.threads)
    prepared = prepare(recording.settings)
    name = keep.name or f"{prepared.job.name}-replay"
    machinery = {"replay": str(recording.folder.path), "gradients": recording.gradients}
    folder = new_folder(keep.parent, name, recording.settings, machinery)
    observer = Tee([FolderObserver(folder), *keep.observers(recording.settings, "recorded")])
    with FolderRecorder(folder, recording.workers, prepared.triggers.last) as recorder, closing(observer):
        replay(
            recording,
            observer=observer,
            recorder=recorder,
            prepared=prepared,
            name=name,
            folder=str(folder.path),
        )
    return _compare(recording.folder, folder, keep.as_json)


def _compare(recorded: RunFolder, repeated: RunFolder, silent: bool) -> int:
    """Tell how far the two models are apart, where there are two."""
    from paceline.records.tensors import read_tensors

    if not recorded.model.exists() or not repeated.model.exists():
        _say("every update is the recorded one; there is no model to compare", silent)
        return 0
    one, other = read_tensors(recorded.model), read_tensors(repeated.model)
    apart = {key: _distance(one[key], other[key]) for key in one}
    worst = max(apart, key=lambda key: apart[key])
    if not apart[worst]:
        _say("every update is the recorded one, and the parameters are equal to the last bit", silent)
        return 0
    _say(
        f"every update is the recorded one, and the parameters differ: by {apart[worst]:.3g} at most, in {worst}",
        silent,
    )
    return MISSED


def _distance(one: "Tensor", other: "Tensor") -> float:
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0


def _say(sentence: str, silent: bool) -> None:
    if not silent:
        print(sentence)  # noqa: T201
