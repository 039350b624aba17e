"""A record of a real run as a measurement: what its typical step took, against what the device model says."""

from dataclasses import asdict, replace
from math import log
from typing import get_args

from paceline.clusters.profile import Profile
from paceline.costs.devices.base import StepCost, step_cost
from paceline.costs.devices.features import Limits
from paceline.costs.devices.fitted import Fitted, Overhead, read_fitted
from paceline.costs.recorded import Typical, check_alone, typical_step
from paceline.costs.trace.operator import Phase
from paceline.costs.trace.tracer import trace
from paceline.errors import UsageError
from paceline.jobs.subjects import subject_of_job
from paceline.records.folder import RunFolder
from paceline.records.load import disturbance
from paceline.records.summary import recorded_loads
from paceline.runtimes.config import read_config, read_run
from paceline.runtimes.threads import USUAL
from paceline.studies.calibrate.profile import make_profile, mark_disturbed, with_device
from paceline.studies.calibrate.results import RecordFound

PHASES: tuple[Phase, ...] = get_args(Phase)
PLAIN = Limits(flops=1e11, bandwidth=1e10)
"""Of a device that only a record is known of; the record then says by how much it is slower."""
PLAIN_SPREAD = log(1.5)


def profile_of_record(
    folder: RunFolder, threads: int | None = None, name: str | None = None
) -> tuple[Profile, RecordFound]:
    """A profile that knows one run of a worker; refuses ``threads`` that the run did not have."""
    had = _threads(folder)
    if had is not None and threads not in (None, had):
        raise UsageError(f"--threads {threads}: {folder.path} was run with {had} a worker; leave it out")
    device, found = correct_by_record(plain_device(), folder)
    return make_profile(device, had or threads or USUAL, name, _disturbed(folder)), found


def correct_profile(
    profile: Profile, folder: RunFolder, where: str, name: str | None = None
) -> tuple[Profile, RecordFound]:
    """The profile of the file ``where`` with its device corrected, and all else as it was."""
    had, there = _threads(folder), profile.machine.get("threads")
    if had is not None and there is not None and had != there:
        raise UsageError(
            f"{folder.path} was run with --threads {had} and {where} is of workers with {there}; record a run with "
            f"--threads {there}, or calibrate with --threads {had}"
        )
    device, found = correct_by_record(read_fitted(profile.device, where), folder)
    return mark_disturbed(with_device(profile, device, name), _disturbed(folder)), found


def _threads(folder: RunFolder) -> int | None:
    """With which the worker computed, where that is recorded."""
    threads = read_config(folder).machinery.get("threads")
    return threads if isinstance(threads, int) else None


def _disturbed(folder: RunFolder) -> str:
    return disturbance(recorded_loads(folder), f"the run {folder.path}")


def plain_device() -> Fitted:
    """A device of which nothing is known but that it computes and moves."""
    usual: dict[Phase, Overhead] = {phase: Overhead() for phase in PHASES}
    return Fitted(limits=PLAIN, peak=PLAIN.flops, curves={}, kinds={}, overheads=usual, spread=PLAIN_SPREAD)


def correct_by_record(device: Fitted, folder: RunFolder) -> tuple[Fitted, RecordFound]:
    """The device with each phase as long as it was in the run, and by how much it was off before."""
    check_alone(folder)
    typical = typical_step(folder)
    subject = subject_of_job(read_run(folder)[0].job)
    cost = step_cost(trace(subject, typical.samples), device)
    factors = {phase: _factor(typical, cost, phase) for phase in PHASES}
    overheads = {
        phase: Overhead(**{part: value * factors[phase] for part, value in asdict(one).items()})
        for phase, one in device.overheads.items()
    }
    # The peak is at least what the run has shown.
    peak = device.peak / min(1.0, *factors.values())
    found = RecordFound(
        folder=str(folder.path),
        name=subject.name,
        samples=typical.samples,
        measured={phase: getattr(typical.times, phase) or 0.0 for phase in PHASES},
        predicted={phase: getattr(cost, phase) for phase in PHASES},
    )
    return replace(device, peak=peak, overheads=overheads, _known={}), found


def _factor(typical: Typical, cost: StepCost, phase: Phase) -> float:
    measured = getattr(typical.times, phase)
    predicted = getattr(cost, phase)
    return float(measured / predicted) if measured and predicted else 1.0
