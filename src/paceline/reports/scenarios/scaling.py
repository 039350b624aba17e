"""The table that a scaling study prints."""

from dataclasses import asdict

from paceline.reports.scenarios.told import Told, table, three
from paceline.studies.scenarios.answers import Scaling, ScalingPoint
from paceline.units import show_rate

TITLES = (
    *("workers", "batch a worker", "epoch s", "compute s", "communicate s"),
    *("step ms", "speed-up", "efficiency", "bandwidth use"),
)


def tell_scaling(answer: Scaling) -> Told:
    """Who gains most and who loses, and the table."""
    lines = table(TITLES, [_row(point) for point in answer.points])
    lines += [
        "",
        "compute is one worker's epoch over the workers, communicate is the rest; bandwidth use is the least that an "
        f"all-reduce of {answer.parameters:,} parameters",
        "must send, over the rest",
    ]
    return Told(answer=_sentence(answer), lines=lines, document=asdict(answer))


def _sentence(answer: Scaling) -> str:
    together = [point for point in answer.points if point.workers > 1]
    if not together:
        return f"{answer.model} was measured with one worker only: there is nothing to compare."
    best = max(together, key=lambda point: point.speed_up)
    words = (
        f"{best.workers} workers are at best {three(best.speed_up)} times as fast as one, "
        f"at batch {best.batch:,} a worker"
    )
    slower = [point for point in together if point.speed_up < 1]
    if not slower:
        return f"{words}; no measured point is slower than one worker."
    worst = min(slower, key=lambda point: point.speed_up)
    return (
        f"{words}; {len(slower)} of {len(together)} points are slower than one worker, "
        f"the worst {worst.workers} at batch {worst.batch:,} ({three(worst.speed_up)})."
    )


def _row(point: ScalingPoint) -> list[str]:
    alone = point.workers == 1
    return [
        f"{point.workers}",
        f"{point.batch:,}",
        f"{point.seconds:.2f}",
        f"{point.compute:.2f}",
        "-" if alone else f"{point.communicate:.2f}",
        f"{1e3 * point.seconds / point.steps:.1f}",
        three(point.speed_up),
        f"{100 * point.speed_up / point.workers:.0f} %",
        "-" if point.use is None else show_rate(point.use),
    ]
