"""What bounds a step: whatever, twice as good, would make it shortest."""

from collections.abc import Callable
from dataclasses import replace

from paceline.costs.compression import Coded
from paceline.strategies.base import Served
from paceline.studies.predict.base import Bound
from paceline.studies.predict.extremes import mean_factor
from paceline.studies.predict.few import (
    Few,
    slower,
    with_coding,
    with_compute,
    with_links,
    with_servers,
    without_stragglers,
)

SERVERS = 0.9
"""Part of what better links would gain that better servers alone must gain to be what bounds a step."""


def find_bounds(few: Few, step: Callable[[Few], float]) -> tuple[Bound, Bound]:
    """What bounds the step, and what would if computing stayed as it is; ``step`` answers in seconds.

    Computing twice as fast, links of twice the bandwidth, half the latency, a codec that takes half the time, servers'
    hosts of twice the bandwidth that update twice as fast, or half as long a wait for slower workers, each with
    everything else as it is. Where nothing helps it is compute.
    """
    now = step(few)
    gains = _gains(few, step, now)
    besides: dict[Bound, float] = {name: gain for name, gain in gains.items() if name != "compute"}
    return _largest(gains, now), _largest(besides, now)


def _largest(gains: dict[Bound, float], now: float) -> Bound:
    best = max(gains, key=lambda name: gains[name])
    return best if gains[best] > 1e-9 * now else "compute"


def _gains(few: Few, step: Callable[[Few], float], now: float) -> dict[Bound, float]:
    """Seconds that each would save."""
    gains: dict[Bound, float] = {
        "compute": now - step(with_compute(few, 0.5)),
        "bandwidth": now - step(with_links(few, bandwidth=2.0)),
        "latency": now - step(with_links(few, latency=0.5)),
    }
    if isinstance(few.setup.shape.compression, Coded):
        gains["codec"] = now - step(with_coding(few, 0.5))
    if few.jitter or len(set(few.paces)) > 1:
        even = without_stragglers(replace(few, cost=slower(few.cost, mean_factor(few.jitter))))
        gains["straggler"] = (now - step(even)) / 2
        # Who computes twice as fast is waited for half as long; that part is counted once.
        gains["compute"] -= gains["straggler"]
    if isinstance(few.strategy, Served):
        server = now - step(with_servers(few, 2.0))
        if server >= SERVERS * gains["bandwidth"]:
            gains["server"] = max(server, gains["bandwidth"])
            del gains["bandwidth"]
    return gains
