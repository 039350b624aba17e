"""What the study asks of a cost model: the step of one case."""

from dataclasses import dataclass, replace
from typing import Protocol

from paceline.costs.device import StepCost
from paceline.studies.predict.base import Step, Where
from paceline.studies.predict.prediction import Known, Layer, Memory, Wire

ALIKE = "all-reduce"
"""The strategy by which one worker alone is told: it has nobody to talk to."""


@dataclass(frozen=True)
class Quality:
    """A link beside the one that was described: so many times its bandwidth, so many times its latency."""

    bandwidth: float = 1.0
    latency: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row's question, and how much better or worse the world is than described."""

    strategy: str
    workers: int
    batch: int
    """Samples of the worker that has most of them."""
    total: int
    """Samples of all workers in one step."""
    servers: int = 1
    jitter: float = 0.0
    compute: float = 1.0
    """Computing takes so many times as long."""
    links: float = 1.0
    """Every transfer takes so many times as long: bandwidth, latency and encryption are that much worse."""
    network: Quality = Quality()
    """Of the network between hosts."""
    inside: Quality = Quality()
    """Of what connects the workers of a host."""

    @property
    def as_described(self) -> "Case":
        """The same in a world that is as it was described."""
        return replace(self, compute=1.0, links=1.0, network=Quality(), inside=Quality())

    def with_link(self, where: Where, *, bandwidth: float = 1.0, latency: float = 1.0) -> "Case":
        """The same with one of the two links so many times as good, or as bad."""
        quality = Quality(bandwidth, latency)
        return replace(self, network=quality) if where == "network" else replace(self, inside=quality)


class CostModel(Protocol):
    """A way to price cases: Paceline's own, or another to compare it with."""

    @property
    def name(self) -> str:
        """As ``--cost-model`` has it."""

    @property
    def known(self) -> Known:
        """What it rests on."""

    @property
    def links_spread(self) -> float:
        """Standard deviation of the logarithm of (real / predicted) time of a transfer."""

    @property
    def most(self) -> int:
        """The largest number of workers that it can be asked about."""

    def wire(self, case: Case, where: Where) -> Wire:
        """The link that a case's steps cross there, for people."""

    def hosts(self, workers: int) -> int:
        """How many hosts so many workers stand on."""

    def cost(self, batch: int) -> StepCost:
        """A worker's step without communication."""

    def parameters(self) -> int:
        """Elements of all trainable parameters."""

    def layers(self, batch: int) -> tuple[Layer, ...]:
        """Where a worker's step goes, module by module."""

    def memory(self, case: Case) -> Memory | None:
        """What a worker of a case holds at the most; None where the model does not know."""

    def step(self, case: Case) -> Step:
        """The step of a case; ``rate`` counts ``workers`` times ``batch`` samples, and ``bound`` is not looked for."""

    def explained(self, case: Case) -> Step:
        """The same with what bounds it."""
