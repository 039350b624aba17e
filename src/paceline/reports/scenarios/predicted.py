"""A prediction that a scenario asked for."""

from paceline.records.files import to_document
from paceline.reports.predict.table import paleo_lines
from paceline.reports.predict.text import text_lines
from paceline.reports.scenarios.render import RenderedAnswer
from paceline.studies.predict import Prediction


def render_prediction(answer: Prediction) -> RenderedAnswer:
    """As 'paceline predict' shows it."""
    lines = paleo_lines(answer) if answer.cost_model == "paleo" else text_lines(answer)
    return RenderedAnswer(answer=lines[0], lines=lines[2:], document=to_document(answer))
