"""A step by the closed path: one worker of each group stands for all of its group, so 100,000 cost what one costs."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline.runtimes.virtual.simulate import simulate
from paceline.strategies.base import SyncPoint
from paceline.strategies.consistency import Quorum, StalenessBound
from paceline.strategies.parameter_server import ParameterServer
from paceline.studies.predict.events import settings_of, shape_of
from paceline.studies.predict.extremes import expected_maximum, mean_factor, sum_of
from paceline.studies.predict.few import Few, slower
from paceline.studies.predict.parts import COMPUTING, Noted, Parts, mean_step
from paceline.studies.predict.window import Notes, Pace, Weighted


def in_step(few: Few) -> bool:
    """Whether all workers of a kind do the same at the same time, so that one of them can stand for all."""
    if any(group.host.churn for group in few.cluster.groups):
        return False
    if not few.strategy.served:
        # Between averages by the clock, workers that vary take different numbers of steps.
        return not few.jitter or few.strategy.sync_point is SyncPoint.EVERY_STEP
    # What a server spends on each message depends on how they come in, one by one.
    return waits_for_all(few.strategy) and not few.times.serve


def waits_for_all(strategy: object) -> bool:
    """Whether its servers let nobody go on before all have handed in."""
    return isinstance(strategy, ParameterServer) and strategy.rule in (Quorum(0), StalenessBound(0))


def by_folding(few: Few) -> Parts:
    """The step of workers that do not vary."""
    return _pace(few).long_run(_simulation(few))


def by_slowest(few: Few) -> Parts:
    """The step of workers that vary and meet in collectives: all go at the pace of the slowest.

    The slowest takes the expected maximum from one meeting to the next. A worker's own time is the mean, and it waits
    for the rest. Transfers go on behind the slowest's backward, and so they do for those who already wait for it.
    """
    counted = _pace(few).counted(_simulation(few))
    longest = _stretch(few, counted)
    parts = mean_step(_pace(few).counted(_simulation(replace(few, cost=slower(few.cost, longest)))))
    own = mean_factor(few.jitter) / longest
    computing = {kind: getattr(parts, kind) for kind in COMPUTING}
    wait = parts.wait + (1 - own) * sum(computing.values())
    shorter = {kind: own * seconds for kind, seconds in computing.items()}
    return replace(parts, **shorter, wait=wait)


def _stretch(few: Few, counted: Weighted) -> float:
    """How many times as long as without jitter the slowest worker computes from one meeting to the next."""
    kinds = [(_stretches(steps), many) for steps, many in counted]
    if not kinds[0][0]:
        return mean_factor(few.jitter)
    still = slowest = 0.0
    for meeting in range(len(kinds[0][0])):
        still += max(sum(found[meeting]) for found, _ in kinds)
        slowest += expected_maximum([(sum_of(found[meeting], few.jitter), many) for found, many in kinds])
    return slowest / still


def _stretches(steps: Sequence[Noted]) -> list[list[float]]:
    """What a worker computes before each of its exchanges, by the draws of jitter that it depends on."""
    found: list[list[float]] = []
    current: list[float] = []
    for one in steps:
        current.append(one.computing - one.after)
        if one.sent:
            found.append(current)
            current = [one.after] if one.after else []
    # What follows the last exchange comes before the first one of the next time round.
    if found:
        found[0] = current + found[0]
    return found


def _pace(few: Few) -> Pace:
    alone = (few.cost.data + few.cost.compute) / max(few.paces)
    return Pace(strategy=few.strategy, spec=few.setup.strategy, alone=alone, workers=len(few.paces))


def _simulation(few: Few) -> Callable[[int], Weighted]:
    def simulated(steps: int) -> Weighted:
        notes, settings = Notes(), settings_of(few.setup, len(few.paces), steps)
        shape = shape_of(few.setup, settings)
        simulate(
            settings,
            shape,
            few.cluster,
            few.costs,
            gradients=False,
            strategy=few.strategy,
            recorder=notes,
            server_groups=few.places,
        )
        return [(notes.steps[rank], group.workers) for rank, group in enumerate(few.groups)]

    return simulated
