"""``paceline calibrate``: measure this machine, so that predictions know it."""

import json
import sys
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from cyclopts import Group, Parameter

from paceline.cli.options import WHERE, whole
from paceline.cli.place import PlaceOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.clusters.profile import Profile

WHAT = Group("What is measured", sort_key=1)
TABLE = Group("From a table instead", sort_key=2)
SHOWN = Group("What is written and shown", sort_key=3)

Whole = Parameter(converter=whole)


@Parameter(name="*")
@dataclass(kw_only=True)
class LinkOptions(PlaceOptions):
    """None means that an option was not given."""

    workers: Annotated[int | None, Whole, Parameter(name=["--workers", "-np"], group=WHERE)] = None
    """Worker processes on this host, whose links are measured; without it, or --nodes, only the device is."""


def calibrate(
    *,
    seconds: Annotated[float | None, Parameter(group=WHAT)] = None,
    threads: Annotated[int | None, Whole, Parameter(group=WHAT)] = None,
    record: Annotated[Path | None, Parameter(group=WHAT)] = None,
    profile: Annotated[Path | None, Parameter(group=WHAT)] = None,
    busy: Annotated[bool, Parameter(group=WHAT, negative=(), show_default=False)] = False,
    where: LinkOptions | None = None,
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
    depends on its sizes. Waits up to a minute until nothing else computes, measures again what was disturbed, and ends
    with exit code 1 if that goes on. The profile holds for workers with as many threads. With --workers 2 or more, on
    one host or several, links and what contention costs are measured afterwards. A record of a real run can
    correct a profile as well; and a table of measured epochs says how the rest of it would look.

    Parameters
    ----------
    seconds
        How long to measure (default 180); more is more accurate.
    threads
        Threads that a worker computes with (default 1, or as OMP_NUM_THREADS says; with --record, as in that run). With
        --workers only 1 will do, in --profile as well.
    record
        Instead of measuring: the folder of a run by one worker, whose typical step corrects the times.
    profile
        With --record: the profile to correct, which keeps its links, threads and name (default: none, and one rate is
        all that is known). With --workers: the profile that links are added to, instead of measuring the device first.
    busy
        Measure though other processes compute, and mark the profile: predictions will say so.
    table
        A .toml file of measured epochs, such as examples/resnet18-cifar10-table.toml; nothing is measured or written.
    start
        The point that is fitted, workers x batch, such as 4x128 (default: the most workers, the middle batch).
    collective
        How gradients were exchanged: one-to-all, ring, tree or butterfly (default: each of them beside the others).
    foretell
        Further points, such as 8x128,8x512.
    out
        Where to write the profile (default paceline-profile.json; with --workers, where --profile is).
    name
        What to call the machine (default: its host name, or as --profile has it).
    as_json
        One JSON document instead of text.
    """
    from paceline.cli.table import fit_from_table
    from paceline.cli.together import work_together
    from paceline.clusters.profile_file import DEFAULT_PATH
    from paceline.runtimes.live.process_info import ProcessInfo
    from paceline.studies.calibrate.words import choose_task

    where, place = where or LinkOptions(), ProcessInfo.from_environment()
    what = {"--seconds": seconds, "--threads": threads, "--record": record, "--profile": profile}
    what |= {"--busy": busy or None}
    tables = {"--table": table, "--from": start, "--collective": collective, "--predict": foretell}
    others = {f"--{name.replace('_', '-')}": value for name, value in asdict(where).items()}
    task = choose_task({**what, **tables, **others, "--out": out, "--name": name}, place)
    if table is not None:
        return fit_from_table(table, start, collective, foretell, as_json=as_json)
    base = profile or out or DEFAULT_PATH
    if place is not None:
        return work_together(place, where, base, out or base, as_json, busy=busy)
    if task in ("together", "add"):
        kept = Kept(out or base, name, as_json, busy, last=False)
        return _together(where, profile, seconds, kept)
    kept = Kept(out or DEFAULT_PATH, name, as_json, busy)
    if record is not None:
        return _by_record(record, profile, threads, kept)
    return _by_measuring(seconds, threads, kept)


class Kept(NamedTuple):
    """Where the profile goes, what it is called, and who is told."""

    path: Path
    name: str | None
    as_json: bool
    busy: bool
    """Whether it may be measured while something else computes."""
    last: bool = True
    """Whether nothing is measured after it; one JSON document is then written."""


def _together(where: PlaceOptions, base: Path | None, seconds: float | None, kept: Kept) -> int:
    """With several workers; the host of rank 0 has the profile, or makes it first."""
    from paceline.cli.together import check_together, launch_together
    from paceline.clusters.profile_file import read_profile
    from paceline.studies.calibrate.words import check_one_thread, check_out

    check_together(where)
    first = not where.node_rank
    if first and base is not None:
        check_one_thread(read_profile(base), base)
        check_out(kept.path)
    elif first:
        _by_measuring(seconds, None, kept)
    return launch_together(where, kept.path, kept.as_json, busy=kept.busy)


def _by_measuring(seconds: float | None, threads: int | None, kept: Kept) -> int:
    from paceline.reports.calibrate import ShownCalibration, tell_device
    from paceline.studies.calibrate.device import USUAL_SECONDS, calibrate_device
    from paceline.studies.calibrate.messages import measure_cipher
    from paceline.studies.calibrate.profile import make_profile
    from paceline.studies.calibrate.words import check_out, check_threads

    check_out(kept.path)
    many, long = check_threads(threads), USUAL_SECONDS if seconds is None else seconds
    with closing(ShownCalibration()) as observer:
        device, found = calibrate_device(long, threads=many, observer=observer, busy=kept.busy)
    profile = make_profile(device, many, kept.name, found.disturbed, cipher=measure_cipher())
    return _finish(profile, kept, {"device": found.to_json()}, [*tell_device(found), ""])


def _by_record(record: Path, base: Path | None, threads: int | None, kept: Kept) -> int:
    from paceline.clusters.profile_file import read_profile
    from paceline.records.folder import RunFolder
    from paceline.reports.calibrate import tell_record
    from paceline.studies.calibrate.record import correct_profile, profile_of_record
    from paceline.studies.calibrate.words import check_out

    check_out(kept.path)
    if base is None:
        profile, found = profile_of_record(RunFolder(record), threads, kept.name)
    else:
        profile, found = correct_profile(read_profile(base), RunFolder(record), str(base), kept.name)
    return _finish(profile, kept, {"record": found.to_json()}, tell_record(found))


def _finish(profile: "Profile", kept: Kept, document: dict[str, Any], lines: "Iterable[str]") -> int:
    """Write the profile and, if somebody is to be told, say what was found and where it is."""
    from paceline.clusters.profile_file import made_before, write_profile
    from paceline.reports.calibrate import tell_file
    from paceline.studies.calibrate.results import SCHEMA

    replaced = made_before(kept.path)
    write_profile(profile, kept.path)
    if kept.as_json and not kept.last:
        return 0
    if kept.as_json:
        whole_document = {"schema": SCHEMA, "profile": str(kept.path), "replaced": replaced, **document}
        text = json.dumps(whole_document, indent=2, allow_nan=False)
    else:
        text = "\n".join([*lines, *tell_file(kept.path, replaced, last=kept.last)])
    sys.stdout.write(f"{text}\n")
    return 0
