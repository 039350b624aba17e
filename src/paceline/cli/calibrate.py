"""``paceline calibrate``: measure this machine, so that predictions know it."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from cyclopts import App, Group, Parameter

from paceline.cli.options import PlaceOptions, Whole, run_workers
from paceline.clusters.profile import (
    DEFAULT_PATH,
    Profile,
    machine_profile,
    made_before,
    make_room,
    named_profile,
    read_profile,
    write_profile,
)
from paceline.errors import RunFailed, UsageError, unknown
from paceline.records.folder import RunFolder

if TYPE_CHECKING:
    from paceline.runtimes.live.heartbeat import Heartbeat
    from paceline.runtimes.live.process_info import ProcessInfo
    from paceline.runtimes.live.signals import StopRequest
    from paceline.studies.calibrate.device_fit import DeviceFit
    from paceline.studies.calibrate.link_fit import ContentionFit

SCHEMA = 2

WHAT = Group("What is measured", sort_key=1)
SHOWN = Group("What is written and shown", sort_key=5)

FLAG = Parameter(negative=(), show_default=False)

MeasureSeconds = Annotated[float | None, Parameter(group=WHAT)]
Threads = Annotated[int | None, Whole, Parameter(group=WHAT)]
Busy = Annotated[bool, FLAG, Parameter(group=WHAT)]
Out = Annotated[Path, Parameter(group=SHOWN, help="Where to write the profile.")]
MachineName = Annotated[str | None, Parameter(group=SHOWN)]
Json = Annotated[bool, FLAG, Parameter(name="--json", group=SHOWN, help="One JSON document instead of text.")]

app = App(
    name="calibrate",
    help="Measure this machine, so that predictions know it: 'paceline predict MODEL --profile FILE'.",
    version_flags=[],
)

TASKS = ("machine", "device", "links", "record", "table")


@app.default
def choose(*words: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]) -> int:
    """Name a task; each has its own --help."""
    first = words[0].partition("=")[0] if words else ""
    if first and not first.startswith("-"):
        raise unknown("task", first, TASKS, see="paceline calibrate --help")
    options = {task: [one.names for one in app[task].assemble_argument_collection()] for task in TASKS}
    meant = [task for task in TASKS if first == f"--{task}" or any(first in names for names in options[task])]
    raise UsageError(
        f"say what to calibrate, by 'paceline calibrate {'|'.join(meant or TASKS)}': 'machine' measures all of this "
        "machine, 'device' how fast it computes, 'links' adds its links to that profile, 'record' "
        "corrects a profile by a recorded run, "
        "'table' completes a table of measured epochs"
    )


@app.command
def machine(
    *,
    seconds: MeasureSeconds = None,
    threads: Threads = None,
    workers: Annotated[str | None, Parameter(name=["--workers", "-np"], group=WHAT)] = None,
    busy: Busy = False,
    out: Annotated[Path | None, Parameter(group=SHOWN)] = None,
    name: MachineName = None,
    as_json: Json = False,
) -> int:
    """Measure this machine once, in about 4 minutes, so that every 'paceline train' on it is predicted.

    Does what 'device' and 'links' do, and keeps the profile in the user's cache directory, for this host and this
    number of threads. Workers with several threads are measured alone: links need one thread each.

    Args:
        seconds: How long to measure computing (default 180); more is more accurate.
        threads: Threads that a worker computes with (default 1, or as OMP_NUM_THREADS says).
        workers: Numbers of workers to measure links with, such as 2,4 (default 2, and as many as there are cores).
        busy: Measure even while other processes compute, and mark the profile: predictions will say so.
        out: Where to write the profile (default: where 'paceline train' finds it).
        name: What to call the machine (default: its host name).
    """
    from paceline.reports.calibrate import render_device, render_links
    from paceline.studies.calibrate.device import check_out, check_threads
    from paceline.studies.calibrate.link_fit import ContentionFit
    from paceline.studies.calibrate.links import link_counts

    _refuse_launcher("machine")
    threads = check_threads(threads)
    counts = link_counts(workers, threads)
    out = make_room(machine_profile(threads)) if out is None else out
    check_out(out)
    profile, found = _calibrate_device(seconds, threads, name, busy=busy)
    lines, links = list(render_device(found)), list[ContentionFit]()
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        draft = Path(folder) / DEFAULT_PATH
        write_profile(profile, draft)
        for count in counts:
            links.append(_links_apart(draft, count, busy=busy))
            lines += render_links(links[-1])
        profile = read_profile(draft)
    document = {"device": asdict(found), "links": [asdict(one) for one in links]}
    return _write(profile, out, document, lines, as_json, "paceline train")


def _links_apart(profile: Path, workers: int, *, busy: bool) -> "ContentionFit":
    """What 'links' adds to a profile, in processes of its own: torch has threads here already, so no worker is forked.

    Progress is shown as the command shows it.
    """
    from paceline.records.files import from_document
    from paceline.runtimes.live.launcher.launch import paceline_command
    from paceline.studies.calibrate.link_fit import ContentionFit

    options = ["--profile", str(profile), "--workers", str(workers), "--json", *(["--busy"] if busy else [])]
    done = subprocess.run(
        paceline_command(["calibrate", "links", *options]), stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise RunFailed(f"the links of {workers} workers could not be measured, and nothing was written")
    document = {
        key: value for key, value in json.loads(done.stdout).items() if key not in ("schema", "profile")
    }
    return from_document(document, ContentionFit)


@app.command
def device(
    *,
    seconds: MeasureSeconds = None,
    threads: Threads = None,
    busy: Busy = False,
    out: Out = DEFAULT_PATH,
    name: MachineName = None,
    as_json: Json = False,
) -> int:
    """Measure how fast this machine computes, and write a new profile.

    Trains random networks of many shapes for a few minutes, times every operator in its place, and fits how its time
    depends on its sizes. Waits up to a minute until nothing else computes, measures again what was disturbed, and ends
    with exit code 1 if that goes on. The profile holds for workers with as many threads.

    Args:
        seconds: How long to measure (default 180); more is more accurate.
        threads: Threads that a worker computes with (default 1, or as OMP_NUM_THREADS says).
        busy: Measure even while other processes compute, and mark the profile: predictions will say so.
        name: What to call the machine (default: its host name).
    """
    from paceline.reports.calibrate import render_device
    from paceline.studies.calibrate.device import check_out

    _refuse_launcher("device")
    check_out(out)
    profile, found = _calibrate_device(seconds, threads, name, busy=busy)
    return _write(profile, out, {"device": asdict(found)}, render_device(found), as_json)


def _calibrate_device(
    seconds: float | None, threads: int | None, name: str | None, *, busy: bool
) -> "tuple[Profile, DeviceFit]":
    from paceline.reports.progress import Screen
    from paceline.studies.calibrate.device import calibrate_device

    with closing(Screen(sys.stderr)) as screen, _naming_busy():
        return calibrate_device(seconds, threads, name, show=screen.count_down, note=screen.note, busy=busy)


@contextmanager
def _naming_busy() -> Iterator[None]:
    """Say how a busy machine is allowed in the words of the command line."""
    from paceline.studies.calibrate.device import BusyMachine

    try:
        yield
    except BusyMachine as failure:
        remedy = "or add --busy, which measures anyway and marks the profile"
        raise BusyMachine(failure.found, remedy) from failure


class _Outcome(NamedTuple):
    ending: str


@app.command
def links(
    *,
    profile: Annotated[Path, Parameter(group=WHAT)] = DEFAULT_PATH,
    busy: Busy = False,
    where: PlaceOptions | None = None,
    out: Annotated[Path | None, Parameter(group=SHOWN)] = None,
    as_json: Json = False,
) -> int:
    """Measure links and contention with several workers, and add them to a profile.

    The workers train small networks together, with one thread each. On one host they measure shared memory, Gloo on the
    loopback, messages with a server, and contention: how much slower each computes beside the others. On several hosts
    (start the command on each), or under torchrun or any launcher that sets its variables, they measure the network.
    Measure as many numbers of workers as you like, one after the other.

    Args:
        profile: The profile that is added to, on the host of rank 0, or 'machine' for that of this machine; its
            workers have one thread.
        busy: Measure even while other processes compute, and mark the profile: predictions will say so.
        out: Where to write the profile (default: where it was).
    """
    from paceline.runtimes.live.process_info import ProcessInfo
    from paceline.studies.calibrate.links import add_messages, check_profile

    profile = named_profile(profile, 1)
    where, out = where or PlaceOptions(), out or profile
    show = partial(_show_links, out, as_json)
    measure = partial(_measure_links, profile, out, busy, show)
    launching = ProcessInfo.from_environment() is None
    if launching and not where.node_rank:
        check_profile(profile, out)
    workers = (1 if where.nodes else 2) if where.workers is None else where.workers
    code = run_workers(where, workers, measure)
    if launching and code == 0 and (where.nodes or 1) == 1:
        sys.stderr.write(f"training with {workers} workers and a server: about half a minute\n")
        with tempfile.TemporaryDirectory(prefix="paceline-") as runs, _naming_busy():
            show(add_messages(out, workers, partial(_train, runs), busy=busy))
    return code


def _measure_links(
    profile: Path,
    out: Path,
    busy: bool,
    show: Callable[["ContentionFit"], None],
    place: "ProcessInfo",
    heartbeat: "Heartbeat",
    stopping: "StopRequest",
) -> _Outcome:
    from paceline.studies.calibrate.links import add_links_here

    if place.rank == 0:
        sys.stderr.write(f"measuring with {place.workers} workers: about half a minute\n")
    with _naming_busy():
        found = add_links_here(place, profile, out, beat=heartbeat.beat, stopping=stopping, busy=busy)
    if found and place.rank == 0 and (place.launch is None or place.nodes > 1):
        show(found)  # else the launcher measures more, and shows it all
    return _Outcome("done" if found else "interrupted")


def _show_links(out: Path, as_json: bool, found: "ContentionFit") -> None:
    from paceline.reports.calibrate import following, render_links

    _print(
        {"profile": str(out), **asdict(found)},
        [*render_links(found), f"added to: {out}", following(out)],
        as_json,
    )


def _refuse_launcher(task: str) -> None:
    """Under a launcher every process would do the same task, and write the same file."""
    if "RANK" in os.environ:
        raise UsageError(
            f"'paceline calibrate {task}' has no place under a launcher (RANK is set), where only 'links' is measured; "
            "run it alone, or unset RANK"
        )


def _train(runs: str, settings: Mapping[str, str]) -> RunFolder:
    from paceline.runtimes.live.launcher.launch import paceline_command

    options = [word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", value)]
    command = paceline_command(["train", *options, "--runs", runs, "--json"])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailed(f"a training with {settings['workers']} workers failed: {done.stderr.strip()}")
    return RunFolder(Path(json.loads(done.stdout)["run"]["folder"]))


@app.command
def record(
    run: Annotated[Path, Parameter(group=WHAT)],
    *,
    profile: Annotated[Path | None, Parameter(group=WHAT)] = None,
    threads: Threads = None,
    out: Out = DEFAULT_PATH,
    name: Annotated[str | None, Parameter(group=SHOWN)] = None,
    as_json: Json = False,
) -> int:
    """Correct a profile by the typical step of a recorded run; nothing is measured.

    Args:
        run: The folder of a run by one worker.
        profile: The profile to correct, which keeps its links, threads and name
            (default: none, and the new profile knows one rate only).
        threads: Threads of the run's worker, where its record does not say (default 1).
        name: What to call the machine (default: as --profile has it, or its host name).
    """
    from paceline.reports.calibrate import render_record
    from paceline.studies.calibrate.device import check_out
    from paceline.studies.calibrate.record import calibrate_by_record

    _refuse_launcher("record")
    check_out(out)
    made, found = calibrate_by_record(RunFolder(run), profile, threads, name)
    return _write(made, out, {"record": found.to_json()}, render_record(found), as_json)


@app.command
def table(
    file: Annotated[Path, Parameter(group=WHAT)],
    *,
    start: Annotated[str | None, Parameter(name="--from", group=WHAT)] = None,
    collective: Annotated[str | None, Parameter(group=WHAT)] = None,
    forecast: Annotated[str | None, Parameter(name="--predict", group=WHAT)] = None,
    as_json: Json = False,
) -> int:
    """Predict the rest of a table of measured epochs from one of its points; nothing is measured or written.

    Args:
        file: A .toml file of measured epochs, such as examples/resnet18-cifar10-table.toml.
        start: The point that is fitted, workers x batch, such as 4x128 (default: the most workers, the middle batch).
        collective: How gradients were exchanged: one-to-all, ring, tree or butterfly
            (default: each of them beside the others).
        forecast: Further points, such as 8x128,8x512.
    """
    from paceline.reports.calibrate import render_fits
    from paceline.studies.calibrate.table import TablePoint, fit_table, read_table

    _refuse_launcher("table")
    measured = read_table(file)
    fits = fit_table(
        measured,
        start=None if start is None else TablePoint.parse(start),
        collective=collective,
        predict=[TablePoint.parse(text) for text in forecast.split(",")] if forecast else (),
    )
    document = {"model": measured.model, "fits": [fit.to_json() for fit in fits]}
    return _print(document, render_fits(fits, measured.model), as_json)


def _write(
    profile: Profile,
    out: Path,
    document: Mapping[str, Any],
    lines: Iterable[str],
    as_json: bool,
    command: str = "",
) -> int:
    """``command`` is what is typed next."""
    from paceline.reports.calibrate import following, render_profile

    replaced = made_before(out)
    write_profile(profile, out)
    document = {"profile": str(out), "replaced": replaced, **document}
    return _print(document, [*lines, render_profile(out, replaced), following(out, command)], as_json)


def _print(document: Mapping[str, Any], lines: Iterable[str], as_json: bool) -> int:
    text = json.dumps({"schema": SCHEMA, **document}, indent=2) if as_json else "\n".join(lines)
    sys.stdout.write(f"{text}\n")
    return 0
