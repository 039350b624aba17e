"""Links and contention as training meets them: small networks that are trained by all workers at once.

A link that is measured on idle cores looks better than it is in a step, where a worker that is told something has to
get a core first. So gradients are averaged as in training, and count as what that adds to a step whose workers only
meet. All is measured in turn, round after round: a machine that is faster in one second than in the next is so for
all of it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from paceline.clusters.profile import LinkFit
from paceline.errors import RunFailed
from paceline.records.load import HostLoad, LoadMeter, disturbance
from paceline.runtimes.live.process_info import ProcessInfo, job_roots
from paceline.studies.calibrate.groups import Averaging, groups
from paceline.studies.calibrate.kernels import (
    IMAGES,
    WIDTHS,
    Averaged,
    Plain,
    bucket_bytes,
    dense,
    images,
    repeated,
)
from paceline.studies.calibrate.link_fit import Point, fit_contention, fit_link, fit_wire
from paceline.studies.collectives.group import BenchGroup, BenchInterrupted
from paceline.studies.collectives.probe import EXCHANGES, Prober

LONG = 32
"""Steps between two meetings of those who meet seldom."""
APART = ("images", "420")
"""The networks that are also trained for long without a meeting."""
ROUNDS = 9
LEAST, MOST = 8, 80
"""Timed turns of one kind in a round; after a pause, a network needs some of them to find its pace."""
AT_ONCE = 8
"""Short turns that follow each other, of which the mean counts."""


@dataclass(frozen=True, kw_only=True)
class ContentionFit:
    """What was found with so many workers."""

    workers: int
    short: float
    """How many times as long computing takes with all workers at it, who meet again at once."""
    long: float
    """The same where they never meet."""
    links: tuple[LinkFit, ...]
    disturbed: str = ""
    """What else computed meanwhile, in a sentence; empty where nothing did."""


@dataclass
class _Round:
    """Seconds of one round, each by network; what is compared was measured within a second or two."""

    alone: dict[str, float] = field(default_factory=dict)
    short: dict[str, float] = field(default_factory=dict)
    long: dict[str, float] = field(default_factory=dict)
    averaged: dict[tuple[str, str], float] = field(default_factory=dict)
    """By way and network."""


def calibrate_links(
    place: ProcessInfo,
    *,
    beside: float = 1.0,
    rounds: int = ROUNDS,
    turn: float = 0.15,
    beat: Callable[[int], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
    busy: bool = False,
) -> ContentionFit | None:
    """Measure with all other workers of a launch, who must call this too; None where somebody was asked to stop.

    Workers of one host measure shared memory and Gloo on the loopback, those of several hosts the network between
    them. Hosts that are one machine compute ``beside`` times as long together, as was measured there before. A turn
    of one kind takes about so many seconds. All workers return the same. Unless a ``busy`` machine is accepted, rounds
    during which something else computed are measured again, and RunFailed is raised where too many were.
    """
    torch.set_num_threads(1)
    with BenchGroup(place, stopping) as room:
        meter = LoadMeter(job_roots(place), place.local_workers) if place.local_rank == 0 else None
        try:
            return _Probe(room, turn, beside, meter).go(rounds, beat, busy=busy)
        except BenchInterrupted:
            return None


class _Probe:
    def __init__(self, room: BenchGroup, turn: float, beside: float, meter: LoadMeter | None) -> None:
        self._room, self._turn, self._beside, self._meter = room, turn, beside, meter
        self._ways: Mapping[str, Averaging] = groups(room)
        dense_nets = {str(width): Plain(dense(width)) for width in WIDTHS}
        self._plain = {"images": Plain(images(), IMAGES), **dense_nets}
        self._averaged = {
            (way, str(width)): Averaged(dense(width), group)
            for way, group in self._ways.items()
            for width in WIDTHS
        }

    def go(self, rounds: int, beat: Callable[[int], None], *, busy: bool) -> ContentionFit:
        found: list[_Round] = []
        number, disturbed = 0, ""
        while len(found) < rounds:
            beat(number)
            one, loads = self._watched()
            number += 1
            if number == 1:  # it warms up
                continue
            if told := disturbance(loads, "the measurement"):
                disturbed = told
            if busy or not told:
                found.append(one)
            elif number > 2 * rounds + 1:
                raise RunFailed(f"{told} Nothing was written: stop them and calibrate again, or give --busy")
        together = self._conclude(found, self._wire(rounds))
        return replace(together, disturbed=disturbed if busy else "")

    def _watched(self) -> tuple[_Round, list[HostLoad]]:
        """A round, and what else computed on every host meanwhile; the same loads on all ranks."""
        if self._meter:
            self._meter.restart()
        one = self._round()
        told = self._room.exchange(asdict(self._meter.load()) if self._meter else None)
        return one, [HostLoad(**load) for load in told if load]

    def _wire(self, rounds: int) -> LinkFit | None:
        """What a message between two hosts takes, with nothing else under way and no part of an all-reduce."""
        if "network" not in self._ways:
            return None
        prober = Prober(self._room, rounds * self._turn)
        line = prober.exchange("across", self._room.first_of_each_host())
        found: Any = prober.measured
        points = [(one["bytes"], one["seconds"] / EXCHANGES) for one in found]
        return fit_wire(line, points, self._room.workers)

    def _round(self) -> _Round:
        one = _Round()
        for name, step in self._plain.items():
            one.alone[name] = alone = self._alone(step)
            one.short[name] = self._together(step, 1, alone)
            if name in APART:
                one.long[name] = self._together(step, LONG, alone)
        for key, averaged in self._averaged.items():
            one.averaged[key] = self._timed(averaged)
        return one

    def _alone(self, step: Plain) -> float:
        """One worker computes while all others sleep, who must not even look whether it is done."""
        seconds = 0.0
        if self._room.rank == 0:
            step()
            calls, begun = 0, time.perf_counter()
            while time.perf_counter() - begun < self._turn:
                step()
                calls += 1
            seconds = (time.perf_counter() - begun) / calls
        told: float = self._room.exchange(seconds)[0]
        return told

    def _together(self, step: Plain, steps: int, alone: float) -> float:
        """Seconds of a step with all workers at it, who meet after so many, as quickly as there is a way to."""
        if "memory" not in self._ways:
            return self._beside * alone
        work, meet = repeated(step, steps), self._ways["memory"].meet

        def turn() -> None:
            work()
            meet()

        return self._timed(turn) / steps

    def _timed(self, turn: Callable[[], None]) -> float:
        """Seconds of a turn in a row of them, by the slowest worker: the median of means of a few that follow."""
        (once,) = self._many(turn, 1)
        times = self._many(turn, max(LEAST, min(MOST, int(self._turn / once))))
        few = AT_ONCE if len(times) >= 3 * AT_ONCE else 1
        means = (sum(times[at : at + few]) / few for at in range(0, len(times) - few + 1, few))
        return self._room.slowest([median(means)])[0]

    def _many(self, turn: Callable[[], None], times: int) -> list[float]:
        """Seconds of each turn; for a single one, the slowest worker's."""
        self._room.align()
        marks = [time.perf_counter()]
        for _ in range(times):
            turn()
            marks.append(time.perf_counter())
        found = [later - earlier for earlier, later in pairwise(marks)]
        return self._room.slowest(found) if times == 1 else found

    def _conclude(self, rounds: Sequence[_Round], wire: LinkFit | None) -> ContentionFit:
        short, long = fit_contention(_factors(rounds))
        return ContentionFit(
            workers=self._room.workers,
            short=short,
            long=long,
            links=(*(self._fit(way, rounds, wire) for way in self._ways), *([wire] if wire else [])),
        )

    def _fit(self, way: str, rounds: Sequence[_Round], wire: LinkFit | None) -> LinkFit:
        points = []
        for net in map(str, WIDTHS):
            # In steps of one worker alone, so that slow rounds count as much as quick ones.
            alone = median(one.alone[net] for one in rounds)
            beside = alone * median(one.short[net] / one.alone[net] for one in rounds)
            added = alone * median(
                (one.averaged[way, net] - one.short[net]) / one.alone[net] for one in rounds
            )
            points.append(Point(sizes=bucket_bytes(self._plain[net].flat), added=added, beside=beside))
        return fit_link(way, self._room.hosts, points, wire=1 / wire.bandwidth if wire else None)


def _factors(rounds: Sequence[_Round]) -> list[tuple[float, float]]:
    """Seconds that one worker alone computes between two meetings, and how many times as long it takes with all."""
    found = []
    for net in rounds[0].alone:
        alone = median(one.alone[net] for one in rounds)
        found.append((alone, median(one.short[net] / one.alone[net] for one in rounds)))
        if net in APART:
            found.append((LONG * alone, median(one.long[net] / one.alone[net] for one in rounds)))
    return found
