"""How the tensors of many ranks become one: each function makes the schedule for ranks on the given hosts.

``paceline explain`` shows a function's first line, and the first line after it.
"""

import numpy as np

from paceline.collectives.schedule import Ranks, Round, Schedule, reducing, replacing


def ring(hosts: Ranks) -> Schedule:
    """The ring: every rank passes one chunk at a time to the right (Patarasuk and Yuan, 2009).

    Share-reduce leaves each rank one finished chunk after n - 1 rounds; n - 1 of share-only pass them on.
    """
    workers = len(hosts)
    return Schedule("ring", workers, workers, _around(np.arange(workers)))


def all_gather(hosts: Ranks) -> Schedule:
    workers = len(hosts)
    return Schedule("all-gather", workers, workers, _around(np.arange(workers))[1:])


def _around(members: Ranks) -> tuple[Round, ...]:
    """A ring among these ranks, of as many chunks; a rank sends on what it received, and reduced, the round before."""
    count = len(members)
    if count == 1:
        return ()
    right, mine = np.roll(members, -1), np.arange(count)
    done = (mine + 1) % count
    return (
        reducing("share-reduce", members, right, mine, mine + 1, times=count - 1),
        replacing("share-only", members, right, done, done + 1, times=count - 1),
    )


def pairwise(hosts: Ranks) -> Schedule:
    """Pairwise exchange: every rank sums one chunk for all the others, and sends it to each of them.

    In round k rank r sends to rank r + k: n - 1 rounds bring all parts of a chunk together, n - 1 hand the sums out.
    """
    return _pairwise(hosts, [(far, 1) for far in range(1, len(hosts))])


def pairwise_alike(hosts: Ranks) -> Schedule:
    """As ``pairwise`` for prices: rounds in which every rank sends to another host are alike, and written once."""
    return _pairwise(hosts, _offsets(hosts))


def _pairwise(hosts: Ranks, offsets: list[tuple[int, int]]) -> Schedule:
    ranks, workers = np.arange(len(hosts)), len(hosts)
    rounds = list[Round]()
    for far, times in offsets:
        target = (ranks + far) % workers
        rounds.append(reducing("reduce-scatter", ranks, target, target, target + 1, times))
    for far, times in offsets:
        rounds.append(replacing("all-gather", ranks, (ranks + far) % workers, ranks, ranks + 1, times))
    return Schedule("pairwise", workers, workers, tuple(rounds))


def all_to_all(hosts: Ranks) -> Schedule:
    """Every rank sends a chunk to every other, by pairwise exchange, for prices."""
    rounds = pairwise_alike(hosts).rounds
    return Schedule("all-to-all", len(hosts), len(hosts), rounds[len(rounds) // 2 :])


def _offsets(hosts: Ranks) -> list[tuple[int, int]]:
    """How far all ranks send in one round after the other, and how many such rounds are alike."""
    workers, most = len(hosts), int(np.unique(hosts, return_counts=True)[1].max())
    if most == workers:
        return [(1, workers - 1)] if workers > 1 else []
    found = [(far, 1) for far in range(1, workers)]
    if 2 * most <= workers:
        found[most - 1 : workers - most] = [(most, workers + 1 - 2 * most)]
    return found


def tree(hosts: Ranks) -> Schedule:
    """The binomial tree: sums flow to rank 0 and the result flows back.

    ceil(log2 n) rounds halve the ranks that still have something to send; as many hand the result back.
    """
    together = np.zeros(len(hosts), np.int64)
    up, down = _trees(together, 1, "reduce", "broadcast")
    return Schedule("tree", len(hosts), 1, (*up, *down))


def hierarchical(hosts: Ranks) -> Schedule:
    """First inside each host, then across: slow links between hosts carry as little as they can.

    A tree to each host's first rank, a ring among these, and the tree back; with one host, just the tree.
    """
    ranks, place = _by_host(hosts)
    firsts = ranks[place == 0]
    up, down = _trees(hosts, len(firsts), "reduce in the host", "broadcast in the host")
    return Schedule("hierarchical", len(hosts), len(firsts), (*up, *_around(firsts), *down))


def _trees(hosts: Ranks, chunks: int, upwards: str, downwards: str) -> tuple[list[Round], list[Round]]:
    """A tree on every host at the same time: at distance 1, 2, 4, ... the right one of a pair sends left, and back."""
    ranks, place = _by_host(hosts)
    up, down = list[Round](), list[Round]()
    for far in _distances(int(place.max()) + 1):
        sends = np.flatnonzero(place % (2 * far) == far)
        right, left = ranks[sends], ranks[sends - far]
        up.append(reducing(upwards, right, left, 0, chunks))
        down.insert(0, replacing(downwards, left, right, 0, chunks))
    return up, down


def _by_host(hosts: Ranks) -> tuple[Ranks, Ranks]:
    """The ranks host by host, hosts in the order of their first ranks; and each one's place on its host."""
    _, first, number = np.unique(hosts, return_index=True, return_inverse=True)
    ranks = np.argsort(first[number], kind="stable")
    first_of = first[number][ranks]
    return ranks, np.arange(len(ranks)) - np.searchsorted(first_of, first_of)


def butterfly(hosts: Ranks) -> Schedule:
    """The butterfly: recursive doubling of the whole tensor.

    In round k, ranks that differ in bit k swap all they have, and both reduce: log2 n rounds and no way back.
    """
    ranks = np.arange(_power_of_two(len(hosts)))
    swaps = [reducing("swap", ranks, ranks ^ far, 0, 1) for far in _distances(len(ranks))]
    return Schedule("butterfly", len(hosts), 1, _folded(len(hosts), 1, swaps))


def halving_doubling(hosts: Ranks) -> Schedule:
    """Halving and doubling (Rabenseifner, 2004): a ring's little traffic in a tree's few rounds, for powers of two.

    Partners at distance 1, 2, 4, ... halve what they are responsible for; the way back doubles it again.
    """
    power = _power_of_two(len(hosts))
    ranks = np.arange(power)
    rounds = [
        reducing("halving", ranks, ranks ^ far, *_share(power, ranks ^ far, far)) for far in _distances(power)
    ]
    for far in reversed(_distances(power)):
        rounds.append(replacing("doubling", ranks, ranks ^ far, *_share(power, ranks, far)))
    return Schedule("halving-doubling", len(hosts), power, _folded(len(hosts), power, rounds))


def _share(power: int, ranks: Ranks, far: int) -> tuple[Ranks, Ranks]:
    """The chunks that ranks are responsible for once partners up to this distance have halved them."""
    starts, size = np.zeros(power, np.int64), power
    for bit in range(far.bit_length()):
        size //= 2
        starts += size * (ranks >> bit & 1)
    return starts, starts + size


def _folded(workers: int, chunks: int, rounds: list[Round]) -> tuple[Round, ...]:
    power = _power_of_two(workers)
    surplus = np.arange(power, workers)
    if not len(surplus):
        return tuple(rounds)
    before = reducing("fold", surplus, surplus - power, 0, chunks)
    return (before, *rounds, replacing("hand back", surplus - power, surplus, 0, chunks))


def one_to_all(hosts: Ranks) -> Schedule:
    """One to all: a master gathers every tensor and sends the result back, as a parameter server does.

    Two rounds, and n - 1 whole tensors through rank 0's link in each: the master is the limit.
    """
    others = np.arange(1, len(hosts))
    master = np.zeros_like(others)
    rounds = (reducing("gather", others, master, 0, 1), replacing("send back", master, others, 0, 1))
    return Schedule("one-to-all", len(hosts), 1, rounds if len(others) else ())


def _power_of_two(workers: int) -> int:
    return 1 << (workers.bit_length() - 1)


def _distances(workers: int) -> list[int]:
    return [1 << power for power in range((workers - 1).bit_length())]
