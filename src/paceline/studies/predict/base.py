"""What a prediction is asked for and what it answers, one strategy on one cluster at a time."""

from dataclasses import dataclass
from typing import Literal

from paceline.clusters.cluster import Cluster
from paceline.collectives import NATIVE
from paceline.costs.device import StepCost
from paceline.runtimes.virtual.shape import JobShape

Bound = Literal["compute", "bandwidth", "latency", "encryption", "codec", "server", "straggler"]
"""What a step would gain most from if it were better."""

Where = Literal["network", "inside"]
"""A link: between hosts, or between the workers of one host."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One way to spread one training."""

    strategy: str
    """A spec, such as "local-sgd:period=16"."""
    cluster: Cluster
    """With as many workers as are asked about."""
    cost: StepCost
    """A step of one worker who is alone on its device."""
    shape: JobShape
    collective: str = NATIVE
    servers: int = 1
    jitter: float = 0.0
    """Spread of each worker's compute times, as ``StepTimes.jitter``."""
    seed: int = 1


@dataclass(frozen=True, kw_only=True)
class Step:
    """A worker's step in the long run, in seconds; the parts from ``data`` to ``wait`` add up to ``step``."""

    step: float
    data: float
    forward: float
    backward: float
    apply: float
    communicate: float
    """Transfers while nothing else goes on; those behind backward are in ``hidden``."""
    wait: float
    """For slower workers, or for the server."""
    hidden: float
    """Transfers behind backward; part of no sum."""
    sent: float
    """Bytes of a worker."""
    rate: float
    """Samples a second of all workers together."""
    bound: Bound
    path: Literal["closed", "events"]
    """How it was got."""
    besides: Bound = "compute"
    """What it would gain most from if computing stayed as it is; compute where nothing else helps."""
    link: Where = "network"
    """Of which link, where one of the two is bandwidth or latency."""
    cipher: float = 0.0
    """Bytes a second that a process encrypts of what goes to servers on other hosts; 0 where nothing does."""
