"""What is expected of a run that is about to begin, in a sentence, and after its last step whether it was so."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from paceline.records.files import to_document, write_json
from paceline.records.folder import RunFolder
from paceline.records.summary import Probe, Started, Summary
from paceline.reports.predict.codecs import NO_LOSS, paying
from paceline.reports.predict.sentences import times
from paceline.runtimes.settings import Settings
from paceline.studies.predict.forecast import StepForecast, forecast
from paceline.units import show_rate, show_seconds


@dataclass(frozen=True)
class Expectation:
    before: str
    """For the user, before the first step."""
    forecast: StepForecast | None = None

    @property
    def document(self) -> Any:
        return to_document(self.forecast)

    def after(self, summary: Summary) -> str:
        """Whether it was so; empty where nothing was expected, or nothing measured."""
        measured = [one.typical.total for one in summary.totals if one.steps]
        if self.forecast is None or not measured:
            return ""
        expected, found = self.forecast.coded.step, fmean(measured)
        return (
            f"expected {show_seconds(expected)} a step, measured {show_seconds(found)} "
            f"({100 * (found / expected - 1):+.0f} %)"
        )


def expect(settings: Settings, run: Started) -> Expectation | None:
    """Predict a step from what was measured, and keep the prediction in the run folder; None where nothing was."""
    if run.probe is None:
        return None
    busy = _takes_all_cores(run, run.probe)
    try:
        found = forecast(settings, run.probe, run.transport.partition(",")[0], busy=busy)
    except Exception as error:  # of a user's codec or strategy; the training does not depend on it
        return Expectation(f"what to expect of a step cannot be said: {type(error).__name__}: {error}")
    if run.folder:
        write_json(RunFolder(Path(run.folder)).prediction, to_document(found))
    return Expectation(sentence(found), found)


def _takes_all_cores(run: Started, probe: Probe) -> bool:
    return max(Counter(probe.nodes).values()) * (run.threads or 1) >= (run.cores or 1)


def sentence(found: StepForecast) -> str:
    plain, coded = found.plain, found.coded
    against = f"{times(coded.gain)} as fast as without a codec ({show_seconds(plain.step)})"
    if coded.gain < NO_LOSS:
        against = f"slower than without a codec ({show_seconds(plain.step)}, {times(coded.gain)})"
    there = show_rate(found.comparison.wire.bandwidth)
    return (
        f"expected: {show_seconds(coded.step)} a step, {against}: {coded.codec} pays {paying(coded)}, and this link "
        f"has {there}"
    )
