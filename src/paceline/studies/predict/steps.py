"""How long a step takes, for one strategy on one cluster."""

from paceline.collectives.choose import NATIVE
from paceline.studies.predict.base import Setup, Step
from paceline.studies.predict.closed import by_folding, in_step
from paceline.studies.predict.events import build_strategy, by_events


def predict_step(setup: Setup) -> Step:
    """The step of a worker in the long run. A Mistake says what cannot be predicted."""
    strategy = build_strategy(setup)
    if setup.collective == NATIVE and not setup.jitter and in_step(setup, strategy):
        return Step(**by_folding(setup, strategy).as_fields(), bound="compute", path="closed")
    return Step(**by_events(setup).as_fields(), bound="compute", path="events")
