"""Where compute times come from: a data sheet, a measured machine, or the job's own step; traces by batch size."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import torch

from paceline.clusters.catalogue import DeviceSheet, NetworkSheet
from paceline.clusters.profile import DISTURBED, Profile
from paceline.costs.device import DeviceModel, StepCost, accumulated, step_cost
from paceline.costs.fitted import read_fitted
from paceline.costs.recorded import RecordedStep, recorded_jitter, typical_step
from paceline.costs.roofline import FORMATS, TORCH, WIDTHS, Roofline, dtype_name
from paceline.costs.trace.operator import PHASES, Operator
from paceline.costs.trace.trace import Trace
from paceline.errors import UsageError
from paceline.jobs.build import traceable_of, traceable_of_job
from paceline.jobs.job import Job, Traceable
from paceline.records.folder import RunFolder
from paceline.records.load import disturbance
from paceline.records.summary import recorded_loads
from paceline.runtimes.config import read_run
from paceline.runtimes.learners import find_count
from paceline.runtimes.threads import HostCapacity
from paceline.strategies.base import LearnerPlan
from paceline.studies.predict.prediction import Level, ModuleCost
from paceline.studies.predict.request import PredictRequest
from paceline.studies.predict.script import is_script, script_step

SMALLEST = 2
"""A batch of one is a special case to some operators, so no line is drawn through it."""
MEASURED_SPREAD = 0.05
"""Of a measured step: standard deviation of the logarithm over repeated runs."""
PRECISIONS: Mapping[str, str] = {
    TORCH: "FP32 with TF32 tensor cores in convolutions",
    "fp32": "FP32",
    "tf32": "TF32 tensor cores in convolutions and matrix products",
    "fp16": "FP16 mixed precision",
    "bf16": "BF16 mixed precision",
}


class BatchTraces:
    """Traces on demand, by the number of samples.

    Whatever an operator counts is constant or grows in proportion to the batch, so a small and a large batch are traced
    and those in between interpolated; where the two differ in operators, each batch is traced by itself.
    """

    def __init__(self, tracer: Callable[[int], Trace]) -> None:
        self._largest = 0
        self._make, self.trace = cache(tracer), cache(self._find)

    def _find(self, samples: int) -> Trace:
        if SMALLEST < samples < self._largest:
            between = interpolate(self._make(SMALLEST), self._make(self._largest), samples)
            if between is not None:
                return between
        self._largest = max(self._largest, samples)
        return self._make(samples)


def interpolate(small: Trace, large: Trace, samples: int) -> Trace | None:
    part = (samples - small.samples) / (large.samples - small.samples)
    phases: dict[str, Any] = {}
    for phase in PHASES:
        ends = getattr(small, phase), getattr(large, phase)
        kinds = [[(one.name, one.kind, one.module, type(one.shape)) for one in end] for end in ends]
        if kinds[0] != kinds[1] or small.parameters != large.parameters:
            return None
        phases[phase] = tuple(
            # The largest tensor is not linear: a weight with a small batch may be an activation with a large one.
            replace(
                _interpolated(one, two, part),
                elements=max(one.elements, round(two.elements * samples / large.samples)),
            )
            for one, two in zip(*ends, strict=True)
        )
    inputs = round(small.inputs + (large.inputs - small.inputs) * part)
    return replace(large, samples=samples, inputs=inputs, **phases)


def _interpolated(one: Any, two: Any, part: float) -> Any:
    if one is None or isinstance(one, (bool, str, torch.dtype)):
        return one
    if isinstance(one, int | float):
        value = one + (two - one) * part
        return round(value) if isinstance(one, int) else value
    if isinstance(one, tuple):
        return tuple(_interpolated(*pair, part) for pair in zip(one, two, strict=True))
    names = [field.name for field in fields(one)]
    return type(one)(**{name: _interpolated(getattr(one, name), getattr(two, name), part) for name in names})


@dataclass(frozen=True, kw_only=True)
class ComputeTimes:
    """The cost of a worker's step by its batch size.

    Every operator is priced by a device model. Where the job's step was measured on one worker, ``typical`` is the
    step, and the device model only divides it among its operators.
    """

    level: Level
    words: str
    device: DeviceModel
    traces: BatchTraces
    accumulate: int = 1
    jitter: float = 0.0
    """By how much the steps of one worker vary, where that was recorded."""
    typical: RecordedStep | None = None
    data: float = 0.0
    """Seconds to load one sample, where that was measured; a device model knows nothing of data."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cost", cache(self.cost))

    @property
    def spread(self) -> float:
        return self.device.spread if self.typical is None else MEASURED_SPREAD

    def cost(self, samples: int) -> StepCost:
        """A step alone on the device; of a measured step, another batch takes its share of all but the optimizer."""
        modelled = accumulated(step_cost(self.trace(samples), self.device), self.accumulate)
        if self.typical is None:
            step = replace(modelled.step, data=self.data * samples)
            return replace(modelled, samples=samples, step=step)
        measured = self.typical.step
        step = replace(measured * (samples / self.typical.samples), apply=measured.apply)
        return replace(modelled, samples=samples, step=step, spread=MEASURED_SPREAD, unmeasured={})

    def cost_with(self, plan: LearnerPlan, samples: int) -> StepCost:
        """A step of all learners of a worker, each of ``samples`` samples; the plan leaves nothing open.

        In turn it is as many gradients. Together it is one of all their samples, in which forward and backward move the
        parameters of the further learners as often as the optimizer does. There is one optimizer for all learners.
        """
        one, count = self.cost(samples), plan.count or 1
        apply = self._apply(samples, count)
        if plan.compute == "in-turn":
            return replace(one, samples=count * samples, step=replace(one.step * count, apply=apply))
        whole, further = self.cost(count * samples), apply - one.step.apply
        forward, backward = whole.step.forward + further / 3, whole.step.backward + further * 2 / 3
        return replace(whole, step=replace(whole.step, forward=forward, backward=backward, apply=apply))

    def _apply(self, samples: int, learners: int) -> float:
        """One optimizer's step on the parameters of all learners."""
        if self.typical is not None or learners == 1:
            return learners * self.cost(samples).step.apply
        trace = self.trace(samples)
        device = self.device.within(trace)
        return sum(device.seconds(_on_more(one, learners)) for one in trace.apply)

    def decide(self, plan: LearnerPlan, samples: int, most: int) -> LearnerPlan:
        """What a plan leaves open, by the rule of a run that measures it; ``most`` learners have data."""

        def fastest(count: int) -> LearnerPlan:
            plans = [LearnerPlan(count=count, compute=plan.compute)]
            if plan.compute == "auto":
                plans = [LearnerPlan(count=count), LearnerPlan(count=count, compute="together")]
            return min(plans, key=lambda one: self.cost_with(one, samples).step.compute)

        def rates(count: int) -> list[float]:
            return [count * samples / self.cost_with(fastest(count), samples).step.compute]

        return fastest(plan.count or find_count(rates, most))

    def trace(self, samples: int) -> Trace:
        """Of one mini-batch of such a step, and of the optimizer."""
        found = self.traces.trace(-(-samples // self.accumulate))
        if self.level == "calibrated":
            _check_measured(found)
        return found

    def timed(self, trace: Trace) -> Callable[[Operator], float]:
        device = self.device.within(trace)
        if self.typical is None:
            return device.seconds
        modelled, measured = step_cost(trace, self.device), self.cost(trace.samples * self.accumulate)

        def seconds(operator: Operator) -> float:
            whole: float = getattr(modelled.step, operator.phase)
            return device.seconds(operator) * float(getattr(measured.step, operator.phase)) / whole

        return seconds

    def modules(self, batch: int) -> tuple[ModuleCost, ...]:
        trace = self.trace(batch)
        seconds, times = self.timed(trace), self.accumulate
        modules: dict[str, list[Operator]] = {}
        for operator in (*trace.forward, *trace.backward):
            modules.setdefault(operator.module, []).append(operator)
        whole = sum(seconds(operator) for operators in modules.values() for operator in operators) or 1.0
        return tuple(
            ModuleCost(
                module=module or "(model)",
                kinds=", ".join(dict.fromkeys(one.kind for one in operators)),
                flops=times * sum(one.flops for one in operators),
                bytes=float(times * sum(one.read + one.written for one in operators)),
                forward=times * sum(seconds(one) for one in operators if one.phase == "forward"),
                backward=times * sum(seconds(one) for one in operators if one.phase == "backward"),
                share=sum(map(seconds, operators)) / whole,
            )
            for module, operators in modules.items()
        )


def _on_more(operator: Operator, times: int) -> Operator:
    """The same call on so many times the elements."""
    counted = {name: times * getattr(operator, name) for name in ("flops", "read", "written", "elements")}
    return replace(operator, **counted)


def _check_measured(trace: Trace) -> None:
    """Refuse a step in another dtype than that of the operators that a calibration measures."""
    for dtype in trace.dtypes:
        if dtype != torch.float32:
            other = "give a device that has matrix units for it, such as a100"
            if dtype == torch.float64:
                other = "train it on one worker and give that run as times"
            raise UsageError(
                f"a profile is measured in float32, and {trace.place(dtype)} computes in {dtype_name(dtype)}; "
                f"convert the model with .float(), or {other}"
            )


class NominalDevice(DeviceModel):
    """A device with some operations and some bytes a second, to divide a known time by."""

    spread = 0.0

    def seconds(self, operator: Operator) -> float:
        return operator.flops / 5e10 + (operator.read + operator.written) / 1e10 + 2e-6


def subject_of_run(folder: RunFolder) -> Traceable | Job:
    return script_step(folder) if is_script(folder) else traceable_of_job(read_run(folder).settings.job)


def find_subject(request: PredictRequest) -> Traceable | Job:
    if request.times is not None:
        return subject_of_run(RunFolder(request.times))
    if request.job is not None:
        return traceable_of_job(request.job)
    assert request.model is not None, "a request that names nothing to train is refused"
    optimizer = request.optimizer or "sgd"
    return traceable_of(request.model, shape=request.shape, classes=request.classes, optimizer=optimizer)


def find_compute(
    request: PredictRequest,
    subject: Traceable | Job,
    profile: Profile | None,
    sheet: DeviceSheet | None,
    traces: BatchTraces,
) -> ComputeTimes:
    device: DeviceModel | None = (
        None if profile is None else read_fitted(profile.device, str(request.profile))
    )
    if request.times is not None:
        return by_run(RunFolder(request.times), device or NominalDevice(), traces, subject.accumulate)
    if profile is not None:
        level: Level = "calibrated"
        words = profile_words(profile)
    elif sheet is not None:
        level, device = "catalogue", roofline(request, sheet)
        words = sheet_words(sheet)
    if device is None:
        raise UsageError(
            f"how fast does a worker compute? cluster {request.cluster} names no device; give one, a profile or times"
        )
    accumulate = request.accumulate or 1
    return ComputeTimes(level=level, words=words, device=device, traces=traces, accumulate=accumulate)


def by_run(folder: RunFolder, device: DeviceModel, traces: BatchTraces, accumulate: int = 1) -> ComputeTimes:
    typical, host = typical_step(folder), HostCapacity.of_run(folder)
    words = f"the typical step of {folder.path}, {typical.samples} samples"
    return ComputeTimes(
        level="profiled",
        words=_measured(
            words, host.threads if host else None, disturbance(recorded_loads(folder), "that run")
        ),
        device=device,
        traces=traces,
        accumulate=accumulate,
        jitter=recorded_jitter(folder),
        typical=typical,
    )


def sheet_words(sheet: DeviceSheet | NetworkSheet) -> str:
    return f"{sheet.title} by its data sheet ({sheet.source}, {sheet.date})"


def profile_words(profile: Profile) -> str:
    threads, disturbed = profile.machine.get("threads"), profile.machine.get(DISTURBED, "")
    return _measured(f"profile {profile.name!r}, measured {profile.made}", threads, disturbed)


def _measured(source: str, threads: int | None, disturbed: str) -> str:
    """``disturbed`` is a sentence on what else computed meanwhile, or empty."""
    each = "" if threads is None else f", {threads} thread{'s' if threads > 1 else ''} per worker"
    return f"{source}{each}" + (f". {disturbed.removesuffix('.')}" if disturbed else "")


def roofline(request: PredictRequest, sheet: DeviceSheet) -> Roofline:
    return Roofline(sheet=sheet, format=request.precision or TORCH, threads=request.threads or 0)


def is_mixed(request: PredictRequest) -> bool:
    return WIDTHS[request.precision or TORCH] < WIDTHS[TORCH]


def precision_words(
    request: PredictRequest, sheet: DeviceSheet | None, subject: Traceable | Job, trace: Trace
) -> str:
    """What the step computes in; ``sheet`` is that of the device, where its times come from one."""
    names = [FORMATS.get(one, dtype_name(one)) for one in trace.dtypes if one != torch.float32]
    own = " and ".join(one.upper() for one in names if one != request.precision)
    if torch.float32 not in trace.dtypes:
        return f"{' and '.join(names).upper()}, the model's own dtype"
    if sheet is not None:
        words = PRECISIONS[request.precision or TORCH]
        if request.precision in (None, TORCH):
            words = f"{PRECISIONS[TORCH if 'tf32' in sheet.tensor_flops else 'fp32']} (PyTorch's default)"
        return f"{words}, {own} where the model's own tensors are" if own else words
    if subject.precision == "fp32":
        return ""
    if request.times is not None:
        return f"{PRECISIONS[subject.precision]}, as in that run"
    return f"FP32, as it was measured, though the job computes in {subject.precision.upper()}"


def narrower_format(request: PredictRequest, sheet: DeviceSheet | None, trace: Trace) -> str | None:
    """The format of mixed precision that a named device has matrix units for, where it would change anything."""
    if sheet is None or request.device is None or is_mixed(request) or torch.float32 not in trace.dtypes:
        return None
    return next((name for name in ("bf16", "fp16") if name in sheet.tensor_flops), None)
