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

MOST_CHECKED = 32
"""Ranks up to which a user's own schedule is played before it is used: the play grows with their cube."""

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
    """Refuse a user's own schedule whose ranks do not all end with every rank's part once."""
    import numpy as np

    function = find_schedule(name)
    if not len(hosts):
        raise UsageError("0 workers cannot reduce anything: a schedule needs at least 1 worker")
    schedule = function(np.asarray(hosts))
    if name not in SCHEDULES and schedule.workers <= MOST_CHECKED:
        check_reduces(schedule, name)
    return schedule


def check_reduces(schedule: "Schedule", name: str) -> None:
    """Play the schedule on counts: how often each rank's part is in each chunk of each rank."""
    import numpy as np

    ranks = schedule.workers
    counts = np.repeat(np.eye(ranks, dtype=np.int64)[:, None], schedule.chunks, axis=1)
    for turn in schedule.each_round():
        for rank in (*turn.sources, *turn.targets):
            if not 0 <= rank < ranks:
                raise UsageError(f"schedule {name!r} of {ranks} workers is wrong: it names rank {rank}")
        before = counts.copy()
        for source, target, start, stop, reduces in zip(*turn.columns, strict=True):
            sent = before[source, start:stop]
            counts[target, start:stop] = counts[target, start:stop] + sent if reduces else sent
    wrong = np.argwhere(counts != 1)
    if len(wrong):
        rank, chunk, part = wrong[0]
        raise UsageError(
            f"schedule {name!r} of {ranks} workers is wrong: chunk {chunk} of rank {rank} ends with rank {part}'s "
            f"part {counts[rank, chunk, part]} times; send every rank's part to every other once"
        )
