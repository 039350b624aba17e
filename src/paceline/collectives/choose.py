"""From a name to a schedule."""

from collections.abc import Callable
from typing import cast

from paceline.collectives.algorithms import SCHEDULES
from paceline.collectives.schedule import Hosts, Schedule
from paceline.errors import UsageError, unknown
from paceline.specs import find

NATIVE = "native"
"""The backend's own all-reduce; every other name is a schedule's."""


def check_collective(name: str) -> None:
    """Raise a UsageError where there is no such way to all-reduce."""
    if name != NATIVE and name not in SCHEDULES:
        raise unknown("collective", name, (NATIVE, *SCHEDULES))


def build_schedule(name: str, hosts: Hosts) -> Schedule:
    """The schedule of that name among these ranks."""
    if name not in SCHEDULES:
        raise unknown("schedule", name, SCHEDULES)
    if not hosts:
        raise UsageError("0 workers cannot reduce anything: a schedule needs at least 1 worker")
    return cast("Callable[[Hosts], Schedule]", find(SCHEDULES[name]))(hosts)
