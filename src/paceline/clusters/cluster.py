"""Where a training runs: hosts, what computes on them and what connects them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

from paceline.clusters.catalogue import DeviceSheet, NetworkSheet
from paceline.clusters.company import check_company, company_factor
from paceline.clusters.times import StepTimes
from paceline.errors import UsageError
from paceline.units import show_rate, show_seconds

Backend = Literal["shm", "gloo"]
"""What all-reduces inside a host go through."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """What computes."""

    name: str = "device"
    speed: float = 1.0
    """2 computes in half the given times, 0.5 in twice."""
    reduce_seconds: float = 0.0
    """Seconds a byte to combine what a collective brings with what is held; 0 where nobody says."""
    sheet: DeviceSheet | None = None
    """What the catalogue knows of it."""
    memory: float = 0.0
    """Bytes that it has, for each worker of a GPU and for all of a host that share a CPU; 0 where nobody says."""

    def __post_init__(self) -> None:
        if not 0 < self.speed < float("inf"):
            raise UsageError(f"a speed of {self.speed:g} cannot be: it must be more than 0, for example 1.0")
        if not 0 <= self.reduce_seconds < float("inf"):
            raise UsageError(f"{self.reduce_seconds:g} seconds a byte cannot be: reducing takes 0 s or more")


@dataclass(frozen=True, kw_only=True)
class Link:
    """What connects: the same rate in both directions at once, and a delay a message."""

    bandwidth: float
    """Bytes a second, each way."""
    latency: float
    """Seconds from one end to the other; between two hosts the larger of theirs counts."""

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth < float("inf"):
            raise UsageError(f"a bandwidth of {self.bandwidth:g} B/s cannot be: it must be more than 0")
        if not 0 <= self.latency < float("inf"):
            raise UsageError(f"a latency of {self.latency:g} s cannot be: it must be 0 or more")

    @classmethod
    def of(cls, sheet: NetworkSheet, devices: int = 1) -> Self:
        """A network of the catalogue; inside a host, what all its devices have together."""
        together = max(devices, 1) if sheet.inside else 1
        return cls(bandwidth=sheet.bandwidth * together, latency=sheet.latency)

    def __str__(self) -> str:
        return f"{show_rate(self.bandwidth)}, {show_seconds(self.latency)}"


MEMORY = Link(bandwidth=4e9, latency=20e-6)
"""Between processes of one host, unless the description says otherwise: Gloo over loopback on a small machine
moves about 4 GB/s in all, however many workers share it."""


CIPHER = 2e9
"""Bytes a second that one process seals and sends, or receives and opens, where nobody has measured it: AES-GCM and the
system's copies take about 0.5 ns a byte on a core of a server of today."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine with its workers, all alike, and its link to the other hosts."""

    name: str
    link: Link
    workers: int = 1
    servers: int = 0
    """How many servers may stand here; where no host says so, they are spread over all hosts."""
    device: Device = Device()
    inside: Link = MEMORY
    """What the processes on this host talk through; they share its bandwidth."""
    start: float = 0.0
    """When its workers begin, in seconds; those who come late join a run that goes on."""
    steps: int | None = None
    """After how many steps its workers leave; None stays to the end."""
    dies: float | None = None
    """When its workers die, in seconds; None is never."""
    company: tuple[float, ...] = ()
    """How many times as long computing takes with 1, 2, 3... of its workers at it; the first is 1."""
    backend: Backend = "shm"
    """How its workers all-reduce among themselves: in shared memory, or by Gloo through what is inside."""

    def __post_init__(self) -> None:
        check_company(self.company, f"host {self.name!r}")
        for what, count in (("workers", self.workers), ("servers", self.servers)):
            if count < 0:
                raise UsageError(f"{count} {what} on host {self.name!r} cannot be: it must be 0 or more")
        if not 0 <= self.start < float("inf"):
            raise UsageError(
                f"start = {self.start:g} s on host {self.name!r} cannot be: it must be 0 s or more"
            )
        if self.steps is not None and self.steps < 1:
            raise UsageError(
                f"steps = {self.steps} on host {self.name!r} is too small: it must be at least 1"
            )
        if self.dies is not None and not self.start < self.dies < float("inf"):
            raise UsageError(
                f"dies = {self.dies:g} s on host {self.name!r} cannot be: "
                f"it must be after its start at {self.start:g} s"
            )

    @property
    def comings_and_goings(self) -> list[str]:
        """The settings by which its workers come late or go early, as a description names them."""
        given = {"start": self.start > 0, "steps": self.steps is not None, "dies": self.dies is not None}
        return [name for name, there in given.items() if there]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Hosts behind a switch that is never the bottleneck; ranks fill the hosts in order."""

    hosts: tuple[Host, ...]
    times: StepTimes = StepTimes()
    """How long a step takes here, as far as the description says so."""
    name: str = "cluster"
    company: tuple[float, ...] = ()
    """As a host's, for all workers together: of hosts that are one machine, such as containers or namespaces."""
    cipher: float = 0.0
    """Bytes a second, each way, that one process can encrypt: messages to servers on other hosts are. 0 where links are
    as fast as they are described, whoever talks."""

    def __post_init__(self) -> None:
        check_company(self.company, "the cluster")
        if not self.hosts:
            raise UsageError("0 hosts are no cluster: hosts must be at least 1")
        names = [host.name for host in self.hosts]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise UsageError(f"two hosts are called {twice!r}; every host needs a name of its own")
        if self.workers < 1:
            raise UsageError("0 workers cannot train: at least one host must have workers")

    @cached_property
    def workers(self) -> int:
        """How many workers train here."""
        return sum(host.workers for host in self.hosts)

    def slowdown(self, host: int) -> float:
        """How many times as long a worker of a host computes because of all who share its machine."""
        one = self.hosts[host]
        others = company_factor(self.company, self.workers) if self.company else 1.0
        return company_factor(one.company, one.workers) * others

    def check_workers(self, workers: int) -> None:
        """Refuse a number of workers that is not this cluster's."""
        if workers != self.workers:
            raise UsageError(
                f"--workers {workers} contradicts the cluster, which has {self.workers} "
                f"({len(self.hosts)} hosts); leave --workers out or change the cluster"
            )

    def place_workers(self) -> tuple[int, ...]:
        """The host of every worker rank, by index into ``hosts``."""
        return tuple(index for index, host in enumerate(self.hosts) for _ in range(host.workers))

    def place_servers(self, servers: int) -> tuple[int, ...]:
        """The host of every server rank: the places that hosts offer, in order; else one host after another."""
        offered = [index for index, host in enumerate(self.hosts) for _ in range(host.servers)]
        if offered and len(offered) < servers:
            raise UsageError(
                f"{servers} servers do not fit: the cluster's hosts offer {len(offered)} places; "
                f"offer more, or none to spread the servers over all hosts"
            )
        places: Sequence[int] = offered or range(len(self.hosts))
        return tuple(places[rank % len(places)] for rank in range(servers))

    def encrypted(self, servers: Sequence[int]) -> Self:
        """The links as messages to servers on these hosts find them: no faster than both ends encrypt.

        A message is sealed record by record while the one before is sent, so the slower of both counts. Each worker
        and each server encrypts on a core of its own.
        """
        if not self.cipher:
            return self
        stand = Counter(servers)
        ends = [max(host.workers, stand[place], 1) for place, host in enumerate(self.hosts)]
        hosts = [
            replace(host, link=replace(host.link, bandwidth=many * self.cipher))
            if host.link.bandwidth > many * self.cipher
            else host
            for many, host in zip(ends, self.hosts, strict=True)
        ]
        return replace(self, hosts=tuple(hosts))

    def to_json(self) -> dict[str, Any]:
        """A plain document, in SI units."""
        return asdict(self)

    def __str__(self) -> str:
        links = {str(host.link) for host in self.hosts}
        link = links.pop() if len(links) == 1 else "several links"
        many = "s" if len(self.hosts) > 1 else ""
        return f"{len(self.hosts)} host{many}, {self.workers} workers, {link}"
