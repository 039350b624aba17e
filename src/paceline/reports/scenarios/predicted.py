"""A prediction that a scenario asked for."""

from paceline.costs.paleo.table import PaleoTable
from paceline.reports.predict.paleo import paleo_lines
from paceline.reports.predict.text import text_lines
from paceline.reports.scenarios.render import RenderedAnswer
from paceline.studies.predict.prediction import Prediction


def render_prediction(answer: PaleoTable | Prediction) -> RenderedAnswer:
    """As 'paceline predict' tells it."""
    lines = paleo_lines(answer) if isinstance(answer, PaleoTable) else text_lines(answer)
    return RenderedAnswer(answer=lines[0], lines=lines[2:], document=answer.to_json())
