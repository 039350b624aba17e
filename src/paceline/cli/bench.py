"""``paceline bench``: how fast things are here, beside what was predicted."""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Group, Parameter

from paceline.cli.convergence import convergence
from paceline.cli.options import PlaceOptions, Whole, run_workers
from paceline.cli.scaling import batch, checkpoint, processes, scaling
from paceline.runtimes.settings import DEFAULT_WORKERS

if TYPE_CHECKING:
    from paceline.runtimes.live.heartbeat import Heartbeat
    from paceline.runtimes.live.process_info import ProcessInfo
    from paceline.runtimes.live.signals import StopRequest
    from paceline.studies.collectives.request import BenchResult

WHAT = Group("What is measured", sort_key=1)
SHOWN = Group("What is shown", sort_key=5)

app = App(
    name="bench",
    help="Measure how fast things are here, beside what was predicted.",
    version_flags=[],
)
for command in (convergence, scaling, batch, checkpoint, processes):
    app.command(command)


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
    backends are timed in turn, in the same processes, and their results checked. Two local workers by default. Under
    torchrun, or any launcher that sets its variables, each process is one worker. Exit code 3 if a result is wrong.

    Args:
        sizes: Such as 1kB,1MB,25MiB, up to 4 GB (default: 1 kB to 256 MB).
        only: Such as ring,shm,my_file.py:my_schedule (default: gloo, shm, shm-elsewhere and each schedule over gloo).
        op: sum (default), mean, max, min or product; and, or and xor for integers.
        dtype: float32 (default), float64, float16, bfloat16, int8, uint8, int32 or int64.
        repeats: Timed calls per cell (default: as many as fit --cell-seconds, 3 to 200).
        cell_seconds: Seconds for the timed calls of a cell (default 0.6); a probe gets half of it.
        as_json: One JSON document instead of text.
    """
    from paceline.studies.collectives.request import parse_request

    where = where or PlaceOptions()
    asked = parse_request(sizes, only, op, dtype, repeats=repeats, cell_seconds=cell_seconds)

    def work(place: "ProcessInfo", heartbeat: "Heartbeat", stopping: "StopRequest") -> "BenchResult":
        from paceline.reports.bench import BenchReport
        from paceline.studies.collectives.run import run_bench

        with closing(BenchReport(as_json=as_json)) as report:
            result = run_bench(asked, place, show=report.show, beat=heartbeat.beat, stopping=stopping)
            if place.rank == 0:
                report.finish(result)
        return result

    return run_workers(where, DEFAULT_WORKERS if where.workers is None else where.workers, work)
