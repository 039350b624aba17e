"""Calibrate what computes here: random networks until the time is up, then the fit, then the profile."""

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from paceline.clusters.profile import DEFAULT_PATH, DISTURBED, Profile
from paceline.costs.fitted import FittedDevice
from paceline.errors import RunFailed, UsageError
from paceline.records.folder import environment, try_writing
from paceline.records.load import LoadMeter, disturbance, usable_cores
from paceline.runtimes.threads import VARIABLE, usual_threads
from paceline.studies.calibrate.device_fit import DeviceFit, fit_device
from paceline.studies.calibrate.layers import draw_layer
from paceline.studies.calibrate.measure import (
    MeasuredNetwork,
    measure,
    measure_cipher,
    measure_limits,
    measure_page,
)
from paceline.studies.calibrate.networks import MOST_WORK, draw_network

USUAL_SECONDS = 180.0
LEAST_SECONDS, MOST_SECONDS = 2.0, 3600.0
LAYERS_SHARE = 0.15
WHOLE_EVERY = 3
FEWEST_NETWORKS = 8
SEED = 1_000_003

PATIENCE = 60.0
"""Seconds that may be lost, by waiting and by measurements that are thrown away."""
WINDOW = 0.5
"""Seconds of a measurement, at least: the system counts CPU time in hundredths of a second."""
REMIND = 10.0

Measured = list[MeasuredNetwork]
T = TypeVar("T")


class BusyMachine(RunFailed):
    """Other processes computed during all that was tried; the command line has its own words for the ``remedy``."""

    def __init__(self, found: str, remedy: str = "or allow a busy machine, which marks the profile") -> None:
        super().__init__(f"{found}; stop them and calibrate again, {remedy}")
        self.found = found


class QuietMachine:
    """Runs measurements until nothing has disturbed them; raises BusyMachine when that takes too long.

    Where a ``busy`` machine is accepted, nothing is waited for or repeated, and ``disturbance`` says what was going on.
    """

    def __init__(self, meter: LoadMeter, note: Callable[[str], None], *, busy: bool = False) -> None:
        self._meter, self._note, self._busy = meter, note, busy
        self.lost, self._said = 0.0, float("-inf")
        if not busy:
            self._wait()

    def measure(self, work: Callable[[], T]) -> T:
        """What the work found when nothing else computed; it should take half a second or more."""
        if self._busy:
            return work()
        while True:
            self._meter.restart()
            found = work()
            if not self._disturbed():
                return found
            self._wait()

    @property
    def disturbance(self) -> str:
        return disturbance([self._meter.load()], "the measurement") if self._busy else ""

    def _wait(self) -> None:
        disturbed = True
        while disturbed:
            self._meter.restart()
            time.sleep(WINDOW)
            disturbed = self._disturbed()

    def _disturbed(self) -> bool:
        """Whether something else computed since the meter was restarted: that time is lost."""
        load = self._meter.load()
        if not load.disturbed:
            return False
        self.lost += self._meter.seconds
        if self.lost > PATIENCE:
            raise BusyMachine(
                f"other processes use {load.words}, and did so for {self.lost:.0f} s: what is measured now would make "
                "predictions too slow, so nothing was written"
            )
        if time.monotonic() - self._said >= REMIND:
            self._said = time.monotonic()
            self._note(
                f"waiting for a quiet machine, for up to {PATIENCE - self.lost:.0f} s more: other processes "
                f"use {load.words}"
            )
        return True


def calibrate_device(
    seconds: float | None,
    threads: int | None = None,
    name: str | None = None,
    *,
    show: Callable[[float, str], None],
    note: Callable[[str], None],
    busy: bool = False,
) -> tuple[Profile, DeviceFit]:
    """Measure for ``seconds`` seconds, fit, which takes a few seconds more, and make a new profile of this machine.

    None is the usual time, number of threads or host name. Waits until nothing else computes, measures again what was
    disturbed, and raises BusyMachine where that takes too long; unless a ``busy`` machine is accepted. ``show`` gets
    the share that is done, and the rest in words.
    """
    seconds, threads = USUAL_SECONDS if seconds is None else seconds, check_threads(threads)
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise UsageError(
            f"{seconds:g} seconds are out of range: give {LEAST_SECONDS:g} to {MOST_SECONDS:g}, "
            f"for example {USUAL_SECONDS:g}"
        )
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        quiet = QuietMachine(LoadMeter(wanted=threads), note, busy=busy)
        limits, page = quiet.measure(lambda: (measure_limits(), measure_page()))
        networks, layers = _measure_networks(seconds, show, quiet)
        disturbed = quiet.disturbance
        note(f"fitting the times of {len(networks)} networks, which takes some seconds more")
        device, found = fit_device(networks, layers, limits, page)
    finally:
        torch.set_num_threads(before)
    profile = replace(make_profile(device, threads, name), cipher=measure_cipher())
    return mark_disturbed(profile, disturbed), replace(found, threads=threads, disturbed=disturbed)


def _measure_networks(
    seconds: float, show: Callable[[float, str], None], quiet: QuietMachine
) -> tuple[Measured, Measured]:
    begun = time.monotonic() - quiet.lost
    networks: Measured = []
    layers: Measured = []
    with torch.random.fork_rng(devices=()):
        while (spent := time.monotonic() - begun - quiet.lost) < seconds or len(networks) < FEWEST_NETWORKS:
            if spent > 10 * seconds + 60:
                raise RunFailed(f"only {len(networks)} networks could be measured in {spent:.0f} s")
            few, single = quiet.measure(partial(_measure_few, len(networks), len(layers), seconds >= 30))
            networks += few
            layers += single
            show(min(1.0, spent / seconds), f"{len(networks)} network{'s' * (len(networks) != 1)}")
    return networks, layers


def _measure_few(networks: int, layers: int, long: bool) -> tuple[Measured, Measured]:
    """The next after ``networks`` and ``layers`` of them. The first are small, so that a short time has several."""
    few: Measured = []
    single: Measured = []
    start = time.monotonic()
    while not few or time.monotonic() - start < WINDOW:
        number = networks + len(few)
        torch.manual_seed(SEED + number)
        work = MOST_WORK if long and number >= FEWEST_NETWORKS else MOST_WORK / 100
        few.append(measure(*draw_network(SEED + number, work), whole=number % WHOLE_EVERY == 0))
    end = start + (time.monotonic() - start) / (1 - LAYERS_SHARE)
    while time.monotonic() < end:
        number = layers + len(single)
        single.append(measure(*draw_layer(SEED + 500_000 + number, number), whole=False))
    return few, single


def check_threads(threads: int | None) -> int:
    most, said = usable_cores(), "threads" if threads is not None else VARIABLE
    threads = usual_threads() if threads is None else threads
    if not 1 <= threads <= most:
        raise UsageError(f"{said}={threads} does not fit this machine: give 1 to {most}, its cores")
    return threads


def check_out(out: Path) -> None:
    if out.is_dir() or not out.parent.is_dir():
        raise UsageError(f"{out} is a folder, or lies in none; give a file, for example {DEFAULT_PATH}")
    try:
        try_writing(out.parent)
    except OSError as error:
        raise UsageError(f"{out} cannot be written ({error.strerror}): name another file") from error


def make_profile(device: FittedDevice, threads: int, name: str | None) -> Profile:
    here = environment()
    machine = {part: here[part] for part in ("cpu", "cores", "usable_cores", "memory_bytes", "platform")}
    return Profile(
        name=name or socket.gethostname(),
        made=now(),
        versions={part: str(here[part]) for part in ("paceline", "torch", "python")},
        machine=machine | {"threads": threads},
        device=device.to_json(),
    )


def mark_disturbed(profile: Profile, disturbed: str) -> Profile:
    return replace(profile, machine={**profile.machine, DISTURBED: disturbed}) if disturbed else profile


def now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
