"""Where a training runs: groups of equal hosts, what computes on them and what connects them."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, islice, pairwise
from typing import Annotated, Any, Literal, Self

from msgspec import Meta

from paceline.clusters.catalogue import DeviceSheet, NetworkSheet
from paceline.clusters.toml_reader import Count, Factor, Rate, Seconds
from paceline.errors import UsageError
from paceline.records.spans import StepBreakdown
from paceline.specs.ranges import NotNegative, Positive, Range, RangeChecked, at_least, check_ranges
from paceline.units import show_rate, show_seconds

Backend = Literal["shm", "gloo"]

MOST_HOSTS = 1_000_000
Hosts = Annotated[int, Meta(ge=1, le=MOST_HOSTS)]
Processes = Annotated[int, Meta(ge=0, le=MOST_HOSTS), at_least(0)]
"""Of one host."""
JITTER = Range("between 0 (none) and 2, for example 0.1", lambda value: 0 <= value <= 2)


@dataclass(frozen=True, kw_only=True)
class Device(RangeChecked):
    name: str = "device"
    speed: Positive = 1.0
    """2 computes in half the stated times."""
    reduce_seconds: NotNegative = 0.0
    """Seconds a byte to combine what a collective brings with what is held; 0 where it is not stated."""
    sheet: DeviceSheet | None = None
    memory: NotNegative = 0.0
    """Bytes, of each worker of a GPU and of all workers of a host that share a CPU; 0 where it is not stated."""


@dataclass(frozen=True, kw_only=True)
class Link(RangeChecked):
    bandwidth: Positive
    """Bytes a second, each way at once."""
    latency: NotNegative
    """Seconds from one end to the other; between two hosts the larger of theirs counts."""

    @classmethod
    def of(cls, sheet: NetworkSheet, devices: int = 1) -> Self:
        together = max(devices, 1) if sheet.inside else 1
        return cls(bandwidth=sheet.bandwidth * together, latency=sheet.latency)

    def __str__(self) -> str:
        return f"{show_rate(self.bandwidth)}, {show_seconds(self.latency)}"


MEMORY = Link(bandwidth=4e9, latency=20e-6)
"""Between processes of one host, unless the description says otherwise: Gloo over loopback on a small machine
moves about 4 GB/s in all, however many workers share it."""

BUSY = 1 + 1e-9
"""A contention that slows nobody down: it says that all cores are taken, so that transfers hide behind nothing."""

CIPHER = 2e9
"""Bytes a second that one process encrypts and sends, or receives and decrypts, unless it was measured: AES-GCM and the
system's copies take about 0.5 ns a byte on a core of a present-day server."""


def _check_contention(factors: Sequence[float], where: str) -> None:
    if factors and factors[0] != 1:
        raise UsageError(
            f"contention of {where} begins with {factors[0]:g}: the first factor is that of one worker alone, 1"
        )


def contention_factor(factors: Sequence[float], workers: int) -> float:
    """How many times as long computing takes with ``workers`` at it; 1 where nothing is stated.

    Beyond the numbers that are known, the slope of the last two goes on.
    """
    if not factors or workers < 1:
        return 1.0
    if workers <= len(factors):
        return factors[workers - 1]
    slope = factors[-1] - factors[-2] if len(factors) > 1 else 0.0
    return factors[-1] + max(0.0, slope) * (workers - len(factors))


@dataclass(frozen=True, kw_only=True)
class Host:
    name: str = field(compare=False)
    link: Link
    workers: Processes = 1
    servers: Processes = 0
    """How many servers may run here; where no host states any, they are spread over all hosts."""
    device: Device = Device()
    inside: Link = MEMORY
    start: Seconds = 0.0
    """When its workers begin, in seconds; later ones join a run under way."""
    steps: Count | None = None
    """After how many steps its workers leave; None: they stay to the end."""
    dies: Seconds | None = None
    """When its workers die, in seconds; None: never."""
    contention: tuple[Factor, ...] = ()
    """How many times as long computing takes with 1, 2, 3... of its workers at it; the first is 1."""
    backend: Backend = "shm"
    """How its workers all-reduce among themselves: in shared memory, or by Gloo through what is inside."""

    def __post_init__(self) -> None:
        check_ranges(self)
        _check_contention(self.contention, f"host {self.name!r}")
        if self.dies is not None and not self.start < self.dies:
            raise UsageError(
                f"dies = {self.dies:g} s on host {self.name!r} is impossible: it must be after its start at "
                f"{self.start:g} s"
            )

    @property
    def churn(self) -> list[str]:
        """The settings by which its workers join late or leave early, as a description names them."""
        given = {"start": self.start > 0, "steps": self.steps is not None, "dies": self.dies is not None}
        return [name for name, there in given.items() if there]


def takes_turn(rank: int, step: int, turns: int) -> bool:
    """Whether a slowed rank is slow in a step: always, or for ``turns`` steps in turn with as many at full speed.

    Even ranks begin with their slow steps and odd ones with their fast ones, so that two of them take turns.
    """
    return turns == 0 or (step // turns + rank) % 2 == 0


@dataclass(frozen=True, kw_only=True)
class StepTimes(RangeChecked):
    """What a cluster states, for a worker's whole mini-batch on a device of speed 1, in seconds.

    It holds a step and, other than a ``StepBreakdown``, what is done outside of one, by servers too.
    """

    step: StepBreakdown | None = None
    """Data, forward, backward and apply; None where nothing is stated."""
    evaluate: Seconds | None = None
    """Evaluating as many samples as a mini-batch has; None takes as long as forward."""
    checkpoint: Seconds = 0.0
    serve: Seconds = 0.0
    aggregate: Seconds = 0.0
    """What a server spends on each gradient of an update, once all of them have arrived."""
    coding: Rate = 0.0
    """Bytes a second that a codec reads and writes where it encodes and decodes; 0: that takes no time."""
    jitter: Annotated[float, Meta(ge=0, le=2, description=JITTER.rule), JITTER] = 0.0
    """Spread of the compute times: 0 is none, 0.1 varies a typical step by a tenth, drawn from the seed."""


@dataclass(frozen=True)
class HostGroup:
    host: Host
    count: int = 1
    names: tuple[str, ...] = field(default=(), compare=False)
    """Of each host; where empty, several are called ``name-0``, ``name-1``..., counted from ``first``."""
    first: int = field(default=0, compare=False)

    @property
    def workers(self) -> int:
        return self.count * self.host.workers

    def name(self, index: int) -> str:
        if self.names:
            return self.names[index]
        return self.host.name if self.count == 1 else f"{self.host.name}-{self.first + index}"

    def part(self, start: int, stop: int) -> "HostGroup":
        if stop - start == 1:
            return HostGroup(replace(self.host, name=self.name(start)))
        return HostGroup(self.host, stop - start, self.names[start:stop], self.first + start)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Hosts behind a switch that is never the bottleneck; ranks fill the hosts in order."""

    groups: tuple[HostGroup, ...]
    times: StepTimes = StepTimes()
    name: str = "cluster"
    contention: tuple[float, ...] = ()
    """As a host's, for all workers together: of hosts that are one machine, such as containers or namespaces."""
    cipher: float = 0.0
    """Bytes a second, each way, that one process can encrypt: messages to servers on other hosts are. 0 where
    encryption never slows a link down."""

    def __post_init__(self) -> None:
        _check_contention(self.contention, "the cluster")
        if not self.groups:
            raise UsageError("0 hosts are no cluster: hosts must be at least 1")
        if self.workers < 1:
            raise UsageError("0 workers cannot train: at least one host must have workers")

    @classmethod
    def of(cls, hosts: Iterable[Host], **settings: Any) -> Self:
        return cls(groups=_grouped(hosts), **settings).check_names()

    def with_hosts(self, hosts: Iterable[Host]) -> Self:
        return replace(self, groups=_grouped(hosts)).check_names()

    def check_names(self) -> Self:
        names = Counter(group.name(index) for group in self.groups for index in range(group.count))
        ((name, many),) = names.most_common(1)
        if many > 1:
            raise UsageError(f"two hosts are called {name!r}; every host needs a name of its own")
        return self

    def map_hosts(self, change: Callable[[Host], Host]) -> Self:
        return replace(self, groups=tuple(replace(group, host=change(group.host)) for group in self.groups))

    @cached_property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(
            replace(group.host, name=group.name(index))
            for group in self.groups
            for index in range(group.count)
        )

    @cached_property
    def host_count(self) -> int:
        return sum(group.count for group in self.groups)

    @cached_property
    def workers(self) -> int:
        return sum(group.workers for group in self.groups)

    def slowdown(self, host: Host) -> float:
        """How many times as long a worker of a host computes because others share its machine."""
        others = contention_factor(self.contention, self.workers)
        return contention_factor(host.contention, host.workers) * others

    def check_workers(self, workers: int) -> None:
        if workers != self.workers:
            raise UsageError(
                f"{workers} workers contradict the cluster, which has {self.workers} on {self.host_count} hosts; "
                "leave the number of workers out or change the cluster"
            )

    def place_servers(self, servers: int) -> tuple[int, ...]:
        """The host of every server rank: the places that hosts offer, in order; else one host after another."""
        offered = sum(group.count * group.host.servers for group in self.groups)
        if offered and offered < servers:
            raise UsageError(
                f"{servers} servers do not fit: the cluster's hosts offer {offered} places; "
                f"offer more, or none to spread the servers over all hosts"
            )
        if not offered:
            return tuple(rank % self.host_count for rank in range(servers))
        each = (group.host.servers for group in self.groups for _ in range(group.count))
        return tuple(islice((index for index, count in enumerate(each) for _ in range(count)), servers))

    def split(self, places: Collection[int]) -> Self:
        found: list[HostGroup] = []
        first = 0
        for group in self.groups:
            here = {place - first for place in places if first <= place < first + group.count}
            cuts = sorted({0, group.count, *here, *(place + 1 for place in here)})
            found += [group.part(start, stop) for start, stop in pairwise(cuts)] if here else [group]
            first += group.count
        return replace(self, groups=tuple(found))

    def group_at(self, place: int) -> int:
        for index, group in enumerate(self.groups):
            if place < group.count:
                return index
            place -= group.count
        raise IndexError(place)

    def encrypted(self, servers: Sequence[int], *, inside: bool = False) -> Self:
        """The links as messages to servers on these hosts find them: no faster than both ends encrypt.

        A message is encrypted record by record while the one before is sent, so the slower of both counts. Each worker
        and each server encrypts on a core of its own. With ``inside``, messages within a host are encrypted too.
        """
        if not self.cipher:
            return self
        apart = self.split(set(servers))
        placed = Counter(apart.group_at(place) for place in servers)
        groups = []
        for index, group in enumerate(apart.groups):
            host = group.host
            most = max(host.workers, placed[index], 1) * self.cipher
            within = _at_most(host.inside, most) if inside else host.inside
            groups.append(replace(group, host=replace(host, link=_at_most(host.link, most), inside=within)))
        return replace(self, groups=tuple(groups))

    def __str__(self) -> str:
        links = {str(group.host.link) for group in self.groups}
        link = links.pop() if len(links) == 1 else "several links"
        many = "s" if self.host_count > 1 else ""
        return f"{self.host_count} host{many}, {self.workers} workers, {link}"


def _at_most(link: Link, bandwidth: float) -> Link:
    return replace(link, bandwidth=min(link.bandwidth, bandwidth))


def _grouped(hosts: Iterable[Host]) -> tuple[HostGroup, ...]:
    """Equal neighbours in groups; every host keeps its name."""
    runs = [list(run) for _, run in groupby(hosts)]
    return tuple(HostGroup(run[0], len(run), tuple(host.name for host in run)) for run in runs)
