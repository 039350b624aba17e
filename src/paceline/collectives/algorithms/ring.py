"""The ring: everybody passes one chunk at a time to the right (Patarasuk and Yuan, 2009)."""

from collections.abc import Sequence

from paceline.collectives.schedule import Hosts, Round, Schedule, Then, Transfer
from paceline.collectives.turns import Joined, Turns


def ring(hosts: Hosts) -> Schedule:
    """Share-reduce leaves each rank one finished chunk after n - 1 rounds; n - 1 of share-only pass them on.

    No rank sends more than 2 (n - 1) / n of the tensor, which is the least possible; latency grows with n.
    """
    workers = len(hosts)
    return Schedule("ring", workers, workers, around(range(workers)))


def around(members: Sequence[int]) -> Joined:
    """The rounds of a ring among these ranks, of as many chunks as there are members."""
    count = len(members)
    share_reduce = _round(members, 0, "share-reduce", Then.REDUCE)
    share_only = _round(members, count - 1, "share-only", Then.REPLACE)
    return Joined((Turns(share_reduce, count - 1, count), Turns(share_only, count - 1, count)))


def _round(members: Sequence[int], step: int, phase: str, then: Then) -> Round:
    """The member in place p sends chunk p - step: the one that it received, and reduced, the round before."""
    count = len(members)
    sends = ((place, (place - step) % count) for place in range(count))
    return Round(
        phase,
        tuple(
            Transfer(members[place], members[(place + 1) % count], chunk, chunk + 1, then)
            for place, chunk in sends
        ),
    )
