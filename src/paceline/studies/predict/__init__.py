"""Predict: how fast will it be, on how many workers, and where does adding workers stop paying off?

``predict(PredictRequest(model="resnet50", device="a100", network="25gbit", workers=(1, 8)))``
"""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from paceline import __version__
from paceline.strategies import build_strategy
from paceline.studies.predict.codecs import compare_codecs
from paceline.studies.predict.findings import Finder, find_remedies
from paceline.studies.predict.interval import FOREIGN, guessed_share, longest
from paceline.studies.predict.model import PacelineModel, ShowProgress, find_model
from paceline.studies.predict.paleo import find_paleo_model
from paceline.studies.predict.prediction import Basis, Prediction, SettingValue, StrategyPrediction
from paceline.studies.predict.request import PredictRequest

__all__ = ["PredictRequest", "Prediction", "predict"]

LEAST_SHARE = 0.001
"""Of computing: a smaller share that is guessed is not mentioned."""


def predict(
    request: PredictRequest, *, modules: bool = False, progress: ShowProgress = lambda _: None
) -> Prediction:
    """Price every strategy at every number of workers, and say what follows.

    With ``modules``, also where the step of one worker goes. Nothing is written and nothing is measured.
    """
    progress("reading")
    find = find_paleo_model if request.cost_model == "paleo" else find_model
    prediction = price_request(find(request, progress=progress), modules=modules)
    given = {name: value for name, value in asdict(request).items() if value is not None}
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    return replace(prediction, settings=settings)


def price_request(
    model: PacelineModel, remedies: Sequence[SettingValue] | None = None, *, modules: bool = False
) -> Prediction:
    """``remedies`` are changes that may make training faster; unless they are given, they are found."""
    model.check()
    paleo, series = model.request.cost_model == "paleo", []
    if remedies is None and not paleo:
        remedies = tuple(find_remedies(model))
    for strategy in model.strategies:
        rows = tuple(model.row(strategy, workers) for workers in model.workers)
        findings = None if paleo else Finder(model, strategy, remedies or ()).findings()
        settled = 0 if paleo else build_strategy(strategy).settled
        series.append(StrategyPrediction(strategy=strategy, rows=rows, findings=findings, settled=settled))
    unmeasured = unmeasured_of(model)
    return Prediction(
        name=model.subject.name,
        parameters=model.shape.size,
        scaling=model.request.scaling,
        batch=model.batch,
        cost_model=model.request.cost_model,
        basis=basis_of(model),
        series=tuple(series),
        codecs=() if paleo else tuple(compare_codecs(model)),
        unmeasured=unmeasured,
        modules=model.modules() if modules else (),
        versions={
            "paceline": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def unmeasured_of(model: PacelineModel) -> Mapping[str, float]:
    """Operators that the calibration never measured, by name: their share of one worker's computing."""
    return model.cost(model.largest_share(model.workers[0])).unmeasured


def basis_of(model: PacelineModel) -> Basis:
    """What the prediction rests on, with what had to be guessed."""
    unmeasured = unmeasured_of(model)
    basis, share = model.basis, guessed_share(unmeasured)
    if share < LEAST_SHARE:
        return basis
    words = (
        f"; {100 * share:.0f} % of computing is guessed, of operators that may take {FOREIGN:g} times as long, so "
        f"that all of computing may take {longest(unmeasured):.2g} times as long"
    )
    return replace(basis, interval=basis.interval + words)
