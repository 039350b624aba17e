"""Predict: how fast will it go, on how many workers, and where does it stop to pay?"""

from typing import Any

from paceline.records.prediction import Prediction, Row, Series
from paceline.studies.predict.findings import Finder
from paceline.studies.predict.interval import interval, interval_by_parts
from paceline.studies.predict.pricing import Pricing, Tell, quiet
from paceline.studies.predict.question import Question

_PARTS = (
    "step",
    "data",
    "forward",
    "backward",
    "apply",
    "communicate",
    "hidden",
    "wait",
    "sent",
    "bound",
    "path",
)
MILLION = 1_000_000
HOUR = 3600


def predict(question: Question, *, layers: bool = False, tell: Tell = quiet) -> Prediction:
    """Price every strategy at every number of workers, and say what follows.

    With ``layers``, also where the step of one worker goes. ``tell`` hears what is worked on. Deterministic; nothing is
    written and nothing is measured. Raises Mistake for a strategy or a number of workers that cannot be.
    """
    pricing = Pricing(question, tell)
    series = tuple(_series(pricing, strategy) for strategy in question.strategies)
    return Prediction(
        name=question.name,
        parameters=question.model.parameters(),
        scaling=question.scaling,
        batch=question.batch,
        cost_model=question.model.name,
        known=question.model.known,
        series=series,
        layers=question.model.layers(question.batch) if layers else (),
    )


def _series(pricing: Pricing, strategy: str) -> Series:
    rows = tuple(_row(pricing, strategy, workers) for workers in pricing.question.workers)
    return Series(strategy=strategy, rows=rows, findings=Finder(pricing, strategy).findings())


def _row(pricing: Pricing, strategy: str, workers: int) -> Row:
    question = pricing.question
    case = question.case(strategy, workers)
    spread = question.model.cost(case.batch).spread
    step, rate = pricing.explained(case), pricing.rate(case)
    doubts = (spread, question.model.links_spread)
    # Events take their time: there, what hides behind backward is taken to stay hidden.
    closed = step.path == "closed"
    low, high = interval(case, pricing.seconds, *doubts) if closed else interval_by_parts(step, *doubts)
    return Row(
        workers=workers,
        batch=case.batch,
        low=low,
        high=high,
        rate=rate,
        speed_up=rate / pricing.alone,
        efficiency=rate / pricing.alone / workers,
        **{part: getattr(step, part) for part in _PARTS},
        **_paid(question, workers, rate),
    )


def _paid(question: Question, workers: int, rate: float) -> dict[str, Any]:
    """Time and money of so many samples at a rate, as far as they are asked for."""
    money = question.money
    price = money.hourly(workers, question.model.hosts(workers)) / HOUR / rate if money.stated else None
    trained = money.trained
    return {
        "cost_million": None if price is None else price * MILLION,
        "finish": trained / rate if trained else None,
        "cost": price * trained if price is not None and trained else None,
    }
