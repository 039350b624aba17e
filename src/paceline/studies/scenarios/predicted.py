"""``ask = "predict"``: what 'paceline predict' would say, with every word of it in the file."""

from typing import Any

from paceline.clusters.toml_reader import Reader
from paceline.costs.paleo.table import PaleoTable
from paceline.studies.predict.asking import answer
from paceline.studies.predict.paleo import answer_by_paleo
from paceline.studies.predict.prediction import Prediction
from paceline.studies.predict.question import Scaling
from paceline.studies.predict.words import PredictRequest
from paceline.studies.scenarios.scenario import Scenario


def predicted(scenario: Scenario) -> PaleoTable | Prediction:
    """Read [predict] and ask."""
    reader = scenario.reader.table("predict")
    reader.need('model = "resnet50"', 'device = "k40"')
    paleo = _one_of(reader, "cost-model", "paceline", "paleo") == "paleo"
    words = PredictRequest(
        model=reader.word("model", ""),
        device=reader.word("device", ""),
        network=reader.word("network", "10gbit"),
        workers=tuple(entry.whole(key, 0, least=1) for entry, key in reader.items("workers")) or None,
        batch=reader.whole("batch", 32, least=1),
        scaling=_scaling(reader),
        **(_paleo(reader) if paleo else {"strategies": tuple(reader.words("strategies", ["all-reduce"]))}),
    )
    reader.finish()
    scenario.reader.finish()
    return answer_by_paleo(words) if paleo else answer(words)


def _paleo(reader: Reader) -> dict[str, Any]:
    """What only Paleo's model knows."""
    parts = {"ppp_comp": reader.positive("ppp-comp", 1.0), "ppp_comm": reader.positive("ppp-comm", 1.0)}
    return {"cost_model": "paleo", **parts}


def _scaling(reader: Reader) -> Scaling:
    return "strong" if _one_of(reader, "scaling", "weak", "strong") == "strong" else "weak"


def _one_of(reader: Reader, key: str, usual: str, other: str) -> str:
    value = reader.word(key, usual)
    if value not in (usual, other):
        raise reader.wrong(key, value, f'it must be "{usual}" or "{other}"')
    return value
