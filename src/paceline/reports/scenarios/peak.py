"""What a device could do at its peak."""

from collections.abc import Sequence
from dataclasses import asdict

from paceline.reports.scenarios.told import Told, table
from paceline.studies.scenarios.answers import Peak


def tell_peak(answer: Peak) -> Told:
    """The rates in a sentence, and how they come about."""
    rates = _listed(
        [f"{one.rate:,.0f} images/s with {one.model} ({1e3 * one.seconds:.2g} ms)" for one in answer.models]
    )
    words = f"At its peak of {answer.flops / 1e12:.4g} TFLOP/s, {answer.device} could do about {rates}."
    rows = [
        [one.model, f"{one.operations / 1e6:,.0f}", f"{1e3 * one.seconds:.2f}", f"{one.rate:,.0f}"]
        for one in answer.models
    ]
    lines = table(["model", "M operations an image", "ms an image", "images/s"], rows)
    return Told(answer=words, lines=lines, document=asdict(answer))


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
