"""First inside each host, then across: slow links between hosts carry as little as they can."""

from itertools import chain, zip_longest

from paceline.collectives.algorithms.ring import around
from paceline.collectives.algorithms.tree import from_first, towards_first
from paceline.collectives.schedule import Hosts, Round, Schedule, Transfer
from paceline.collectives.turns import Joined


def hierarchical(hosts: Hosts) -> Schedule:
    """A tree to each host's first rank, a ring among these, and the tree back; with one host, just the tree.

    Between h hosts 2 (h - 1) / h of the tensor travels, however many ranks they hold.
    """
    members = _members(hosts)
    chunks = len(members)
    inside = [towards_first(ranks, chunks) for ranks in members]
    outwards = [from_first(ranks, chunks) for ranks in members]
    parts = (
        _together("reduce in the host", inside),
        around([ranks[0] for ranks in members]),
        _together("broadcast in the host", outwards),
    )
    return Schedule("hierarchical", len(hosts), chunks, Joined(parts))


def _members(hosts: Hosts) -> list[list[int]]:
    """The ranks of each host, hosts in the order of their first ranks."""
    found: dict[int, list[int]] = {}
    for rank, host in enumerate(hosts):
        found.setdefault(host, []).append(rank)
    return list(found.values())


def _together(phase: str, trees: list[list[tuple[Transfer, ...]]]) -> list[Round]:
    """All hosts at the same time; a small one is done before a large one."""
    return [Round(phase, tuple(chain(*sends))) for sends in zip_longest(*trees, fillvalue=())]
