"""``paceline calibrate --workers N``: what links and company are like with several workers."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.place import PlaceOptions
from paceline.errors import Mistake

if TYPE_CHECKING:
    from paceline.runtimes.live.place import Place
    from paceline.studies.calibrate.links import Together


@dataclass(frozen=True)
class Ended:
    """How a worker's part ended."""

    ending: str


def launch_together(where: PlaceOptions) -> int:
    """Start this very command line again as each worker."""
    from paceline.runtimes.live.launch import launch, train_command

    return launch(train_command(sys.argv[1:]), where.plan(check_together(where)), trains=False)


def check_together(where: PlaceOptions) -> int:
    """Workers on this host; fewer than two in all have no link to measure."""
    from paceline.studies.collectives.request import check_workers

    workers = (1 if where.nodes else 2) if where.workers is None else where.workers
    total = workers * max(where.nodes or 1, 1)
    if total < 2:
        raise Mistake(
            f"--workers {workers} has no link to measure: give at least 2, or leave it out to measure the device alone"
        )
    check_workers(total)
    return workers


def work_together(place: "Place", where: PlaceOptions, base: Path, out: Path, as_json: bool) -> int:
    """Be one worker; rank 0 adds what was found to the profile ``base`` and writes it to ``out``."""
    from paceline.clusters.profile_file import read_profile
    from paceline.runtimes.live.guard import run_guarded
    from paceline.runtimes.live.heartbeat import Heartbeat
    from paceline.runtimes.live.signals import StopRequest
    from paceline.studies.calibrate.links import calibrate_links

    def work(heartbeat: Heartbeat, stopping: StopRequest) -> Ended:
        if place.launch is None:
            where.refuse(place)
        if place.rank == 0:
            read_profile(base)  # before minutes are spent
            sys.stderr.write(f"measuring with {place.workers} workers: about half a minute\n")
        found = calibrate_links(place, beat=heartbeat.beat, stopping=stopping)
        if found is None:
            return Ended("interrupted")
        if place.rank == 0:
            _write(found, base, out, as_json)
        return Ended("done")

    return run_guarded(place, work)


def _write(found: "Together", base: Path, out: Path, as_json: bool) -> None:
    from paceline.clusters.profile_file import read_profile, write_profile
    from paceline.records.calibration import SCHEMA
    from paceline.reports.calibrate import tell_together
    from paceline.studies.calibrate.together import add_together

    write_profile(add_together(read_profile(base), found), out)
    if as_json:
        text = json.dumps({"schema": SCHEMA, "profile": str(out), "together": asdict(found)}, indent=2)
    else:
        text = "\n".join(tell_together(found.workers, found.short, found.long, found.links, out))
    sys.stdout.write(f"{text}\n")
