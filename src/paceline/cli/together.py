"""Commands of several workers: start this command line again as each of them, or be one."""

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from paceline.cli.place import PlaceOptions

if TYPE_CHECKING:
    from paceline.runtimes.live.heartbeat import Heartbeat
    from paceline.runtimes.live.process_info import ProcessInfo
    from paceline.runtimes.live.signals import StopRequest
    from paceline.runtimes.live.worker.guard import HasEnding

WorkerTask = Callable[["ProcessInfo", "Heartbeat", "StopRequest"], "HasEnding"]


def run_workers(where: PlaceOptions, workers: int, task: WorkerTask) -> int:
    """Be one worker where a launcher has set its variables, else start ``workers`` on this host."""
    from paceline.runtimes.live.process_info import ProcessInfo

    place = ProcessInfo.from_environment()
    return launch_workers(where, workers) if place is None else be_worker(where, place, task)


def launch_workers(where: PlaceOptions, workers: int) -> int:
    from paceline.cli.process import starting
    from paceline.runtimes.live.launcher.launch import launch, paceline_command
    from paceline.studies.collectives.request import check_workers

    check_workers(workers * max(where.nodes or 1, 1))
    plan = where.plan(workers)
    with starting() as start:
        return launch(paceline_command(sys.argv[1:]), plan, trains=False, start=start)


def be_worker(where: PlaceOptions, place: "ProcessInfo", task: WorkerTask) -> int:
    from paceline.runtimes.live.worker.guard import run_guarded

    if place.launch is None:
        place = where.under_launcher(place)
    return run_guarded(place, partial(task, place))
