"""What each schedule costs on uniform links, on paper: the formulas that the priced schedules must equal.

One worker a host, each host with a link that carries both ways at once; a rank goes on as soon as it has what it waits
for. The tensor is cut into equal chunks and travels in one segment. Trees, butterflies and halving and doubling are
among powers of two.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Links that are all alike, in the letters of the literature."""

    latency: float
    """Alpha: seconds that a message of no bytes takes."""
    byte_seconds: float
    """Beta: seconds a byte on a link, 1 / bandwidth."""
    reduce_seconds: float = 0.0
    """Gamma: seconds a byte to combine what came with what is held."""

    def round(self, size: float) -> float:
        """One message of so many bytes, put in place."""
        return self.latency + size * self.byte_seconds

    def reducing(self, size: float) -> float:
        """One message of so many bytes, combined."""
        return self.round(size) + size * self.reduce_seconds


def ring(workers: int, size: float, link: Uniform) -> float:
    """2 (n - 1) (a + X b / n) + (n - 1) X c / n.

    n - 1 rounds pass 1/n of the tensor on and reduce it, n - 1 more pass the finished chunks on. Every rank sends to
    one and receives from one, so no link carries two messages.
    """
    return (workers - 1) * (link.reducing(size / workers) + link.round(size / workers))


def tree(workers: int, size: float, link: Uniform) -> float:
    """2 L a + (L + L (L + 1) / 2) X b + L X c with L = log2 n.

    On the way to the first rank, L rounds of whole tensors that are reduced. On the way back a rank has nothing to wait
    for between its messages, so the first rank sends L of them at once, which share its link; the one that gets
    furthest then sends L - 1, and so on.
    """
    rounds = ceil_log2(workers)
    back = sum(link.round(many * size) for many in range(1, rounds + 1))
    return rounds * link.reducing(size) + back


def butterfly(workers: int, size: float, link: Uniform) -> float:
    """L (a + X b + X c) with L = log2 n.

    Partners swap whole tensors, at the same time in both directions, and both reduce.
    """
    return ceil_log2(workers) * link.reducing(size)


def halving_doubling(workers: int, size: float, link: Uniform) -> float:
    """2 L a + 2 (n - 1)/n X b + (n - 1)/n X c with L = log2 n.

    The halving rounds send and reduce X/2, X/4, ..., X/n, which add up to (n - 1)/n X; the doubling rounds send the
    same sizes in the other order.
    """
    sizes = [size / 2**step for step in range(1, ceil_log2(workers) + 1)]
    return sum(link.reducing(part) + link.round(part) for part in sizes)


def one_to_all(workers: int, size: float, link: Uniform) -> float:
    """2 a + 2 (n - 1) X b + (n - 1) X c.

    All n - 1 tensors come through the master's link at the same time, sharing it, so that they are there together and
    are reduced then. The way back is n - 1 tensors through the same link.
    """
    many = (workers - 1) * size
    return link.reducing(many) + link.round(many) if many else 0.0


def hierarchical(hosts: int, per_host: int, size: float, link: Uniform, inside: Uniform) -> float:
    """The trees inside, of one or two workers, and the ring of h hosts in between."""
    within = inside.reducing(size) + inside.round(size) if per_host == 2 else 0.0
    return within + ring(hosts, size, link)


def ceil_log2(number: int) -> int:
    """The rounds in which 1 can become ``number`` by doubling."""
    return (number - 1).bit_length()


CLOSED_FORMS: Mapping[str, Callable[[int, float, Uniform], float]] = MappingProxyType(
    {
        "ring": ring,
        "tree": tree,
        "butterfly": butterfly,
        "halving-doubling": halving_doubling,
        "one-to-all": one_to_all,
        "hierarchical": ring,
        "pairwise": ring,
    }
)
"""By schedule, for one worker a host; there, a hierarchy is the ring among the hosts, and pairs take as long."""
