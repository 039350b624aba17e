"""A record of a real run as a measurement: what its typical step took, against what the device model predicts."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import log
from pathlib import Path
from typing import Any

from paceline.clusters.profile import Profile, read_profile
from paceline.costs.device import step_cost
from paceline.costs.fitted import DevicePeaks, FittedDevice, Overhead, read_fitted
from paceline.costs.recorded import check_alone, typical_step
from paceline.costs.trace.operator import PHASES, Phase
from paceline.costs.trace.trace import trace
from paceline.errors import UsageError
from paceline.jobs.build import traceable_of_job
from paceline.records.folder import RunFolder
from paceline.records.load import disturbance
from paceline.records.summary import recorded_loads
from paceline.runtimes.config import read_config, read_run
from paceline.runtimes.threads import USUAL
from paceline.studies.calibrate.device import make_profile, mark_disturbed, now

PLAIN = DevicePeaks(flops=1e11, bandwidth=1e10)
PLAIN_SPREAD = log(1.5)


@dataclass(frozen=True, kw_only=True)
class RecordFit:
    """A recorded run's typical step beside what the device model predicted for it, in seconds by phase."""

    folder: str
    name: str
    samples: int
    measured: Mapping[Phase, float]
    predicted: Mapping[Phase, float]

    @property
    def error(self) -> float:
        return sum(self.predicted.values()) / sum(self.measured.values()) - 1

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "error": self.error}


def calibrate_by_record(
    folder: RunFolder, base: Path | None = None, threads: int | None = None, name: str | None = None
) -> tuple[Profile, RecordFit]:
    """The profile ``base`` with its device corrected, and all else as it was; without one, a profile of one rate.

    ``threads`` are those of a run that does not record them, and refused where it or the profile has others.
    """
    known = None if base is None else read_profile(base)
    recorded = read_config(folder).machinery.get("threads")
    had = recorded if isinstance(recorded, int) else threads
    there = known.machine.get("threads") if known else None
    for whose, other in (("asked for", threads), (f"in the profile {base}", there)):
        if had is not None and other not in (None, had):
            raise UsageError(
                f"{folder.path} was run with {had} threads per worker, and {other} are {whose}; record a run with "
                f"{other}, or calibrate with {had}"
            )
    device = plain_device() if known is None else read_fitted(known.device, str(base))
    device, found = _correct(device, folder)
    if known is None:
        profile = make_profile(device, had or USUAL, name)
    else:
        profile = replace(known, device=device.to_json(), made=now(), name=name or known.name)
    return mark_disturbed(profile, disturbance(recorded_loads(folder), f"the run {folder.path}")), found


def plain_device() -> FittedDevice:
    usual = dict.fromkeys(PHASES, Overhead())
    return FittedDevice(
        limits=PLAIN, peak=PLAIN.flops, curves={}, kinds={}, overheads=usual, spread=PLAIN_SPREAD
    )


def _correct(device: FittedDevice, folder: RunFolder) -> tuple[FittedDevice, RecordFit]:
    check_alone(folder)
    typical, samples, _ = typical_step(folder)
    subject = traceable_of_job(read_run(folder).settings.job)
    step = step_cost(trace(subject, samples), device).step
    measured = {phase: getattr(typical, phase) for phase in PHASES}
    predicted = {phase: getattr(step, phase) for phase in PHASES}
    factors = {
        phase: measured[phase] / predicted[phase] if measured[phase] and predicted[phase] else 1.0
        for phase in PHASES
    }
    overheads = {
        phase: Overhead(**{part: value * factors[phase] for part, value in asdict(one).items()})
        for phase, one in device.overheads.items()
    }
    # The peak is at least what the run has shown.
    peak = device.peak / min(1.0, *factors.values())
    found = RecordFit(
        folder=str(folder.path), name=subject.name, samples=samples, measured=measured, predicted=predicted
    )
    return replace(device, peak=peak, overheads=overheads, _known={}), found
