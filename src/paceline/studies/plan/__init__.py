"""Plan: which hardware, strategy, codec, workers and batch, for a deadline or a budget?

``make_plan(PlanRequest(model="resnet50", samples=10**7, offers=(parse_offer("a100:price=2.5,most=8"),)))``
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from paceline import __version__
from paceline.studies.plan.candidates import Candidate, LeftOut, Priced, Pricer
from paceline.studies.plan.factors import SampleFactors
from paceline.studies.plan.offers import Offer, parse_offer, read_offers
from paceline.studies.plan.ranking import Aim, distinct, pareto_front, without_dominated
from paceline.studies.plan.request import PlanRequest
from paceline.studies.predict.model import PacelineModel, ShowProgress
from paceline.studies.predict.prediction import Basis

__all__ = ["Offer", "PlanRequest", "TrainingPlan", "make_plan", "parse_offer", "read_offers"]

MOST_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The answer to one request; its JSON document is this dataclass, field by field."""

    name: str
    parameters: int
    samples: int
    """Of the whole training, before a study's factors."""
    aim: Aim
    met: bool
    """Whether a candidate meets the deadline and the budget; true where neither is given."""
    best: tuple[Candidate, ...]
    """The ranked ones that differ in more than the batch; where nothing meets the aim, those nearest to it."""
    front: tuple[Candidate, ...]
    """The Pareto front of time and cost, fastest first."""
    candidates: tuple[Candidate, ...]
    meeting: int
    """How many candidates meet the aim."""
    dominated: int
    """How many were left out because one with fewer unknowns is about as good."""
    left_out: tuple[LeftOut, ...]
    factors: SampleFactors
    reference_batch: float
    bases: Mapping[str, Basis]
    """What the times of each kind of hardware rest on."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    version: str = __version__
    made: str = ""
    schema: Literal[1] = 1
    kind: Literal["plan"] = "plan"

    @property
    def first(self) -> Candidate:
        return self.best[0]


def make_plan(
    request: PlanRequest,
    factors: SampleFactors | None = None,
    *,
    most_shown: int = MOST_SHOWN,
    progress: ShowProgress = lambda _: None,
) -> TrainingPlan:
    """Price every way to train, and rank them. Nothing is written and nothing is measured."""
    progress("reading")
    factors, aim = factors or SampleFactors(), Aim(deadline=request.deadline, budget=request.budget)
    pricer = Pricer(request, factors, progress)
    priced = pricer.price_all()
    if not priced:
        raise pricer.refusal
    model, kept = priced[0].model, without_dominated(priced, aim)
    found = _refined(kept, aim, most_shown, progress)
    ranked, front = aim.rank(found), pareto_front(found)
    best = distinct(ranked or aim.nearest(found))[:most_shown]
    return TrainingPlan(
        name=model.subject.name,
        parameters=model.shape.size,
        samples=_samples(request, model),
        aim=aim,
        met=bool(ranked),
        best=tuple(best),
        front=tuple(front),
        candidates=tuple(found),
        meeting=sum(map(aim.met_by, found)),
        dominated=len(priced) - len(kept),
        left_out=pricer.left_out,
        factors=factors,
        reference_batch=request.reference,
        bases={one.choice.offer.label: one.model.basis for one in _first_of_each_offer(priced)},
        settings={name: value for name, value in asdict(request).items() if value is not None},
        made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def _refined(priced: Iterable[Priced], aim: Aim, most_shown: int, progress: ShowProgress) -> list[Candidate]:
    """All candidates; those that are shown with refined intervals."""
    every = {one.candidate: one for one in priced}
    found = [*every]
    ranked = aim.rank(found) or aim.nearest(found)
    shown = {*pareto_front(found), *distinct(ranked)[:most_shown]}

    def refine(one: Candidate) -> Candidate:
        if one not in shown:
            return one
        progress(f"the interval of {every[one].choice}")
        return every[one].refined()

    return list(map(refine, found))


def _first_of_each_offer(priced: Iterable[Priced]) -> list[Priced]:
    return list({one.choice.offer: one for one in reversed(list(priced))}.values())[::-1]


def _samples(request: PlanRequest, model: PacelineModel) -> int:
    assert model.epoch_samples is not None, "epochs of an unknown number of samples are refused"
    return (request.epochs or 1) * model.epoch_samples
