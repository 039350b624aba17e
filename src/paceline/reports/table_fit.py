"""What one point of a table foretells of the others, beside what was measured."""

from collections.abc import Sequence

from paceline.reports.scenarios.told import Told, exact_seconds, table
from paceline.studies.calibrate.table_fit import Foretold, TableFit
from paceline.units import show_rate


def tell_fits(fits: Sequence[TableFit], model: str) -> Told:
    """The fit that suits the rest best, or what they agree on; then all of them, point by point."""
    best, shown = fits[0], _merged(fits)
    titles = ["point", "measured s", *shown]
    rows = [
        [
            str(one.point),
            "-" if one.measured is None else f"{one.measured:.2f}",
            *(_cell(fit.points[place]) for fit in shown.values()),
        ]
        for place, one in enumerate(best.points)
    ]
    if best.errors:
        rows.append(["median error", "", *(_percent(fit.median, sign=False) for fit in shown.values())])
        rows.append(["worst error", "", *(_percent(fit.worst) for fit in shown.values())])
    lines = [*table(titles, rows), "", *_notes(fits)]
    document = {"schema": 1, "model": model, "fits": [fit.to_json() for fit in fits]}
    return Told(answer=_sentence(fits, model), lines=lines, document=document)


def _sentence(fits: Sequence[TableFit], model: str) -> str:
    best = fits[0]
    start = f"{model}, from one worker's times and {best.start}"
    if not best.points:
        return f"{start}: the table has no other point, so there is nothing to predict."
    if not best.errors:
        return f"{start}: nothing else was measured, so nobody can say how far off these predictions are."
    which = f"{best.collective} foretells" if len(fits) == 1 else f"{best.collective} foretells best"
    return (
        f"{start}: {which} the {len(best.errors)} other points that were measured, "
        f"{_percent(best.median, sign=False)} off in the middle and {_percent(best.worst)} at worst."
    )


def _notes(fits: Sequence[TableFit]) -> list[str]:
    best = fits[0]
    rates = ", ".join(
        f"{fit.collective} {exact_seconds(fit.transfer)} ({show_rate(fit.rate)})" for fit in fits
    )
    notes = [f"one worker's gradients cross one link in: {rates}"]
    if bounds := best.interval(1.0):
        notes.append(
            f"80 % interval of {best.collective}, by its own errors: {bounds[0]:.2f} to {bounds[1]:.2f} "
            "times what is predicted"
        )
    if len(fits) > 1:
        notes.append(
            "one point cannot tell how gradients were exchanged; the order above is by what the rest of the table "
            "says, so name the collective where you know it"
        )
    return notes


def _merged(fits: Sequence[TableFit]) -> dict[str, TableFit]:
    """A column a fit; those that foretell the same, as a tree and a butterfly do, share one."""
    columns: dict[tuple[str, ...], list[TableFit]] = {}
    for fit in fits:
        columns.setdefault(tuple(f"{one.seconds:.6g}" for one in fit.points), []).append(fit)
    return {", ".join(fit.collective for fit in same): same[0] for same in columns.values()}


def _cell(one: Foretold) -> str:
    seconds = f"{one.seconds:.2f}"
    return seconds if one.error is None else f"{seconds} ({_percent(one.error)})"


def _percent(share: float | None, sign: bool = True) -> str:
    if share is None:
        return "-"
    return f"{100 * share:{'+' if sign else ''}.0f} %"
