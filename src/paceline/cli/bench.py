"""``paceline bench``: how fast things are here, beside what was predicted."""

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Group, Parameter

from paceline.cli.options import DEFAULT_WORKERS, whole
from paceline.cli.place import PlaceOptions

if TYPE_CHECKING:
    from paceline.runtimes.live.process_info import ProcessInfo
    from paceline.studies.collectives.request import Request

WHAT = Group("What is measured", sort_key=1)
SHOWN = Group("What is shown", sort_key=5)

Whole = Parameter(converter=whole)

app = App(
    name="bench",
    help="Measure how fast things are here, beside what was predicted.",
    help_flags=["--help", "-h"],
    version_flags=[],
    help_format="plaintext",
    result_action="return_value",
)


@app.command
def collectives(
    *,
    sizes: Annotated[str | None, Parameter(group=WHAT, allow_leading_hyphen=True)] = None,
    only: Annotated[str | None, Parameter(group=WHAT)] = None,
    op: Annotated[str, Parameter(group=WHAT, show_default=False)] = "sum",
    dtype: Annotated[str, Parameter(group=WHAT, show_default=False)] = "float32",
    repeats: Annotated[int | None, Whole, Parameter(group=WHAT)] = None,
    cell_seconds: Annotated[float | None, Parameter(group=WHAT)] = None,
    where: PlaceOptions | None = None,
    as_json: Annotated[bool, Parameter(name="--json", group=SHOWN, negative=(), show_default=False)] = False,
) -> int:
    """Measure all-reduces by every backend and schedule, beside what was predicted.

    First latency, bandwidth and the rate of reducing are measured, then every time is predicted from them, then all
    ways are timed in turn, in the same processes, and their results checked. Two local workers unless told otherwise.
    Under torchrun, or anything that sets its variables, each process is one worker. Exit code 3 if a result is wrong.

    Parameters
    ----------
    sizes
        Such as 1kB,1MB,25MiB, up to 4 GB (default: 1 kB to 256 MB).
    only
        Such as ring,shm (default: gloo, shm, shm-elsewhere and each schedule over gloo).
    op
        sum (default), mean, max, min or product; and, or and xor for integers.
    dtype
        float32 (default), float64, float16, bfloat16, int8, uint8, int32 or int64.
    repeats
        Timed calls a cell (default: as many as fit --cell-seconds, 3 to 200).
    cell_seconds
        Seconds for the timed calls of a cell (default 0.6); a probe gets half of it.
    as_json
        One JSON document instead of text.
    """
    from paceline.runtimes.live.process_info import ProcessInfo
    from paceline.studies.collectives.request import request

    where = where or PlaceOptions()
    asked = request(sizes=sizes, only=only, op=op, dtype=dtype, repeats=repeats, cell_seconds=cell_seconds)
    place = ProcessInfo.from_environment()
    return _work(asked, where, place, as_json) if place else _launch(where)


def _launch(where: PlaceOptions) -> int:
    """Start this very command line again as each worker."""
    from paceline.cli.process import starting
    from paceline.runtimes.live.launcher.launch import launch, train_command
    from paceline.studies.collectives.request import check_workers

    workers = DEFAULT_WORKERS if where.workers is None else where.workers
    check_workers(workers * max(where.nodes or 1, 1))
    plan = where.plan(workers)
    with starting() as start:
        return launch(train_command(sys.argv[1:]), plan, trains=False, start=start)


def _work(asked: "Request", where: PlaceOptions, place: "ProcessInfo", as_json: bool) -> int:
    """Be one worker, to the end."""
    from paceline.reports.bench import ConsoleBench, JsonBench
    from paceline.runtimes.live.guard import run_guarded
    from paceline.runtimes.live.heartbeat import Heartbeat
    from paceline.runtimes.live.signals import StopRequest
    from paceline.studies.collectives.run import Outcome, run_bench

    if place.launch is None:
        place = where.under_launcher(place)

    def work(heartbeat: Heartbeat, stopping: StopRequest) -> Outcome:
        with closing(JsonBench() if as_json else ConsoleBench()) as observer:
            return run_bench(asked, place, observer=observer, beat=heartbeat.beat, stopping=stopping)

    return run_guarded(place, work)
