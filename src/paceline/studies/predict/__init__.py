"""Predict: how fast will it be, on how many workers, and where does adding workers stop paying off?

``predict(PredictRequest(model="resnet50", device="a100", network="25gbit", workers=(1, 8)))``
"""

import platform
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

import torch

from paceline import __version__
from paceline.studies.predict.findings import Finder
from paceline.studies.predict.model import find_model
from paceline.studies.predict.paleo import find_paleo_model
from paceline.studies.predict.prediction import Basis, Prediction, StrategyPrediction
from paceline.studies.predict.pricing import FOREIGN, Pricing, Progress, guessed_share, longest, silent
from paceline.studies.predict.remedies import find_remedies, find_roomier
from paceline.studies.predict.request import PredictRequest

__all__ = ["PredictRequest", "Prediction", "predict"]

LEAST_SHARE = 0.001
"""Of computing: a smaller share that is guessed is not mentioned."""


def predict(request: PredictRequest, *, modules: bool = False, progress: Progress = silent) -> Prediction:
    """Price every strategy at every number of workers, and say what follows.

    With ``modules``, also where the step of one worker goes. Deterministic but for the time it was made at; nothing is
    written and nothing is measured. A UsageError says what cannot be predicted.
    """
    progress("reading")
    if request.cost_model == "paleo":
        return price_request(Pricing(request, find_paleo_model(request), progress=progress), modules=modules)
    model = find_model(request)
    pricing = Pricing(
        request, model, remedies=find_remedies(model), roomier=find_roomier(model), progress=progress
    )
    return price_request(pricing, modules=modules)


def price_request(pricing: Pricing, *, modules: bool = False) -> Prediction:
    """The same for a cost model that is given."""
    request, model = pricing.request, pricing.model
    series = tuple(_series(pricing, strategy) for strategy in model.strategies)
    first = pricing.case(model.strategies[0], pricing.workers[0])
    unmeasured = model.cost(first.batch).unmeasured
    return Prediction(
        name=model.title,
        parameters=model.parameters(),
        scaling=request.scaling,
        batch=pricing.batch,
        cost_model=model.name,
        basis=_with_guesses(model.basis, unmeasured),
        series=series,
        unmeasured=unmeasured,
        modules=model.modules(pricing.batch) if modules else (),
        settings=request.to_json(),
        versions={
            "paceline": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def _series(pricing: Pricing, strategy: str) -> StrategyPrediction:
    rows = tuple(pricing.row(strategy, workers) for workers in pricing.workers)
    findings = Finder(pricing, strategy).findings() if pricing.model.explains else None
    return StrategyPrediction(strategy=strategy, rows=rows, findings=findings)


def _with_guesses(basis: Basis, unmeasured: Mapping[str, float]) -> Basis:
    """Say by how much the interval is wider for operators without a measured relative."""
    share = guessed_share(unmeasured)
    if share < LEAST_SHARE:
        return basis
    words = (
        f"; {100 * share:.0f} % of computing is guessed, of operators that may take {FOREIGN:g} times as long, so that "
        f"all of computing may take {longest(unmeasured):.2g} times as long"
    )
    return replace(basis, interval=basis.interval + words)
