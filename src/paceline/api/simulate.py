"""``paceline.simulate``: the same training in virtual time."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from paceline.api.arguments import naming_arguments
from paceline.api.result import StudyResult, is_table
from paceline.api.settings import RunArguments, run_arguments, run_settings, with_recipe
from paceline.clusters.cluster import Cluster
from paceline.errors import ArgumentError, UsageError
from paceline.records.folder import RUNS, RunFolder
from paceline.records.summary import Observer, Summary

if TYPE_CHECKING:
    from paceline.api.clusters import ClusterRequest
    from paceline.jobs.job import Job
    from paceline.runtimes.prepare import Prepared
    from paceline.runtimes.settings import Settings
    from paceline.runtimes.virtual.recording import FolderRecorder
    from paceline.studies.recorded import RecordedRun

SCENARIO_SCHEMA = 1

Watching = Callable[["Settings", str], Observer]
"""What follows a run of these settings; the text says whose seconds it counts."""


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    folder: RunFolder
    settings: "Settings"
    summary: Summary
    timeline: str = ""
    """The updates of a short run with servers, drawn; empty for any other."""
    ending: str = ""
    """Of a replay: whether the parameters are those of the run that is repeated."""
    differs: bool = False


@overload
def simulate(scenario: str | Path, /) -> StudyResult[dict[str, Any]]: ...


@overload
def simulate(
    *,
    replay: str | Path | None = None,
    cluster: str | Cluster | None = None,
    workers: int | None = None,
    times: "str | Path | StudyResult[Any] | None" = None,
    gradients: bool = True,
    horizon: str | float | None = None,
    runs: str | Path = RUNS,
    name: str | None = None,
    tensorboard: bool = False,
    show: bool = False,
    **settings: Unpack[RunArguments],
) -> "StudyResult[RecordedRun]": ...


@naming_arguments
def simulate(
    scenario: str | Path | None = None,
    /,
    *,
    replay: str | Path | None = None,
    cluster: str | Cluster | None = None,
    workers: int | None = None,
    times: "str | Path | StudyResult[Any] | None" = None,
    gradients: bool = True,
    horizon: str | float | None = None,
    runs: str | Path = RUNS,
    name: str | None = None,
    tensorboard: bool = False,
    show: bool = False,
    **settings: Unpack[RunArguments],
) -> StudyResult[Any]:
    """Run a training in virtual time, in this process, as ``paceline simulate`` does.

    Args:
        scenario: A .toml file that says what is given and what is asked, instead of everything else.
        replay: The folder of a run with servers: repeat it message by message.
        cluster: A .toml file, or "hosts=4,bandwidth=1 Gbit/s,latency=50 us,forward=1 ms,backward=2 ms".
        workers: Without a cluster: this many hosts with one worker each (2).
        times: A run folder, "latest" (the latest live run), or what ``load_run`` returned: a step takes as long as
            that run's typical step, without communication.
        gradients: Compute real gradients; without, only the time is simulated.
        horizon: End a run with servers at this time: "0.6 s", or seconds.
        runs: Where the run folder is made.
        name: What to call the run.
        tensorboard: Write TensorBoard event files as well.
        show: Print what the command prints while the run goes on.
        **settings: What decides the result, in the words of the options: ``job`` (an import path, a ``paceline.Job`` or
            the function that makes it), or ``data``, ``data_dir``, ``model``, ``optimizer``, ``schedule``, ``lr`` and
            ``label_smoothing``; ``accumulate``, ``clip_norm``, ``precision``, ``scale_lr``, ``reference_batch``,
            ``recipe``; ``strategy``, ``codec``, ``collective``, ``servers``, ``buffers``; ``batch_size`` (32, or one a
            worker), ``slow`` ({1: 2.5}), ``slow_turns``; ``epochs`` or ``iterations``, ``target_accuracy``, ``seed``;
            ``evaluate_every``, ``checkpoint_every``, ``keep``.

    Returns:
        The run as ``load_run`` gives it, or what the scenario asks for.
    """
    there = {"cluster": cluster, "workers": workers, "times": times, "horizon": horizon}
    given = [name for name, value in {**there, **settings}.items() if value is not None]
    given += [] if gradients else ["gradients"]
    if scenario is not None:
        kept = {"runs": runs != RUNS, "name": name is not None, "tensorboard": tensorboard, "show": show}
        others = [
            *(["replay"] if replay else []),
            *given,
            *(one for one, is_given in kept.items() if is_given),
        ]
        refuse_others(others, str(scenario))
        return answer_scenario(Path(scenario))
    if replay is not None:
        refuse_others(given, "replay")
    from paceline.api.clusters import ClusterRequest
    from paceline.api.runs import loaded, path_of_times
    from paceline.runtimes.config import resolved
    from paceline.studies.recorded import read_recorded

    where = ClusterRequest(
        cluster=cluster,
        workers=workers,
        times=None if times is None else path_of_times(times),
        gradients=gradients,
        horizon=horizon,
    )
    watch = _shown(show, tensorboard)
    if replay is not None:
        done = repeat_run(Path(replay), Path(runs), name, watch)
    else:
        done = run_simulation(run_arguments(dict(settings)), where, Path(runs), name, watch)
    if show:
        for text in (done.timeline, done.ending):
            sys.stdout.write(f"\n{text}\n" if text else "")
    run = read_recorded(done.folder.path)
    # Objects that stand for names are in no file.
    run = replace(run, config=replace(run.config, settings=resolved(done.settings)))
    return loaded(run, further=(done.timeline, done.ending))


def _shown(show: bool, tensorboard: bool) -> Watching:
    from paceline.reports.progress import ConsoleObserver, Tee
    from paceline.reports.tensorboard import TensorBoardObserver

    if tensorboard and not find_spec("tensorboard"):
        raise UsageError(
            "tensorboard=True needs the tensorboard package: pip install 'paceline[tensorboard]'"
        )

    def watching(_: "Settings", clock: str) -> Observer:
        shown = [ConsoleObserver(clock=clock)] if show else []
        return Tee([*([TensorBoardObserver()] if tensorboard else []), *shown])

    return watching


def answer_scenario(path: Path) -> StudyResult[dict[str, Any]]:
    """What a scenario file asks for."""
    from paceline.reports.scenarios import RENDERERS
    from paceline.studies.scenarios.scenario import read_scenario

    scenario = read_scenario(path)
    try:
        rendered = RENDERERS[scenario.ask](scenario.answer())
    except UsageError as mistake:
        raise mistake if str(path) in str(mistake) else UsageError(f"{path}: {mistake}") from mistake
    document = {
        "schema": SCENARIO_SCHEMA,
        "scenario": str(path),
        "about": scenario.about,
        "ask": scenario.ask,
        "answer": rendered.words,
        "result": rendered.document,
    }
    lines = ["", *rendered.lines] if rendered.lines else []
    found = rendered.document if isinstance(rendered.document, dict) else {"result": rendered.document}
    rows: list[dict[str, Any]] = next((value for value in found.values() if is_table(value)), [])
    text = "\n".join([rendered.words, f"({scenario.about})", *lines])
    return StudyResult(value=found, rows=rows, document=lambda: document, text=lambda: text)


def run_simulation(
    asked: Mapping[str, Any], where: "ClusterRequest", runs: Path, name: str | None, watch: Watching
) -> SimulatedRun:
    """``asked`` is as ``run_arguments`` gives it."""
    from paceline.reports.timeline import is_short
    from paceline.reports.trace import write_trace
    from paceline.runtimes.prepare import prepare
    from paceline.runtimes.virtual.simulate import simulate as run
    from paceline.runtimes.virtual.simulation import Simulation, check
    from paceline.strategies import build_strategy

    cluster = where.read()
    asked, recipe = with_recipe(asked)
    if not where.gradients and not asked.keys() & {"evaluate_every", "target_accuracy"}:
        asked["evaluate_every"] = "never"
    settings = run_settings(asked, cluster.workers)
    with one_thread():
        prepared = prepare(settings)
        costs = replace(where.costs(cluster, settings), applying=prepared.learners)
        check(prepared, cluster, where.gradients, where.end)
        machinery = {"cluster": asdict(cluster), "gradients": where.gradients}
        name = name or prepared.job.name
        count = settings.workers
        with _recording(runs, name, prepared, machinery, count, watch, "simulated") as (recorder, observer):
            if recipe:
                observer.noted(recipe)
            if where.assumption:
                observer.noted(where.assumption)
            if build_strategy(settings.strategy).learner_plan.count is None:
                observer.noted(
                    f"{settings.strategy} trains 1 learner a worker here: at stated times k learners take k times as "
                    "long, so that no throughput is gained; state how many, as in learners=4"
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
            summary = run(simulation)
    timeline = ""
    if recorder.detailed:
        write_trace(recorder.folder)
        if is_short(summary):
            alone = sum(costs.gradient(0, prepared.shards.batch_size(0), 0))
            timeline = _timeline(recorder.folder, alone, where.end)
    return SimulatedRun(
        folder=recorder.folder, settings=prepared.settings, summary=summary, timeline=timeline
    )


def _timeline(folder: RunFolder, alone: float, end: float) -> str:
    """``alone`` are the seconds of a gradient, by which one worker would have made updates until ``end``."""
    from paceline.records.servers import read_server_log
    from paceline.reports.timeline import sequential_updates, timeline_text

    sequential = sequential_updates(alone, end) if end < inf else None
    return timeline_text(list(read_server_log(folder.server_events(0))), sequential)


def repeat_run(run: Path, runs: Path, name: str | None, watch: Watching) -> SimulatedRun:
    """Repeat a recorded run with servers, message by message."""
    from paceline.runtimes.prepare import prepare
    from paceline.runtimes.virtual.replay import model_difference, read_recording, replay

    recording = read_recording(RunFolder(run))
    with one_thread(recording.threads):
        prepared = prepare(recording.settings)
        name = name or f"{prepared.job.name}-replay"
        machinery = {"replay": str(recording.folder.path), "gradients": recording.gradients}
        count = recording.workers
        with _recording(runs, name, prepared, machinery, count, watch, "recorded") as (recorder, observer):
            summary = replay(recording, prepared, observer=observer, recorder=recorder, name=name)
    difference, worst = model_difference(recording.folder, recorder.folder)
    if not worst:
        ending = "; there is no model to compare"
    elif difference:
        ending = f", and the parameters differ: by {difference:.3g} at most, in {worst}"
    else:
        ending = ", and the parameters are equal to the last bit"
    return SimulatedRun(
        folder=recorder.folder,
        settings=recording.settings,
        summary=summary,
        ending=f"every update is the recorded one{ending}",
        differs=bool(difference),
    )


@contextmanager
def one_thread(threads: int = 1) -> Iterator[None]:
    """Compute with as many threads as a live worker, so that sums come out alike to the last bit."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _recording(
    runs: Path,
    name: str,
    prepared: "Prepared[Job]",
    machinery: dict[str, Any],
    workers: int,
    watch: Watching,
    clock: str,
) -> Iterator[tuple["FolderRecorder", Observer]]:
    from paceline.reports.progress import Tee
    from paceline.runtimes.virtual.recording import FolderRecorder, new_folder

    folder = new_folder(runs, name, prepared.settings, machinery)
    recorder = FolderRecorder(folder, workers, prepared.triggers.last)
    with closing(Tee([recorder, watch(prepared.settings, clock)])) as observer:
        yield recorder, observer


def refuse_others(given: list[str], what: str) -> None:
    """A scenario or a replay says all that is run."""
    if given:
        raise ArgumentError(
            f"{what} says all that is run, so {{{given[0]}}} has no place; leave one of them out",
            **{given[0]: None},
        )
