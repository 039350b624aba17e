"""Where compute times come from, for each level of knowledge."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import exp
from typing import Protocol

from paceline.clusters.catalogue import DeviceSheet
from paceline.clusters.profile import DISTURBED, Profile
from paceline.costs.device import DeviceModel, StepCost, accumulated, step_cost
from paceline.costs.recorded import Typical
from paceline.costs.trace.operator import Operator
from paceline.costs.trace.trace import Trace
from paceline.studies.predict.batches import Batches
from paceline.studies.predict.prediction import Level

MEASURED_SPREAD = 0.05
"""Of a step that was measured: how far another run of it lies off, as the logarithm's standard deviation."""

Timed = Callable[[Operator], float]
"""From an operator of a step to its seconds."""


class Source(Protocol):
    """Turns a batch size into the cost of a worker's step."""

    @property
    def level(self) -> Level:
        """How much it knows."""

    @property
    def words(self) -> str:
        """Where its times are from."""

    @property
    def doubt(self) -> str:
        """What its spread rests on."""

    @property
    def jitter(self) -> float:
        """By how much the steps of one worker vary, where that was recorded; 0 where nobody knows."""

    @property
    def accumulate(self) -> int:
        """Mini-batches of a step."""

    def cost(self, samples: int) -> StepCost:
        """A step on so many samples, alone on the device."""

    def trace(self, samples: int) -> Trace:
        """The operators of a mini-batch of such a step, and of the optimizer."""

    def timed(self, trace: Trace) -> Timed:
        """How long each of them takes."""


@dataclass(frozen=True, kw_only=True)
class Traced:
    """Every operator priced by a device model."""

    level: Level
    words: str
    doubt: str
    device: DeviceModel
    batches: Batches
    jitter: float = 0.0
    accumulate: int = 1

    def cost(self, samples: int) -> StepCost:
        """The sum of the operators."""
        return replace(
            accumulated(step_cost(self.trace(samples), self.device), self.accumulate), samples=samples
        )

    def trace(self, samples: int) -> Trace:
        """The subject's."""
        return self.batches.trace(-(-samples // self.accumulate))

    def timed(self, trace: Trace) -> Timed:
        """As the device has it."""
        return self.device.within(trace).seconds


def by_sheet(sheet: DeviceSheet, device: DeviceModel, batches: Batches, accumulate: int = 1) -> Traced:
    """A device that is known by its data sheet only."""
    return Traced(
        level="catalogue",
        words=f"{sheet.title} by its data sheet ({sheet.source}, {sheet.date})",
        doubt=f"a data sheet misses the real time of a step by a typical factor of {_factor(device.spread)}",
        device=device,
        batches=batches,
        accumulate=accumulate,
    )


def by_profile(profile: Profile, device: DeviceModel, batches: Batches, accumulate: int = 1) -> Traced:
    """A machine that was measured; the job was not."""
    return Traced(
        level="calibrated",
        words=f"profile {profile.name!r}, measured {profile.made}{_threads(profile)}"
        + told_disturbance(str(profile.machine.get(DISTURBED, ""))),
        doubt=f"the profile's own residuals, a typical factor of {_factor(device.spread)}",
        device=device,
        batches=batches,
        accumulate=accumulate,
    )


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A job whose step was measured on one worker; the trace only says when gradients are ready."""

    typical: Typical
    folder: str
    device: DeviceModel
    """By which a measured time is divided among its operators."""
    batches: Batches
    jitter: float = 0.0
    more: str = ""
    """Threads that the worker computed with, and what else computed there, as the rest of a sentence."""
    accumulate: int = 1
    level: Level = "profiled"

    @property
    def words(self) -> str:
        """The run."""
        return f"the typical step of {self.folder}, {self.typical.samples} samples{self.more}"

    @property
    def doubt(self) -> str:
        """What a repeated measurement varies by."""
        return f"a measured step repeats to a typical factor of {_factor(MEASURED_SPREAD)}"

    def cost(self, samples: int) -> StepCost:
        """As measured; another batch takes its part of all but the optimizer."""
        times, part = self.typical.times, samples / self.typical.samples
        return replace(
            accumulated(step_cost(self.trace(samples), self.device), self.accumulate),
            samples=samples,
            data=times.data * part,
            forward=(times.forward or 0.0) * part,
            backward=(times.backward or 0.0) * part,
            apply=times.apply,
            spread=MEASURED_SPREAD,
            unmeasured={},
        )

    def trace(self, samples: int) -> Trace:
        """The subject's."""
        return self.batches.trace(-(-samples // self.accumulate))

    def timed(self, trace: Trace) -> Timed:
        """Their parts of the measured phases."""
        modelled, measured = step_cost(trace, self.device), self.cost(trace.samples * self.accumulate)
        device = self.device.within(trace)

        def seconds(operator: Operator) -> float:
            whole: float = getattr(modelled, operator.phase)
            return device.seconds(operator) * float(getattr(measured, operator.phase)) / whole

        return seconds


class Nominal:
    """A device of no name: some operations and some bytes a second, to divide a known time by."""

    spread = 0.0
    unmeasured: Mapping[str, float] = {}

    def within(self, trace: Trace) -> "Nominal":  # noqa: ARG002
        return self

    def seconds(self, operator: Operator) -> float:
        """By operations and bytes."""
        return operator.flops / 5e10 + (operator.read + operator.written) / 1e10 + 2e-6


def _threads(profile: Profile) -> str:
    threads = profile.machine.get("threads")
    return "" if threads is None else told_threads(threads)


def told_threads(threads: int) -> str:
    """The rest of a sentence on what was measured."""
    return f", {threads} thread{'s' if threads > 1 else ''} a worker"


def told_disturbance(sentence: str) -> str:
    """The rest of a sentence on what was measured; empty where nothing disturbed it."""
    return f"; {sentence[0].lower()}{sentence[1:].removesuffix('.')}" if sentence else ""


def _factor(spread: float) -> str:
    """A spread of logarithms as people say it."""
    return f"{exp(spread):.3g}"
