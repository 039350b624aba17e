"""From how many workers on communication and aggregation take longer than computing."""

from dataclasses import asdict

from paceline.reports.scenarios.told import Told, exact_seconds, table, trimmed
from paceline.studies.scenarios.answers import Crossover


def tell_crossover(answer: Crossover) -> Told:
    """The number, its neighbour, and all that was tried."""
    rows = [
        [f"{one.workers:,}", trimmed(one.compute), trimmed(one.rest), trimmed(one.compute + one.rest)]
        for one in answer.tried
    ]
    lines = table(["workers", "computing s", "all else s", "a round s"], rows)
    return Told(answer=_sentence(answer), lines=lines, document=asdict(answer))


def _sentence(answer: Crossover) -> str:
    tried = {one.workers: one for one in answer.tried}
    if answer.workers is None:
        last = tried[answer.most]
        return (
            f"Communication and aggregation never take longer than computing, up to {answer.most:,} workers: "
            f"{exact_seconds(last.rest)} a round against {exact_seconds(last.compute)}."
        )
    found = tried[answer.workers]
    words = (
        f"From {answer.workers:,} workers on, communication and aggregation take longer than computing: "
        f"{exact_seconds(found.rest)} a round against {exact_seconds(found.compute)}"
    )
    before = tried.get(answer.workers - 1)
    return f"{words}; with {before.workers:,} it is {exact_seconds(before.rest)}." if before else f"{words}."
