"""What bounds a step: whatever, twice as good, would make it shortest."""

from collections.abc import Callable
from dataclasses import replace

from paceline.costs.compression import UNCOMPRESSED
from paceline.studies.predict.base import Bound, Where
from paceline.studies.predict.extremes import mean_factor
from paceline.studies.predict.few import (
    Few,
    links_in_use,
    slower,
    with_cipher,
    with_coding,
    with_compute,
    with_links,
    with_servers,
    without_stragglers,
)

SERVERS = 0.9
"""Part of what better links would gain that better servers alone must gain to be what bounds a step."""


def find_bounds(few: Few, step: Callable[[Few], float]) -> tuple[Bound, Bound, Where]:
    """What bounds the step, what would if computing stayed as it is, and the link; ``step`` answers in seconds.

    Computing twice as fast, a link of twice the bandwidth or half the latency, a codec that takes half the time,
    processes that encrypt twice as fast, servers' hosts of twice the bandwidth that update twice as fast, or half as
    long a wait for slower workers, each with everything else as it is. Where nothing helps it is compute.
    """
    now = step(few)
    links = {where: _link_gains(few, step, now, where) for where in links_in_use(few)}
    where: Where = max(links, key=lambda one: max(links[one].values()), default="network")
    gains = _gains(few, step, now, links.get(where, {}))
    besides: dict[Bound, float] = {name: gain for name, gain in gains.items() if name != "compute"}
    return _largest(gains, now), _largest(besides, now), where


def _largest(gains: dict[Bound, float], now: float) -> Bound:
    helps: dict[Bound, float] = {name: gain for name, gain in gains.items() if gain > 1e-9 * now}
    return max(helps, key=lambda name: helps[name]) if helps else "compute"


def _link_gains(few: Few, step: Callable[[Few], float], now: float, where: Where) -> dict[Bound, float]:
    """Seconds that a better link would save."""
    return {
        "bandwidth": now - step(with_links(few, where, bandwidth=2.0)),
        "latency": now - step(with_links(few, where, latency=0.5)),
    }


def _gains(
    few: Few, step: Callable[[Few], float], now: float, link: dict[Bound, float]
) -> dict[Bound, float]:
    """Seconds that each would save; ``link`` is that of the link which would save most."""
    gains: dict[Bound, float] = {"compute": now - step(with_compute(few, 0.5)), **link}
    if few.setup.shape.compression != UNCOMPRESSED:
        gains["codec"] = now - step(with_coding(few, 0.5))
    if few.jitter or len(set(few.paces)) > 1:
        even = without_stragglers(replace(few, cost=slower(few.cost, mean_factor(few.jitter))))
        gains["straggler"] = (now - step(even)) / 2
        # Who computes twice as fast is waited for half as long; that part is counted once.
        gains["compute"] -= gains["straggler"]
    if few.cipher:
        gains["encryption"] = now - step(with_cipher(few, 2.0))
    if few.strategy.served:
        server = now - step(with_servers(few, 2.0))
        carried = gains.get("bandwidth", 0.0)
        if server >= SERVERS * carried:
            gains["server"] = max(server, carried)
            gains.pop("bandwidth", None)
    return gains
