"""How long a step takes, for one strategy on one cluster."""

from paceline.collectives.choose import NATIVE
from paceline.strategies.base import Served
from paceline.studies.predict.base import Setup, Step
from paceline.studies.predict.closed import by_folding, by_slowest, in_step
from paceline.studies.predict.events import by_events
from paceline.studies.predict.few import Few, few_of
from paceline.studies.predict.parts import Parts


def predict_step(setup: Setup) -> Step:
    """The step of a worker in the long run. A Mistake says what cannot be predicted."""
    parts = _closed(few_of(setup))
    if parts is not None:
        return Step(**parts.as_fields(), bound="compute", path="closed")
    return Step(**by_events(setup).as_fields(), bound="compute", path="events")


def _closed(few: Few) -> Parts | None:
    if few.setup.collective != NATIVE or not in_step(few):
        return None
    if not few.jitter:
        return by_folding(few)
    return None if isinstance(few.strategy, Served) else by_slowest(few)
