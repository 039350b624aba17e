"""What is expected of a run that is about to begin, in a sentence, and after its last step whether it was so."""

from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from textwrap import wrap
from typing import Any

from paceline.errors import describe, reason
from paceline.records.files import to_document, write_json
from paceline.records.folder import RunFolder
from paceline.records.spans import StepBreakdown, mean_typical_step, sent_a_step
from paceline.records.summary import Probe, Started, Summary
from paceline.reports.predict.codecs import NO_LOSS, assumption, paying
from paceline.reports.predict.sentences import times
from paceline.reports.text import counted
from paceline.runtimes.config import read_config
from paceline.runtimes.settings import Settings
from paceline.specs.source import CRASHES
from paceline.studies.predict.codecs import PAYS
from paceline.studies.predict.forecast import CodecForecast, RunForecast, forecast_codec
from paceline.studies.predict.predicted_run import predict_run
from paceline.studies.predict.prediction import Basis, PredictionRow
from paceline.units import show_bytes, show_rate, show_seconds

OTHER_BYTES = 0.02
"""Bytes that differ by more from those expected are told."""


@dataclass(frozen=True)
class Expectation:
    before: str
    """For the user, before the first step."""
    forecast: RunForecast | None = None

    @property
    def document(self) -> Any:
        return to_document(self.forecast)

    @property
    def step(self) -> StepBreakdown | None:
        """The predicted step, part by part."""
        row = None if self.forecast is None else self.forecast.row
        return None if row is None else row.breakdown

    def after(self, summary: Summary) -> str:
        """Whether it was so; empty where nothing was expected, or nothing measured."""
        worked = [one for one in summary.totals if one.steps]
        codec = None if self.forecast is None else self.forecast.codec
        if codec is None or not worked:
            return ""
        plain, coded = codec.plain, codec.coded
        found = mean_typical_step(worked).total
        paid = "it paid" if plain.step >= PAYS * found else "it did not pay"
        if abs(found - coded.step) > abs(
            plain.step - coded.step
        ):  # the machine has changed by more than a codec does
            paid = "whether it paid cannot be told"
        outcome = (
            f"{paid}: {show_seconds(found)} a step against {show_seconds(plain.step)} expected without a codec; "
            f"expected with {coded.codec} were {show_seconds(coded.step)} ({100 * (found / coded.step - 1):+.0f} %)"
        )
        sent = sent_a_step(worked)
        if abs(sent - coded.sent) > OTHER_BYTES * coded.sent:
            basis = " by the first gradients" if codec.probe.lengths else ""
            outcome += (
                f"; a worker sent {show_bytes(sent)} a step, expected were {show_bytes(coded.sent)}{basis}"
            )
        return outcome


def expect(settings: Settings, run: Started, profile: Path | None = None) -> Expectation | None:
    """Predict a step, and keep the prediction in the run folder; None where there is nothing to predict it by.

    By the ``profile`` of the machine, and what a codec gains by what was measured on the run's own workers.
    """
    found = RunForecast(made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    said: list[str] = []
    transport = run.transport.partition(",")[0]
    if profile is not None and run.folder and run.subject is not None:
        try:
            row, basis = predict_run(
                read_config(RunFolder(Path(run.folder))), run.subject, profile, transport
            )
            found = replace(found, row=row, basis=basis)
            said += row_sentences(row, basis, run)
        except CRASHES as error:  # of a user's code; the training does not depend on it
            said.append(f"not predicted: {_why(error)}")
    if run.probe is not None:
        busy = _takes_all_cores(run, run.probe)
        try:
            codec = forecast_codec(settings, run.probe, transport, busy=busy)
            found = replace(found, codec=codec)
            said.append(sentence(codec))
        except CRASHES as error:
            said.append(f"what to expect of a step cannot be said: {_why(error)}")
    if found.row is None and found.codec is None:
        return Expectation("\n".join(said)) if said else None
    if run.folder:
        write_json(RunFolder(Path(run.folder)).prediction, to_document(found))
    return Expectation("\n".join(said), found)


def _why(error: BaseException) -> str:
    return reason(error) if isinstance(error, Exception) else describe(error)


def row_sentences(row: PredictionRow, basis: Basis, run: Started) -> list[str]:
    """The step, its rate, how long all steps take, and what that rests on."""
    steps = run.last_step - run.first_step
    said = (
        f"predicted: {show_seconds(row.step)} a step ({show_seconds(row.low)} to {show_seconds(row.high)}), "
        f"{row.rate:,.0f} samples/s, {counted(steps, 'step')} in about {show_seconds(steps * row.step)}"
    )
    if row.memory is not None and row.memory.capacity is not None and not row.memory.fits:
        said += (
            f"; {show_bytes(row.memory.needed)} of memory are needed and "
            f"{row.memory.device} has {show_bytes(row.memory.capacity)}"
        )
    parts = [f"by {basis.compute}"] + ([basis.precision] if basis.precision else [])
    return [said, *wrap("; ".join(parts), 118, initial_indent="  ", subsequent_indent="  ")]


def _takes_all_cores(run: Started, probe: Probe) -> bool:
    return max(Counter(probe.nodes).values()) * (run.threads or 1) >= (run.cores or 1)


def sentence(found: CodecForecast) -> str:
    plain, coded = found.plain, found.coded
    against = f"{times(coded.gain)} as fast as without a codec ({show_seconds(plain.step)})"
    if coded.gain < NO_LOSS:
        against = f"slower than without a codec ({show_seconds(plain.step)}, {times(coded.gain)})"
    said = f"expected: {show_seconds(coded.step)} a step, {against}; {_where_it_pays(found)}"
    return f"{said}; {assumption(coded)}" if coded.assumed is not None else said


def _where_it_pays(found: CodecForecast) -> str:
    if not found.link_measured:
        return "the link could not be measured"
    coded = found.coded
    below = paying(coded) if coded.below is None else f"below {_about(coded.below)}"
    return f"{coded.codec} pays (1 % or more) {below}, and this link has {_about(found.comparison.wire.bandwidth)}"


def _about(rate: float) -> str:
    """With two figures: a measurement of a second tells no more."""
    return f"about {show_rate(float(f'{8 * rate:.2g}') / 8)}"
