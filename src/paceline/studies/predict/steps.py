"""How long a step takes, for one strategy on one cluster."""

from dataclasses import replace

from paceline.strategies.consistency import StalenessBound
from paceline.strategies.parameter_server import ParameterServer
from paceline.studies.predict.base import Setup, Step
from paceline.studies.predict.bound import find_bounds
from paceline.studies.predict.closed import by_folding, by_slowest, in_step, waits_for_all
from paceline.studies.predict.events import by_events
from paceline.studies.predict.few import Few, few_of
from paceline.studies.predict.parts import Parts
from paceline.studies.predict.served import by_arrivals, by_capacity

WITH_ONE, WITH_SEVERAL = 64, 16
"""Pairs of a worker and a server, with one server and with several, up to which training with servers is simulated:
where workers vary or do not wait for all. That takes seconds; beyond, what links and servers can carry decides."""


def predict_step(setup: Setup) -> Step:
    """The step of a worker in the long run. A UsageError says what cannot be predicted.

    By the closed path wherever there is one; else every worker is simulated.
    """
    return explained_step(few_of(setup))


def explained_step(few: Few) -> Step:
    """The same, of a setup that is folded already."""
    step = _unexplained(few)
    bound, besides, link = find_bounds(few, _step)
    return replace(step, bound=bound, besides=besides, link=link, cipher=few.cipher)


def unexplained_step(setup: Setup) -> Step:
    """The same without looking for what bounds it, which takes several times as long."""
    return _unexplained(few_of(setup))


def _unexplained(few: Few) -> Step:
    parts = None if _is_simulated(few) else closed(few)
    return by_events(few.setup).as_step("events") if parts is None else parts.as_step("closed")


def closed(few: Few) -> Parts | None:
    """The step without simulating every worker; None where that is not known to be right."""
    if in_step(few):
        if not few.jitter:
            return by_folding(few)
        return by_arrivals(few) if few.strategy.served else by_slowest(few)
    spread_out = isinstance(few.strategy, ParameterServer) and isinstance(few.strategy.rule, StalenessBound)
    comes_and_goes = any(group.host.churn for group in few.cluster.groups)
    return by_capacity(few) if spread_out and not comes_and_goes else None


def _is_simulated(few: Few) -> bool:
    if not few.strategy.served or (not few.jitter and waits_for_all(few.strategy)):
        return False
    servers = len(few.places)
    return few.workers * servers <= (WITH_ONE if servers == 1 else WITH_SEVERAL)


def _step(few: Few) -> float:
    """The closed path's answer, or what is nearest to one: for comparisons."""
    parts = closed(few) or by_folding(replace(few, jitter=0.0))
    return parts.step
