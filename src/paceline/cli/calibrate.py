"""``paceline calibrate``: measure this machine, so that predictions know it."""

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from paceline.cli.options import given_options, whole
from paceline.cli.place import PlaceOptions
from paceline.errors import Mistake

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.costs.devices.fitted import Fitted

WHAT = Group("What is measured", sort_key=1)
TABLE = Group("From a table instead", sort_key=2)
SHOWN = Group("What is written and shown", sort_key=3)

Whole = Parameter(converter=whole)


def calibrate(
    *,
    seconds: Annotated[float | None, Parameter(group=WHAT)] = None,
    threads: Annotated[int | None, Whole, Parameter(group=WHAT)] = None,
    record: Annotated[Path | None, Parameter(group=WHAT)] = None,
    profile: Annotated[Path | None, Parameter(group=WHAT)] = None,
    where: PlaceOptions | None = None,
    table: Annotated[Path | None, Parameter(group=TABLE)] = None,
    start: Annotated[str | None, Parameter(name="--from", group=TABLE)] = None,
    collective: Annotated[str | None, Parameter(group=TABLE)] = None,
    foretell: Annotated[str | None, Parameter(name="--predict", group=TABLE)] = None,
    out: Annotated[Path | None, Parameter(group=SHOWN)] = None,
    name: Annotated[str | None, Parameter(group=SHOWN)] = None,
    as_json: Annotated[bool, Parameter(name="--json", group=SHOWN, negative=(), show_default=False)] = False,
) -> int:
    """Measure this machine, so that predictions know it: 'paceline predict MODEL --profile FILE'.

    Runs random networks of many shapes for a few minutes, times every operator in its place, and fits how its time
    depends on its sizes. Leave the machine alone meanwhile. With --workers 2 or more, on one host or several, links and
    what computing in company costs are measured afterwards. A record of a real run can correct a profile as well; and a
    table of measured epochs says how the rest of it would look.

    Parameters
    ----------
    seconds
        How long to measure (default 180); more is more accurate.
    threads
        Threads that a worker computes with (default 1).
    record
        Instead of measuring: the folder of a run by one worker, whose typical step corrects the times.
    profile
        With --record: the profile to correct (default: none, and one rate is all that is known). With --workers: the
        profile that links are added to, instead of measuring the device first.
    table
        A .toml file of measured epochs, such as examples/resnet18-cifar10-table.toml; nothing is measured or written.
    start
        The point that is fitted, workers x batch, such as 4x128 (default: the most workers, the middle batch).
    collective
        How gradients were exchanged: one-to-all, ring, tree or butterfly (default: each of them beside the others).
    foretell
        Further points, such as 8x128,8x512.
    out
        Where to write the profile (default paceline-profile.json).
    name
        What to call the machine (default: its host name).
    as_json
        One JSON document instead of text.
    """
    from paceline.cli.together import check_together, launch_together, work_together
    from paceline.clusters.profile_file import read_profile
    from paceline.runtimes.live.place import Place

    where = where or PlaceOptions()
    together = given_options(where)
    if table is not None:
        return _by_table(table, start, collective, foretell, [record, profile, seconds, *together], as_json)
    place = Place.from_environment()
    if place is not None:
        base = profile or _writable(out)
        return work_together(place, where, base, out or base, as_json)
    if together and record is None:
        check_together(where)
        base = profile or _writable(out)
        if profile is not None:
            read_profile(profile)
        elif not where.node_rank:
            _by_measuring(seconds, threads, out, name, as_json, tell=not as_json)
        return launch_together(where, out or base, as_json)
    if record is not None:
        if seconds is not None:
            raise Mistake("--record takes the times of a run and measures nothing; leave --seconds out")
        return _by_record(record, profile, threads, out, name, as_json)
    if profile is not None:
        raise Mistake("--profile is corrected by --record; add --record RUN, or leave it out to measure anew")
    return _by_measuring(seconds, threads, out, name, as_json)


def _by_table(
    table: Path,
    start: str | None,
    collective: str | None,
    foretell: str | None,
    others: "Sequence[object]",
    as_json: bool,
) -> int:
    from paceline.cli.table import fit_from_table

    if any(other is not None for other in others):
        raise Mistake(
            f"--table {table} measures nothing: leave --seconds, --record, --profile and --workers out"
        )
    return fit_from_table(table, start, collective, foretell, as_json=as_json)


def _by_measuring(
    seconds: float | None,
    threads: int | None,
    out: Path | None,
    name: str | None,
    as_json: bool,
    tell: bool = True,
) -> int:
    from paceline.reports.calibrate import ShownCalibration, tell_device
    from paceline.studies.calibrate.device import USUAL_SECONDS, calibrate_device

    threads, path = _threads(threads), _writable(out)
    with closing(ShownCalibration()) as observer:
        device, found = calibrate_device(
            USUAL_SECONDS if seconds is None else seconds, threads=threads, observer=observer
        )
    _finish(
        device, threads, path, name, {"device": found.to_json()}, [*tell_device(found), ""], as_json, tell
    )
    return 0


def _by_record(
    record: Path, base: Path | None, threads: int | None, out: Path | None, name: str | None, as_json: bool
) -> int:
    from paceline.clusters.profile_file import read_profile
    from paceline.costs.devices.fitted import read_fitted
    from paceline.records.folder import RunFolder
    from paceline.reports.calibrate import tell_record
    from paceline.studies.calibrate.record import correct_by_record, plain_device

    path = _writable(out)
    if base is None:
        device = plain_device()
    else:
        given = read_profile(base)
        device, threads = read_fitted(given.device, str(base)), given.machine.get("threads", threads)
    device, found = correct_by_record(device, RunFolder(record))
    _finish(device, _threads(threads), path, name, {"record": found.to_json()}, tell_record(found), as_json)
    return 0


def _finish(
    device: "Fitted",
    threads: int,
    path: Path,
    name: str | None,
    document: dict[str, Any],
    lines: "Iterable[str]",
    as_json: bool,
    tell: bool = True,
) -> None:
    """Write the profile and, if somebody is to be told, say what was found and where it is."""
    from paceline.clusters.profile_file import made_before, write_profile
    from paceline.records.calibration import SCHEMA
    from paceline.reports.calibrate import tell_file
    from paceline.studies.calibrate.profile import make_profile

    replaced = made_before(path)
    write_profile(make_profile(device, threads, name), path)
    if not tell:
        return
    if as_json:
        whole_document = {"schema": SCHEMA, "profile": str(path), "replaced": replaced, **document}
        text = json.dumps(whole_document, indent=2, allow_nan=False)
    else:
        text = "\n".join([*lines, *tell_file(path, replaced)])
    sys.stdout.write(f"{text}\n")


def _threads(threads: int | None) -> int:
    import os

    most = os.cpu_count() or 1
    if threads is not None and not 1 <= threads <= most:
        raise Mistake(f"--threads {threads} does not fit this machine: give 1 to {most}, its cores")
    return threads or 1


def _writable(out: Path | None) -> Path:
    """Where the profile goes; refused before minutes are spent on measuring."""
    from paceline.clusters.profile_file import DEFAULT_PATH

    path = out or DEFAULT_PATH
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"lies in {path.parent}, which is no folder"
        raise Mistake(f"--out {path} {what}; give the name of a file, for example {DEFAULT_PATH}")
    return path
