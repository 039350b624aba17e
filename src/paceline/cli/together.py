"""``paceline calibrate --workers N``: what links and contention are like with several workers."""

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.place import PlaceOptions
from paceline.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.records.folder import RunFolder
    from paceline.runtimes.live.guard import Ended
    from paceline.runtimes.live.heartbeat import Heartbeat
    from paceline.runtimes.live.process_info import ProcessInfo
    from paceline.runtimes.live.signals import StopRequest
    from paceline.studies.calibrate.links import ContentionFit


TRIES = 3
"""Of a training during which something else computes."""


@dataclass(frozen=True)
class LinksOutcome:
    """How a worker's part ended."""

    ending: str


def run_workers(
    where: PlaceOptions, workers: int, work: "Callable[[ProcessInfo, Heartbeat, StopRequest], Ended]"
) -> int:
    """Be one worker where a launcher has set its variables, else start this command line as each worker."""
    from paceline.runtimes.live.process_info import ProcessInfo

    place = ProcessInfo.from_environment()
    return be_worker(where, place, work) if place else launch_workers(where, workers)


def launch_workers(where: PlaceOptions, workers: int) -> int:
    """Start this command line again as each of so many workers of this host."""
    from paceline.cli.process import starting
    from paceline.runtimes.live.launcher.launch import launch, train_command
    from paceline.studies.collectives.request import check_workers

    check_workers(workers * max(where.nodes or 1, 1))
    plan = where.plan(workers)
    with starting() as start:
        return launch(train_command(sys.argv[1:]), plan, trains=False, start=start)


def be_worker(
    where: PlaceOptions, place: "ProcessInfo", work: "Callable[[ProcessInfo, Heartbeat, StopRequest], Ended]"
) -> int:
    from paceline.runtimes.live.guard import run_guarded

    if place.launch is None:
        place = where.under_launcher(place)
    return run_guarded(place, partial(work, place))


def launch_together(where: PlaceOptions, out: Path, as_json: bool, *, busy: bool) -> int:
    """Start this very command line again as each worker; on a single host, then measure messages with a server too."""
    from paceline.cli.process import starting
    from paceline.runtimes.live.launcher.launch import launch, train_command

    workers = check_together(where)
    with starting() as start:
        code = launch(train_command(sys.argv[1:]), where.plan(workers), trains=False, start=start)
    if code == 0 and (where.nodes or 1) == 1:
        _add_messages(workers, out, busy)
        _tell(_found(workers, out), out, as_json)
    return code


def _add_messages(workers: int, out: Path, busy: bool) -> None:
    from paceline.clusters.profile_file import read_profile, write_profile
    from paceline.studies.calibrate.messages import calibrate_messages
    from paceline.studies.calibrate.together import add_links

    sys.stderr.write(f"training with {workers} workers and a server: about half a minute\n")
    profile = read_profile(out)
    with tempfile.TemporaryDirectory(prefix="paceline-") as runs:
        found = calibrate_messages(profile, [workers], partial(_train, Path(runs), busy))
    write_profile(add_links(profile, found), out)


def _train(runs: Path, busy: bool, words: "Sequence[str]", workers: int) -> "RunFolder":
    """Train as somebody who types these words, and again where something else computed meanwhile."""
    from paceline.errors import RunFailed
    from paceline.records.load import disturbance
    from paceline.records.summary import recorded_loads

    for _ in range(TRIES):
        run = _train_once(runs, words, workers)
        disturbed = disturbance(recorded_loads(run), "the measurement")
        if busy or not disturbed:
            return run
    raise RunFailed(f"{disturbed} Messages with a server were not added: stop them, or give --busy")


def _train_once(runs: Path, words: "Sequence[str]", workers: int) -> "RunFolder":
    from paceline.errors import RunFailed
    from paceline.records.folder import RunFolder
    from paceline.runtimes.live.launcher.launch import train_command

    kept = ("--workers", str(workers), "--threads", "1", "--runs", str(runs), "--json")
    done = subprocess.run(
        train_command(["train", *words, *kept]), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RunFailed(f"a training with {workers} workers failed: {done.stderr.strip()}")
    return RunFolder(Path(json.loads(done.stdout)["run"]["folder"]))


def _found(workers: int, path: Path) -> "ContentionFit":
    """What a profile holds of so many workers on one host."""
    from paceline.clusters.profile_file import read_profile
    from paceline.studies.calibrate.links import ContentionFit

    profile = read_profile(path)
    return ContentionFit(
        workers=workers,
        short=profile.contention_short[workers - 1],
        long=profile.contention[workers - 1],
        links=tuple(link for link in profile.links if link.workers == workers),
    )


def check_together(where: PlaceOptions) -> int:
    """Workers on this host; fewer than two in all have no link to measure."""
    from paceline.studies.collectives.request import check_workers

    workers = (1 if where.nodes else 2) if where.workers is None else where.workers
    total = workers * max(where.nodes or 1, 1)
    if total < 2:
        raise UsageError(
            f"--workers {workers} has no link to measure: give at least 2, or leave it out to measure the device alone"
        )
    check_workers(total)
    return workers


def work_together(
    place: "ProcessInfo", where: PlaceOptions, base: Path, out: Path, as_json: bool, *, busy: bool
) -> int:
    """Be one worker; rank 0 adds what was found to the profile ``base`` and writes it to ``out``."""
    from paceline.clusters.profile_file import read_profile
    from paceline.runtimes.live.guard import run_guarded
    from paceline.runtimes.live.heartbeat import Heartbeat
    from paceline.runtimes.live.signals import StopRequest
    from paceline.studies.calibrate.links import calibrate_links
    from paceline.studies.calibrate.words import check_one_thread, check_out

    if place.launch is None:
        place = where.under_launcher(place)

    def work(heartbeat: Heartbeat, stopping: StopRequest) -> LinksOutcome:
        if place.rank == 0:
            check_one_thread(read_profile(base), base)  # before minutes are spent
            check_out(out)
            sys.stderr.write(f"measuring with {place.workers} workers: about half a minute\n")
        found = calibrate_links(place, beat=heartbeat.beat, stopping=stopping, busy=busy)
        if found is None:
            return LinksOutcome("interrupted")
        if place.rank == 0:
            _write(found, base, out)
            if place.launch is None or place.nodes > 1:  # else the launcher finds more, and tells it all
                _tell(found, out, as_json)
        return LinksOutcome("done")

    return run_guarded(place, work)


def _write(found: "ContentionFit", base: Path, out: Path) -> None:
    from paceline.clusters.profile_file import read_profile, write_profile
    from paceline.studies.calibrate.together import add_together

    write_profile(add_together(read_profile(base), found), out)


def _tell(found: "ContentionFit", out: Path, as_json: bool) -> None:
    from paceline.reports.calibrate import tell_together
    from paceline.studies.calibrate.results import SCHEMA

    if as_json:
        text = json.dumps({"schema": SCHEMA, "profile": str(out), "together": asdict(found)}, indent=2)
    else:
        text = "\n".join(tell_together(found.workers, found.short, found.long, found.links, out))
    sys.stdout.write(f"{text}\n")
