"""How long everything takes on one worker or server, as stated, scaled by samples, speed and slowness."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.clusters.cluster import Cluster, StepTimes, takes_turn
from paceline.errors import UsageError
from paceline.records.spans import StepBreakdown


class GradientTimes(NamedTuple):
    """Parts of a ``StepBreakdown``, in seconds, as a tuple: the virtual runtime makes one for every gradient."""

    data: float
    forward: float
    backward: float


@dataclass(frozen=True, kw_only=True)
class StatedCosts:
    """Seconds, the same on every run.

    A smaller batch takes its part of data, forward and backward; a device of speed 2 takes half of everything; a slowed
    rank takes its factor times as long for forward and backward, as it does live.
    """

    times: StepTimes
    batch_sizes: tuple[int, ...]
    speeds: tuple[float, ...]
    """One a worker: its device's, as much lower as contention makes it."""
    slow: Mapping[int, float] = field(default_factory=dict)
    turns: int = 0
    """These alternate between this many slow steps and as many at full speed; 0: always slow."""
    seed: int = 0
    gradients: int | None = None
    """Gradients of an update, where a rank stands for several workers; None: as many as arrive."""
    updating: float = 1.0
    applying: float = 1.0
    """How many times as long as stated a worker's optimizer takes: it may have several models."""
    step: StepBreakdown = field(init=False)

    def __post_init__(self) -> None:
        if self.times.step is None:
            raise UsageError(
                "the cluster does not say how long a step takes: add forward and backward, for example "
                "forward='1 ms' and backward='2 ms'"
            )
        object.__setattr__(self, "step", self.times.step)

    @property
    def steady(self) -> bool:
        """Whether every step takes as long as the one before, so that it is priced once."""
        return self.times.jitter == 0 and not (self.turns and self.slow)

    def gradient(self, rank: int, samples: int, step: int) -> GradientTimes:
        one, scale = self.step, self._scale(rank, step) * samples / self.batch_sizes[rank]
        compute = scale * (self.slow.get(rank, 1.0) if takes_turn(rank, step, self.turns) else 1.0)
        return GradientTimes(one.data * scale, one.forward * compute, one.backward * compute)

    def apply(self, rank: int, step: int) -> float:
        return self.step.apply * self.applying * self._scale(rank, step)

    def evaluate(self, rank: int, samples: int) -> float:
        stated = self.step.forward if self.times.evaluate is None else self.times.evaluate
        return stated / self.speeds[rank] * samples / self.batch_sizes[rank]

    def update(self, share: float, gradients: int) -> float:
        """A server's, on its share of the parameters: each gradient, and a worker's own step on a device of speed 1."""
        brought = gradients if self.gradients is None else self.gradients
        return self.updating * (self.step.apply + self.times.aggregate * brought) * share

    def _scale(self, rank: int, step: int) -> float:
        jitter = self.times.jitter
        return (math.exp(jitter * _normal(self.seed, rank, step)) if jitter else 1.0) / self.speeds[rank]


def stated_costs(
    cluster: Cluster, batch_sizes: Sequence[int], slow: Mapping[int, float], seed: int = 0, turns: int = 0
) -> StatedCosts:
    paces = ((host.device.speed / cluster.slowdown(host), host.workers) for host in cluster.hosts)
    speeds = tuple(pace for pace, workers in paces for _ in range(workers))
    sizes = tuple(batch_sizes)
    return StatedCosts(
        times=cluster.times, batch_sizes=sizes, speeds=speeds, slow=slow, turns=turns, seed=seed
    )


def _normal(seed: int, rank: int, step: int) -> float:
    first = _scramble(_scramble(_scramble(seed) ^ rank) ^ step)
    second = _scramble(first)
    radius = math.sqrt(-2 * math.log((first + 1) / 2**64))
    return radius * math.cos(2 * math.pi * second / 2**64)


def _scramble(value: int) -> int:
    """One step of SplitMix64: neighbouring numbers come out unrelated (Steele, Lea and Flood, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31
