"""``ask = "lower-bound"``: the least that an all-reduce must move, and the use that a time makes of it."""

from paceline.costs.bandwidth import bandwidth_use, lower_bound_bytes
from paceline.studies.scenarios.answers import LeastTraffic
from paceline.studies.scenarios.scenario import Scenario


def least_traffic(scenario: Scenario) -> LeastTraffic:
    """Read [all-reduce] and work it out."""
    reader = scenario.reader.table("all-reduce")
    reader.need("items = 11_170_000", "processes = 4")
    items, processes = reader.whole("items", 0, least=1), reader.whole("processes", 0, least=1)
    size = reader.size("item", 4.0)
    if size < 1 or size != int(size):
        raise reader.wrong("item", reader.values["item"], "an item has a whole number of bytes, at least 1")
    seconds, link = reader.seconds("time", 0.0), reader.rate("bandwidth", 0.0)
    if "time" in reader.values and not seconds:
        raise reader.wrong("time", reader.values["time"], "it must be more than 0 s")
    reader.finish()
    scenario.reader.finish()
    return LeastTraffic(
        items=items,
        item_size=int(size),
        processes=processes,
        bound=lower_bound_bytes(items, int(size), processes),
        seconds=seconds or None,
        use=bandwidth_use(items, int(size), processes, seconds) if seconds else None,
        link=link or None,
    )
