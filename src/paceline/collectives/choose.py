"""From a name to a schedule."""

from collections.abc import Callable
from typing import cast

from paceline.collectives.algorithms import SCHEDULES
from paceline.collectives.schedule import Hosts, Schedule
from paceline.errors import Mistake, unknown
from paceline.specs import find


def build_schedule(name: str, hosts: Hosts) -> Schedule:
    """The schedule of that name among these ranks."""
    if name not in SCHEDULES:
        raise unknown("schedule", name, SCHEDULES)
    if not hosts:
        raise Mistake("0 workers cannot reduce anything: a schedule needs at least 1 worker")
    return cast("Callable[[Hosts], Schedule]", find(SCHEDULES[name]))(hosts)
