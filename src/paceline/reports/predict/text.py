"""A prediction as people read it."""

from collections.abc import Iterator

from paceline.reports.predict.sentences import findings, memory_parts, misfit, verdict
from paceline.reports.predict.table import table_lines
from paceline.reports.text import percent
from paceline.strategies import build_strategy
from paceline.studies.predict.prediction import Prediction

LEAST_SHARE = 0.01
"""Of a step's computing: less in operators that were never measured is not worth a line."""
MOST_NAMED = 5


def text_lines(prediction: Prediction) -> list[str]:
    """The answer, the table behind it, what follows, and what it all rests on."""
    short = misfit(prediction)
    answer = [verdict(prediction)]
    if short is not None:
        answer = [short, f"With enough memory: {answer[0][0].lower()}{answer[0][1:]}"]
    lines = [*answer, "", heading(prediction), "", *table_lines(prediction), ""]
    told = list(_told(prediction))
    return [*lines, *told, *([""] if told else []), *_basis(prediction)]


def _told(prediction: Prediction) -> Iterator[str]:
    """What follows, strategy by strategy."""
    several = len(prediction.series) > 1
    for series in prediction.series:
        lines = findings(series)
        if several and lines:
            yield f"{series.strategy}:"
        yield from (f"  {line}" if several else line for line in lines)


def heading(prediction: Prediction) -> str:
    """What the table is about, with every setting that is not the usual one."""
    strong = prediction.scaling == "strong"
    batch = f"{prediction.batch:,}"
    return ", ".join(
        [
            prediction.name,
            f"{prediction.parameters:,} parameters",
            f"a batch of {batch} divided among all workers" if strong else f"batch {batch} a worker",
            *_ways(prediction),
        ]
    )


def _ways(prediction: Prediction) -> Iterator[str]:
    said = prediction.settings
    if len(prediction.series) == 1:
        yield prediction.series[0].strategy
    if said.get("codec", "identity") != "identity":
        yield f"codec {said['codec']}"
    if said.get("collective", "native") != "native":
        yield f"collective {said['collective']}"
    if said.get("servers", 1) != 1 and any(_is_served(series.strategy) for series in prediction.series):
        yield f"{said['servers']:,} servers"
    if said.get("jitter"):
        yield f"jitter {said['jitter']:g}"
    if said.get("per_host", 1) != 1:
        yield f"{said['per_host']:,} workers a host"
    if "inside" in said:
        yield f"{said['inside']} inside"


def _is_served(strategy: str) -> bool:
    return build_strategy(strategy).served


def _basis(prediction: Prediction) -> list[str]:
    known = prediction.known
    rows = [row for series in prediction.series for row in series.rows if row.memory is not None]
    largest = max((row.memory for row in rows if row.memory), key=lambda one: one.total, default=None)
    return [
        f"Level: {known.level}. Compute: {known.compute}.",
        *([f"Precision: {known.precision}."] if known.precision else []),
        *([f"Memory: {memory_parts(largest)}."] if largest else []),
        f"Links: {known.links}.",
        f"Interval: {known.interval}.",
        *_unmeasured(prediction),
    ]


def _unmeasured(prediction: Prediction) -> Iterator[str]:
    """What the calibration knows nothing of, where that matters."""
    shares = sorted(prediction.unmeasured.items(), key=lambda one: one[1], reverse=True)
    total = sum(share for _, share in shares)
    if total < LEAST_SHARE:
        return
    named = [f"{name} {percent(round(share, 2))}" for name, share in shares[:MOST_NAMED]]
    more = f" and {len(shares) - MOST_NAMED} more" if len(shares) > MOST_NAMED else ""
    yield (
        f"Never measured: {percent(round(total, 2))} of a step's computing is in operators that the profile does not "
        f"know ({', '.join(named)}{more}), which are predicted by guess, like others of their kind; the interval is "
        "wider for it. Calibrate again, or correct the profile by a run of this job (paceline calibrate --record RUN "
        "--profile FILE)."
    )
