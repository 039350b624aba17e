"""Predict: how fast will it go, on how many workers, and where does it stop paying off?"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.studies.predict.findings import Finder
from paceline.studies.predict.interval import (
    FOREIGN,
    guessed_share,
    interval,
    interval_by_parts,
    longest,
)
from paceline.studies.predict.model import Case
from paceline.studies.predict.prediction import Known, Prediction, Row, Series
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
LEAST_SHARE = 0.001
"""Of computing: a smaller part that is guessed is not worth a sentence."""


def predict(question: Question, *, layers: bool = False, tell: Tell = quiet) -> Prediction:
    """Price every strategy at every number of workers, and say what follows.

    With ``layers``, also where the step of one worker goes. ``tell`` hears what is worked on. Deterministic; nothing is
    written and nothing is measured. Raises UsageError for a strategy or a number of workers that cannot be.
    """
    pricing = Pricing(question, tell)
    series = tuple(_series(pricing, strategy) for strategy in question.strategies)
    first = question.case(question.strategies[0], question.workers[0])
    unmeasured = question.model.cost(first.batch).unmeasured
    return Prediction(
        name=question.name,
        parameters=question.model.parameters(),
        scaling=question.scaling,
        batch=question.batch,
        cost_model=question.model.name,
        known=_with_guesses(question.model.known, unmeasured),
        series=series,
        unmeasured=unmeasured,
        layers=question.model.layers(question.batch) if layers else (),
    )


def _with_guesses(known: Known, unmeasured: Mapping[str, float]) -> Known:
    """Say by how much the interval is wider for operators without a measured relative."""
    share = guessed_share(unmeasured)
    if share < LEAST_SHARE:
        return known
    told = (
        f"; {100 * share:.0f} % of computing is predicted by guess, of operators that may take {FOREIGN:g} times as "
        f"long, so that all of computing may take {longest(unmeasured):.2g} times as long"
    )
    return replace(known, interval=known.interval + told)


def _series(pricing: Pricing, strategy: str) -> Series:
    rows = tuple(_row(pricing, strategy, workers) for workers in pricing.question.workers)
    return Series(strategy=strategy, rows=rows, findings=Finder(pricing, strategy).findings())


def _row(pricing: Pricing, strategy: str, workers: int) -> Row:
    question = pricing.question
    case = question.case(strategy, workers)
    cost = question.model.cost(case.batch)
    step, rate = pricing.explained(case), pricing.rate(case)
    doubts = (cost.spread, question.model.links_spread, longest(cost.unmeasured))
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
        memory=question.model.memory(case),
        **{part: getattr(step, part) for part in _PARTS},
        **_paid(question, case, rate),
    )


def _paid(question: Question, case: Case, rate: float) -> dict[str, Any]:
    """Time and money at so many samples a second, as far as they are asked for."""
    money, steps = question.money, question.money.steps(case)
    hosts = question.model.hosts(case.workers)
    price = money.hourly(case.workers, hosts) / HOUR if money.stated else None
    finish = None if steps is None else steps * case.total / rate
    return {
        "cost_million": None if price is None else price / rate * MILLION,
        "finish": finish,
        "cost": None if price is None or finish is None else price * finish,
    }
