"""Calibrate what computes here: random networks until the time is up, then the fit."""

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from paceline.costs.devices.fitted import Fitted
from paceline.errors import Mistake, RunFailed
from paceline.records.calibration import CalibrationObserver, DeviceFound, SilentCalibration
from paceline.records.load import LoadMeter
from paceline.studies.calibrate.fit import Fit, fit_device
from paceline.studies.calibrate.measure import Measured, Probe, measure
from paceline.studies.calibrate.networks import MOST_WORK, draw_network
from paceline.studies.calibrate.peak import measure_limits, measure_page
from paceline.studies.calibrate.quiet import WINDOW, QuietMachine

USUAL_SECONDS = 180.0
LEAST_SECONDS, MOST_SECONDS = 2.0, 3600.0
WHOLE_EVERY = 3
"""Of so many networks one is measured as a whole step too."""
FEWEST_NETWORKS = 8


def calibrate_device(
    seconds: float = USUAL_SECONDS,
    *,
    threads: int = 1,
    seed: int = 1,
    observer: CalibrationObserver | None = None,
    clock: Callable[[], float] = time.monotonic,
    busy: bool = False,
) -> tuple[Fitted, DeviceFound]:
    """Measure for so many seconds, and fit; the fit itself takes a few seconds more.

    Sets torch's number of threads in this process and puts it back. Waits until nothing else computes, measures again
    what was disturbed, and raises RunFailed where that takes too long; unless a ``busy`` machine is accepted.
    """
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise Mistake(
            f"--seconds {seconds:g} is out of range: give {LEAST_SECONDS:g} to {MOST_SECONDS:g}, "
            f"for example {USUAL_SECONDS:g}"
        )
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    observer = observer or SilentCalibration()
    try:
        quiet = QuietMachine(LoadMeter(wanted=threads), observer, busy=busy)
        limits, page = quiet.measure(lambda: (measure_limits(), measure_page()))
        measured = _networks(seconds, seed, observer, clock, quiet)
        fit = fit_device(measured, limits, page)
    finally:
        torch.set_num_threads(before)
    return fit.device, replace(_found(fit, measured, threads), disturbed=quiet.disturbance)


def _networks(
    seconds: float,
    seed: int,
    observer: CalibrationObserver,
    clock: Callable[[], float],
    quiet: QuietMachine,
) -> list[Measured]:
    """Networks of the seed, as many as there is time for; the first are small, so that a short time has several.

    They are measured a few at a time, so that few have to be measured again.
    """
    begun, probe = clock() - quiet.lost, Probe()
    measured: list[Measured] = []

    def some() -> list[Measured]:
        few: list[Measured] = []
        until = clock() + WINDOW
        while not few or clock() < until:
            number = len(measured) + len(few)
            torch.manual_seed(seed * 1_000_003 + number)
            work = MOST_WORK if seconds >= 30 and number >= FEWEST_NETWORKS else MOST_WORK / 100
            network = draw_network(seed * 1_000_003 + number, work)
            few.append(measure(network, probe, whole=number % WHOLE_EVERY == 0))
        return few

    with torch.random.fork_rng(devices=()):
        while (spent := clock() - begun - quiet.lost) < seconds or len(measured) < FEWEST_NETWORKS:
            if spent > 10 * seconds + 60:
                raise RunFailed(f"only {len(measured)} networks could be measured in {spent:.0f} s")
            measured += quiet.measure(some)
            observer.progressed(min(1.0, spent / seconds), f"{len(measured)} networks")
    return measured


def _found(fit: Fit, measured: list[Measured], threads: int) -> DeviceFound:
    return DeviceFound(
        threads=threads,
        networks=fit.networks,
        operators=sum(len(one.operators) for one in measured),
        dropped=fit.dropped,
        flops=fit.device.limits.flops,
        bandwidth=fit.device.limits.bandwidth,
        residuals={str(kind): off for kind, off in fit.residuals.items()},
        rates={str(kind): span for kind, span in fit.rates.items()},
        steps=fit.steps,
        spread=fit.device.spread,
    )
