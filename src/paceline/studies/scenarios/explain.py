"""``ask = "explain"``: what a collective does, round by round."""

from typing import Any

from paceline.studies.scenarios.scenario import Scenario

MOST = 1_000
"""Of anything that is counted; the report draws far less, and says how much, once it has begun."""


def read_request(scenario: Scenario) -> dict[str, Any]:
    """The settings of [explain] by name, as the command of that name has them; its report plays the collective."""
    reader = scenario.reader.table("explain")
    reader.need('schedule = "ring"')
    request: dict[str, Any] = {"schedule": reader.word("schedule", ""), "op": reader.word("op", "sum")}
    if "values" in reader.values:
        rows = [
            " ".join(f"{number.number(place, 0.0):.17g}" for number, place in row.items(key))
            for row, key in reader.items("values")
        ]
        request["values"] = "; ".join(rows)
    for key in ("workers", "length", "seed", "segments"):
        if key in reader.values:
            request[key] = reader.whole(key, 0) if key == "seed" else reader.whole(key, 0, most=MOST)
    if "hosts" in reader.values:
        request["hosts"] = ",".join(
            str(number.whole(key, 0, most=MOST)) for number, key in reader.items("hosts")
        )
    reader.finish()
    scenario.reader.finish()
    return request
