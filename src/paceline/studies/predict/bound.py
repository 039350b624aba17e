"""What bounds a step: whatever, twice as good, would make it shortest."""

from collections.abc import Callable
from dataclasses import replace

from paceline.strategies.base import Served
from paceline.studies.predict.base import Bound
from paceline.studies.predict.extremes import mean_factor
from paceline.studies.predict.few import (
    Few,
    slower,
    with_compute,
    with_links,
    with_servers,
    without_stragglers,
)

SERVERS = 0.9
"""Part of what better links would gain that better servers alone must gain to be what bounds a step."""


def find_bound(few: Few, step: Callable[[Few], float]) -> Bound:
    """Ask for the step with everything else as it is; ``step`` answers in seconds.

    Computing twice as fast, links of twice the bandwidth, half the latency, servers' hosts of twice the bandwidth that
    update twice as fast, or half as long a wait for slower workers. Where nothing helps it is compute.
    """
    now = step(few)
    gains: dict[Bound, float] = {
        "compute": now - step(with_compute(few, 0.5)),
        "bandwidth": now - step(with_links(few, bandwidth=2.0)),
        "latency": now - step(with_links(few, latency=0.5)),
    }
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
    best = max(gains, key=lambda name: gains[name])
    return best if gains[best] > 1e-9 * now else "compute"
