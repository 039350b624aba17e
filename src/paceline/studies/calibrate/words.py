"""A calibration in the user's words: what it is to do, and which options go with that."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from paceline.clusters.profile import DEFAULT_PATH, Profile
from paceline.errors import UsageError
from paceline.records.load import usable_cores
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.threads import VARIABLE, usual_threads

Task = Literal["measure", "together", "add", "record", "correct", "table", "launched"]

PLACE = ("--workers", "--nodes", "--node-rank", "--address", "--port", "--secret-file")


class CalibrationTask(NamedTuple):
    """A task as a person would name it, and the options that it takes."""

    words: str
    takes: tuple[str, ...]


WAYS: Mapping[Task, CalibrationTask] = {
    "measure": CalibrationTask(
        "measuring the device", ("--seconds", "--threads", "--out", "--name", "--busy")
    ),
    "together": CalibrationTask(
        "measuring the device and then with several workers",
        ("--seconds", "--threads", "--out", "--name", "--busy", *PLACE),
    ),
    "add": CalibrationTask("adding links to a profile", ("--profile", "--out", "--busy", *PLACE)),
    "record": CalibrationTask("making a profile of a record", ("--record", "--threads", "--out", "--name")),
    "correct": CalibrationTask(
        "correcting a profile, which has its threads, by a record",
        ("--record", "--profile", "--out", "--name"),
    ),
    "table": CalibrationTask(
        "fitting a table, where nothing is measured or written,",
        ("--table", "--from", "--collective", "--predict"),
    ),
    "launched": CalibrationTask(
        "adding links under a launcher (RANK is set)", ("--profile", "--out", "--busy", *PLACE)
    ),
}
NEEDS = {
    "--from": "--table FILE",
    "--collective": "--table FILE",
    "--predict": "--table FILE",
    "--profile": "--record RUN or --workers 2",
}
"""What an option is of, where only the device is measured."""


def choose_task(said: Mapping[str, object], place: ProcessInfo | None = None) -> Task:
    """What to do by these options, None where one was not given; a UsageError names one that has no place in it.

    Workers that paceline itself has launched have the words of their launcher, which were looked at there.
    """
    given = {option: value for option, value in said.items() if value is not None}
    task = _task(given, place)
    if place is None or place.launch is None:
        _check_options(given, task)
    return task


def _task(given: Mapping[str, object], place: ProcessInfo | None) -> Task:
    if "--table" in given:
        return "table"
    if place is not None:
        return "launched"
    if "--record" in given:
        return "correct" if "--profile" in given else "record"
    if any(option in given for option in PLACE):
        return "add" if "--profile" in given else "together"
    return "measure"


def _check_options(given: Mapping[str, object], task: Task) -> None:
    way = WAYS[task]
    for option, value in given.items():
        if option not in way.takes:
            needed = f"add {NEEDS[option]}, or " if task == "measure" and option in NEEDS else ""
            said = option if value is True else f"{option} {value}"
            raise UsageError(
                f"{said} has no place here: {way.words} takes {', '.join(way.takes)}; "
                f"{needed}leave {option} out"
            )

    if task not in ("together", "add", "launched"):
        return
    said = f"--threads {given['--threads']}" if "--threads" in given else f"{VARIABLE}={usual_threads()}"
    if given.get("--threads", usual_threads()) != 1:
        raise UsageError(
            f"{said} does not go with several workers, who are measured with one thread each; leave it out"
        )


def check_threads(threads: int | None) -> int:
    """Threads that a worker of this machine can compute with; as the usual where nobody said."""
    most, said = usable_cores(), "--threads {}" if threads is not None else f"{VARIABLE}={{}}"
    threads = usual_threads() if threads is None else threads
    if not 1 <= threads <= most:
        raise UsageError(f"{said.format(threads)} does not fit this machine: give 1 to {most}, its cores")
    return threads


def check_out(out: Path) -> Path:
    """Where the profile goes; refused before minutes are spent on measuring."""
    if out.is_dir() or not out.parent.is_dir():
        what = "is a folder" if out.is_dir() else f"lies in {out.parent}, which is no folder"
        raise UsageError(f"--out {out} {what}; give the name of a file, for example {DEFAULT_PATH}")
    return out


def check_one_thread(profile: Profile, path: Path) -> Profile:
    """A profile that links can be added to: workers are measured together with one thread each."""
    threads = profile.machine.get("threads", 1)
    if threads != 1:
        raise UsageError(
            f"{path} is of workers with {threads} threads, and links are measured by workers with one thread each; "
            "give a profile that was made without --threads"
        )
    return profile
