"""How long a step takes, for one strategy on one cluster."""

from paceline.studies.predict.base import Setup, Step
from paceline.studies.predict.events import by_events


def predict_step(setup: Setup) -> Step:
    """The step of a worker in the long run. A Mistake says what cannot be predicted."""
    return Step(**by_events(setup).as_fields(), bound="compute", path="events")
