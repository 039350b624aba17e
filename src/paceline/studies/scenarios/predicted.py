"""``ask = "predict"``: what 'paceline predict' would say, with every word of it in the file."""

from typing import Any

from paceline.clusters.toml_reader import Reader
from paceline.studies.predict import Prediction, PredictRequest, predict
from paceline.studies.predict.request import Scaling
from paceline.studies.scenarios.scenario import Scenario


def predicted(scenario: Scenario) -> Prediction:
    """Read [predict] and ask."""
    reader = scenario.reader.table("predict")
    reader.need('model = "resnet50"', 'device = "k40"')
    paleo = _one_of(reader, "cost-model", "paceline", "paleo") == "paleo"
    request = PredictRequest(
        model=reader.word("model", ""),
        device=reader.word("device", ""),
        network=reader.word("network", "10gbit"),
        workers=tuple(entry.whole(key, 0, least=1) for entry, key in reader.items("workers")) or None,
        batch_size=reader.whole("batch", 32, least=1),
        scaling=_scaling(reader),
        **(_paleo(reader) if paleo else {"strategies": tuple(reader.words("strategies", ["all-reduce"]))}),
    )
    reader.finish()
    scenario.reader.finish()
    return predict(request)


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
