"""All-reduce schedules by name; one function each in ``algorithms.py``, and this table is the only other place."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from paceline.errors import UsageError, unknown
from paceline.specs import find, load

if TYPE_CHECKING:
    from paceline.collectives.schedule import Ranks, Schedule

NATIVE = "native"
"""The backend's own all-reduce; every other name is a schedule's."""

SCHEDULES: Mapping[str, str] = MappingProxyType(
    {
        "ring": "paceline.collectives.algorithms:ring",
        "tree": "paceline.collectives.algorithms:tree",
        "butterfly": "paceline.collectives.algorithms:butterfly",
        "halving-doubling": "paceline.collectives.algorithms:halving_doubling",
        "one-to-all": "paceline.collectives.algorithms:one_to_all",
        "hierarchical": "paceline.collectives.algorithms:hierarchical",
        "pairwise": "paceline.collectives.algorithms:pairwise",
    }
)
"""Each name leads to a function from the hosts of all ranks to a ``Schedule``; a user's own goes by import path."""


def check_collective(name: str) -> None:
    if name != NATIVE and name not in SCHEDULES and ":" not in name:
        raise unknown("collective", name, (NATIVE, *SCHEDULES))


def find_schedule(name: str) -> "Callable[[Ranks], Schedule]":
    if name not in SCHEDULES and ":" not in name:
        raise unknown("schedule", name, SCHEDULES)
    found = find(SCHEDULES[name]) if name in SCHEDULES else load(name, "collective")
    return cast("Callable[[Ranks], Schedule]", found)


def build_schedule(name: str, hosts: Sequence[int]) -> "Schedule":
    import numpy as np

    function = find_schedule(name)
    if not len(hosts):
        raise UsageError("0 workers cannot reduce anything: a schedule needs at least 1 worker")
    return function(np.asarray(hosts))
