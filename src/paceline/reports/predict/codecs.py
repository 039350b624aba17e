"""Which codec pays, in a sentence, and the table behind it."""

from collections.abc import Sequence

from paceline.reports.predict.sentences import times, typed
from paceline.reports.text import aligned, counted, ms_digits, percent
from paceline.studies.predict.codecs import PAYS
from paceline.studies.predict.prediction import CodecComparison, CodecStep
from paceline.units import show_bytes, show_rate, show_seconds

NO_LOSS = 0.995
"""From this factor on it is shown as 1.00x, which is not slower."""


def codec_answers(comparisons: Sequence[CodecComparison]) -> list[str]:
    """One a strategy: which codec is fastest there, and where each pays."""
    several = len(comparisons) > 1
    return [
        f"Codecs{f' with {one.strategy}' if several else ''}: {'; '.join(_clauses(one))}."
        for one in comparisons
    ]


def _clauses(comparison: CodecComparison) -> list[str]:
    plain, *others = comparison.steps
    first, *rest = sorted(others, key=lambda step: -step.gain)
    there = show_rate(comparison.wire.bandwidth)
    if comparison.pays_here(first):
        less = f"{show_bytes(first.sent)} a step instead of {show_bytes(plain.sent)}"
        fastest = "is fastest," if rest else "is"
        clauses = [
            f"{first.codec} {fastest} {times(first.gain)} as fast as {plain.codec} at {there}, for a worker sends "
            f"{less}; it pays {paying(first)}"
        ]
    else:
        clauses = [f"none pays at {there}", _clause(comparison, first)]
    return clauses + [_clause(comparison, one) for one in rest]


def faster_codec(comparisons: Sequence[CodecComparison], strategy: str, now: str) -> list[str]:
    """The best of the codecs that were asked for, where another one is what rows are of."""
    for one in comparisons:
        gains = {step.codec: step.gain for step in one.steps}
        best = max(gains, key=lambda codec: gains[codec])
        if one.strategy == strategy and gains[best] >= PAYS * gains.get(now, 1.0):
            gain = times(gains[best] / gains.get(now, 1.0))
            many = counted(one.workers, "worker")
            return [
                f"What would help: {typed(('codec', best))} makes {many} {gain} as fast as now (see above)."
            ]
    return []


def _clause(comparison: CodecComparison, step: CodecStep) -> str:
    if comparison.pays_here(step):
        return f"{step.codec} gives {times(step.gain)} and pays {paying(step)}"
    why = f"for encoding and decoding take {show_seconds(step.coding)} a step"
    plain = comparison.steps[0]
    if step.sent > plain.sent:
        why = f"for a worker sends {show_bytes(step.sent)} a step instead of {show_bytes(plain.sent)}"
    if step.gain >= NO_LOSS:
        return f"{step.codec} gains nothing, and pays {paying(step)}"
    return f"{step.codec} is slower ({times(step.gain)}), {why}; it pays {paying(step)}"


def paying(step: CodecStep) -> str:
    """At which bandwidths a codec pays."""
    if step.below is not None:
        return f"below {show_rate(step.below)}"
    return "at any bandwidth" if step.pays == "always" else "at no bandwidth"


def assumption(step: CodecStep) -> str:
    """What is taken for granted of a codec of which only data tell how long its messages are."""
    assert step.assumed is not None
    part = percent(float(f"{step.assumed:.2g}"))
    return f"assumed, as only data can tell: a message of {step.codec} has {part} of the elements"


def codec_lines(comparisons: Sequence[CodecComparison]) -> list[str]:
    """The table with its title; times are in milliseconds."""
    several = len(comparisons) > 1
    digits = ms_digits(min(step.step for one in comparisons for step in one.steps))
    titles = ["strategy", "codec", "sent a step", "coding ms", "step ms", "against identity", "pays below"]
    rows = [[one.strategy, *_cells(step, digits)] for one in comparisons for step in one.steps]
    skipped = 0 if several else 1
    links = dict.fromkeys(show_rate(one.wire.bandwidth) for one in comparisons)
    return [
        f"Codecs, {counted(comparisons[0].workers, 'worker')}, at {' and '.join(links)}:",
        "",
        *aligned(titles[skipped:], [row[skipped:] for row in rows], left=("strategy", "codec")),
        *_assumptions(comparisons),
    ]


def _assumptions(comparisons: Sequence[CodecComparison]) -> list[str]:
    steps = [step for one in comparisons for step in one.steps if step.assumed is not None]
    lines = dict.fromkeys(map(assumption, steps))
    return ["", *(f"{line[0].upper()}{line[1:]}." for line in lines)] if lines else []


def _cells(step: CodecStep, digits: int) -> list[str]:
    gain, below = times(step.gain), {"never": "never", "always": "at any", None: "-"}
    return [
        step.codec,
        show_bytes(step.sent),
        f"{1e3 * step.coding:,.{digits}f}" if step.coding else "-",
        f"{1e3 * step.step:,.{digits}f}",
        gain if step.gain >= NO_LOSS else f"{gain}: slower",
        show_rate(step.below) if step.pays == "below" and step.below is not None else below[step.pays],
    ]
