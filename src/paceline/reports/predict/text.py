"""A prediction as people read it."""

import time
from collections.abc import Iterator
from typing import TextIO

from paceline.reports.predict.sentences import findings, memory_parts, misfit, option, verdict
from paceline.reports.predict.table import table_lines
from paceline.reports.text import percent
from paceline.studies.predict.prediction import Basis, Prediction

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
    follows = list(_follows(prediction))
    return [*lines, *follows, *([""] if follows else []), *_basis(prediction)]


def _follows(prediction: Prediction) -> Iterator[str]:
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
    if said.get("servers", 1) != 1:
        yield f"{said['servers']:,} servers"
    if said.get("jitter"):
        yield f"jitter {said['jitter']:g}"
    if said.get("per_host", 1) != 1:
        yield f"{said['per_host']:,} workers a host"
    if "inside" in said:
        yield f"{said['inside']} inside"


def _basis(prediction: Prediction) -> list[str]:
    basis = prediction.basis
    rows = [row for series in prediction.series for row in series.rows if row.memory is not None]
    largest = max((row.memory for row in rows if row.memory), key=lambda one: one.total, default=None)
    return [
        f"Level: {basis.level}. Compute: {basis.compute}.",
        *([f"Precision: {_precision(basis)}."] if basis.precision else []),
        *([f"Memory: {memory_parts(largest)}."] if largest else []),
        f"Links: {basis.links}.",
        f"Interval: {basis.interval}.",
        *_unmeasured(prediction),
    ]


def _precision(basis: Basis) -> str:
    if basis.faster_precision is None:
        return basis.precision
    name, gain = basis.faster_precision
    faster = f"computes {gain:.2g}x as fast" if gain >= 1.05 else "is no faster"
    return f"{basis.precision}; with {option(('precision', name))} one worker {faster}"


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
        f"know ({', '.join(named)}{more}), which are guessed from others of their kind; the interval is wider for it. "
        "Calibrate again, or correct the profile by a run of this job ('paceline calibrate record')."
    )


class ProgressLine:
    """A line on stderr, once a second, where a prediction takes longer; on a terminal it is removed at the end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._terminal = stream, stream.isatty()
        self._due = time.monotonic() + 1.0
        self._shown = False

    def __call__(self, words: str) -> None:
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + (1.0 if self._terminal else 5.0)
        self._stream.write(f"\r\x1b[K{words} ..." if self._terminal else f"{words} ...\n")
        self._stream.flush()
        self._shown = True

    def done(self) -> None:
        if self._shown and self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
