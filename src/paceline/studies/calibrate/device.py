"""Calibrate what computes here: random networks until the time is up, then the fit."""

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from paceline.costs.devices.fitted import Fitted
from paceline.errors import RunFailed, UsageError
from paceline.records.load import LoadMeter
from paceline.studies.calibrate.fit import Fit, fit_device
from paceline.studies.calibrate.measure import Measured, Probe, measure
from paceline.studies.calibrate.networks import MOST_WORK, draw_layer, draw_network
from paceline.studies.calibrate.peak import measure_limits, measure_page
from paceline.studies.calibrate.quiet import WINDOW, QuietMachine
from paceline.studies.calibrate.results import CalibrationObserver, DeviceFound, SilentCalibration

USUAL_SECONDS = 180.0
LEAST_SECONDS, MOST_SECONDS = 2.0, 3600.0
LAYERS_SHARE = 0.15
"""Of the time, for single layers of torch.nn."""
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
        raise UsageError(
            f"--seconds {seconds:g} is out of range: give {LEAST_SECONDS:g} to {MOST_SECONDS:g}, "
            f"for example {USUAL_SECONDS:g}"
        )
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    observer = observer or SilentCalibration()
    try:
        quiet = QuietMachine(LoadMeter(wanted=threads), observer, busy=busy)
        limits, page = quiet.measure(lambda: (measure_limits(), measure_page()))
        networks, layers = _networks(seconds, seed, observer, clock, quiet)
        observer.noted(f"fitting what {len(networks)} networks have shown, which takes some seconds more")
        fit = fit_device([*networks, *layers], limits, page)
    finally:
        torch.set_num_threads(before)
    return fit.device, replace(_found(fit, networks, layers, threads), disturbed=quiet.disturbance)


def _networks(
    seconds: float,
    seed: int,
    observer: CalibrationObserver,
    clock: Callable[[], float],
    quiet: QuietMachine,
) -> tuple[list[Measured], list[Measured]]:
    """Networks of the seed and single layers, as many as there is time for.

    The first networks are small, so that a short time has several. They are measured a few at a time, so that few have
    to be measured again.
    """
    begun, probe = clock() - quiet.lost, Probe()
    measured: list[Measured] = []
    layers: list[Measured] = []

    def some() -> tuple[list[Measured], list[Measured]]:
        few: list[Measured] = []
        single: list[Measured] = []
        start = clock()
        while not few or clock() - start < WINDOW:
            number = len(measured) + len(few)
            torch.manual_seed(seed * 1_000_003 + number)
            work = MOST_WORK if seconds >= 30 and number >= FEWEST_NETWORKS else MOST_WORK / 100
            network = draw_network(seed * 1_000_003 + number, work)
            few.append(measure(network, probe, whole=number % WHOLE_EVERY == 0))
        whole = (clock() - start) / (1 - LAYERS_SHARE)
        while clock() - start < whole:
            layer = draw_layer(seed, len(layers) + len(single))
            single.append(measure(layer, probe, whole=False))
        return few, single

    with torch.random.fork_rng(devices=()):
        while (spent := clock() - begun - quiet.lost) < seconds or len(measured) < FEWEST_NETWORKS:
            if spent > 10 * seconds + 60:
                raise RunFailed(f"only {len(measured)} networks could be measured in {spent:.0f} s")
            few, single = quiet.measure(some)
            measured += few
            layers += single
            observer.progressed(min(1.0, spent / seconds), f"{len(measured)} networks")
    return measured, layers


def _found(fit: Fit, networks: list[Measured], layers: list[Measured], threads: int) -> DeviceFound:
    return DeviceFound(
        threads=threads,
        networks=len(networks),
        layers=len(layers),
        operators=sum(len(one.operators) for one in (*networks, *layers)),
        dropped=fit.dropped,
        flops=fit.device.limits.flops,
        bandwidth=fit.device.limits.bandwidth,
        residuals={str(kind): off for kind, off in fit.residuals.items()},
        rates={str(kind): span for kind, span in fit.rates.items()},
        steps=fit.steps,
        spread=fit.device.spread,
    )
