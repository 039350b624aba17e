"""A machine that computes nothing else while it is measured: wait for it, and measure again what was disturbed."""

import time
from collections.abc import Callable
from typing import TypeVar

from paceline.errors import RunFailed
from paceline.records.load import HostLoad, LoadMeter, disturbance

PATIENCE = 60.0
"""Seconds that may be lost, by waiting and by measurements that are thrown away."""
WINDOW = 0.5
"""Seconds of a measurement, at least: the system counts CPU time in hundredths of a second."""
REMIND = 10.0
REMEDY = "stop them and calibrate again, or allow a busy machine, which marks the profile"

T = TypeVar("T")


class QuietMachine:
    """Runs measurements until nothing has disturbed them; gives up when its patience is at an end.

    Where a ``busy`` machine is accepted, nothing is waited for or repeated, and ``disturbance`` says what was going on.
    """

    def __init__(
        self,
        meter: LoadMeter,
        note: Callable[[str], None],
        *,
        busy: bool = False,
        patience: float = PATIENCE,
        window: float = WINDOW,
    ) -> None:
        self._meter, self._note, self._busy = meter, note, busy
        self._patience, self._window = patience, window
        self.lost = 0.0
        self._loads: list[tuple[float, HostLoad]] = []
        if not busy:
            self._wait()

    def measure(self, work: Callable[[], T]) -> T:
        """What the work found when nothing else computed; it should take half a second or more."""
        while True:
            self._meter.restart()
            found = work()
            seconds, load = self._meter.seconds, self._meter.load()
            if self._busy or not load.disturbed:
                self._loads.append((seconds, load))
                return found
            self._lose(seconds, load)
            self._wait()

    @property
    def disturbance(self) -> str:
        """A sentence on what disturbed all that was measured, as a mean; empty where nothing did."""
        if not self._loads:
            return ""
        whole = sum(seconds for seconds, _ in self._loads)
        others = sum(seconds * load.others for seconds, load in self._loads) / whole
        return disturbance([self._loads[0][1].with_others(others)], "the measurement")

    def _wait(self) -> None:
        said = float("-inf")
        while True:
            self._meter.restart()
            time.sleep(self._window)
            load = self._meter.load()
            if not load.disturbed:
                return
            self._lose(self._meter.seconds, load)
            if time.monotonic() - said >= REMIND:
                said = time.monotonic()
                self._note(
                    f"waiting for a quiet machine, for up to {self._patience - self.lost:.0f} s more: other processes "
                    f"use {load.words}"
                )

    def _lose(self, seconds: float, load: HostLoad) -> None:
        self.lost += seconds
        if self.lost > self._patience:
            raise RunFailed(
                f"other processes use {load.words}, and did so for {self.lost:.0f} s: what is measured now would make "
                f"predictions too slow, so nothing was written; {REMEDY}"
            )
