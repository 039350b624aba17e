"""What each schedule costs on uniform links, on paper: the formulas that the priced schedules must equal.

One worker a host, each host with a link that carries both ways at once; a round ends when its last message has been
taken in. The tensor is cut into equal chunks; where it cannot be, the longest chunk sets the pace.
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
    """2 L (a + X b) + L X c with L = ceil(log2 n).

    L rounds towards the first rank, each of whole tensors that are reduced, and L rounds back. In a round every rank
    is in at most one pair.
    """
    return ceil_log2(workers) * (link.reducing(size) + link.round(size))


def butterfly(workers: int, size: float, link: Uniform) -> float:
    """L (a + X b + X c) with L = log2 p, p the largest power of two up to n; and the fold where p < n.

    Partners swap whole tensors, at the same time in both directions, and both reduce.
    """
    return floor_log2(workers) * link.reducing(size) + fold(workers, size, link)


def halving_doubling(workers: int, size: float, link: Uniform) -> float:
    """2 L a + 2 (p - 1)/p X b + (p - 1)/p X c with L = log2 p; and the fold where p < n.

    The halving rounds send and reduce X/2, X/4, ..., X/p, which add up to (p - 1)/p X; the doubling rounds send the
    same sizes in the other order.
    """
    sizes = [size / 2**step for step in range(1, floor_log2(workers) + 1)]
    swaps = sum(link.reducing(part) + link.round(part) for part in sizes)
    return swaps + fold(workers, size, link)


def fold(workers: int, size: float, link: Uniform) -> float:
    """2 (a + X b) + X c where n is no power of two: surplus ranks hand their tensors in, and get the result."""
    return link.reducing(size) + link.round(size) if workers & (workers - 1) else 0.0


def one_to_all(workers: int, size: float, link: Uniform) -> float:
    """2 a + 2 (n - 1) X b + c X, or with (n - 1) X c + X b in the gathering where reducing is slower than the link.

    All n - 1 tensors come through the master's link in one round, one after the other, and each is reduced while
    the next one travels (``overlapped``). The way back is n - 1 tensors through the same link.
    """
    if workers == 1:
        return 0.0
    many = (workers - 1) * size
    gather = link.latency + overlapped(many, many, size, link.byte_seconds, link.reduce_seconds)
    return gather + link.round(many)


def overlapped(
    total: float, reduced: float, message: float, byte_seconds: float, reduce_seconds: float
) -> float:
    """max(b B + c m, b (B - R + m) + c R): B bytes come, R of them in messages of m bytes that are reduced.

    What is only put in place comes first, as in a pipeline, whose earlier segments are in later rounds; each message
    is reduced while the next one travels. Reduced message i has come after b (B - R + i m), and it and all later ones
    are still to be reduced: the end is the largest of b (B - R + i m) + c (R - (i - 1) m). That is linear in i, so
    the last message or the first one decides: the link is busy all the time and one reduction is left, or one
    message comes in and from then on reducing never stops. Where messages differ, with m the largest, no order of
    them takes longer than this.
    """
    if not reduced:
        return byte_seconds * total
    last = byte_seconds * total + reduce_seconds * message
    return max(last, byte_seconds * (total - reduced + message) + reduce_seconds * reduced)


def hierarchical(hosts: int, per_host: int, size: float, link: Uniform, inside: Uniform) -> float:
    """The tree inside: 2 (L a' + (k - 1) X b') + L X c with L = ceil(log2 k); the ring of h hosts in between.

    The k workers of a host share its memory: the pairs of a round go through it together, and there are k - 1 pairs
    in all.
    """
    rounds, copies = ceil_log2(per_host), (per_host - 1) * size
    within = 2 * (rounds * inside.latency + copies * inside.byte_seconds)
    return within + rounds * size * inside.reduce_seconds + ring(hosts, size, link)


def ceil_log2(number: int) -> int:
    """The rounds in which 1 can become ``number`` by doubling."""
    return (number - 1).bit_length()


def floor_log2(number: int) -> int:
    """The rounds that the largest power of two up to ``number`` needs."""
    return number.bit_length() - 1


CLOSED_FORMS: Mapping[str, Callable[[int, float, Uniform], float]] = MappingProxyType(
    {
        "ring": ring,
        "tree": tree,
        "butterfly": butterfly,
        "halving-doubling": halving_doubling,
        "one-to-all": one_to_all,
        "hierarchical": ring,
    }
)
"""By schedule, for one worker a host; there, a hierarchy is the ring among the hosts."""
