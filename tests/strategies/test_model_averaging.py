"""The programs of model averaging, driven by hand, against the papers' formulas."""

from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.specs import build
from paceline.strategies import STRATEGIES
from paceline.strategies.base import Strategy, Worker
from paceline.strategies.effects import AllReduce, Apply, Gradient

SIZE, RATE = 3, 0.1
GOAL = torch.tensor([1.0, -2.0, 0.5])


def make(spec: str) -> Strategy:
    strategy: Strategy = build(spec, STRATEGIES, "strategy")
    return strategy


def gradient(params: Tensor, learner: int, step: int) -> Tensor:
    """Of a parabola, with noise of each learner's own."""
    noise = torch.Generator().manual_seed(100 * step + learner)
    return params - GOAL + torch.randn(SIZE, generator=noise)


def start(rank: int, workers: int, learners: int) -> Worker:
    shape = (learners, SIZE) if learners > 1 else (SIZE,)
    return Worker(rank, workers, torch.zeros(shape), torch.zeros(shape), torch.zeros(0))


def drive(strategy: Strategy, everyone: list[Worker], steps: int, factor: Any = lambda _: 1.0) -> None:
    """Run the workers' programs in lock-step up to the gradient after the last step; learners use plain SGD."""
    programs = [strategy.worker(me) for me in everyone]
    effects = [next(program) for program in programs]
    end = everyone[0].clock + steps
    while everyone[0].clock < end or type(effects[0]) is not Gradient:
        for me, effect in zip(everyone, effects, strict=True):
            rows, grads = me.params.view(-1, SIZE), me.grad.view(-1, SIZE)
            match effect:
                case Gradient():
                    for place, row in enumerate(rows):
                        grads[place] = gradient(row, me.rank * len(rows) + place, me.clock)
                case Apply():
                    me.rate_factor = factor(me.clock)
                    me.params.sub_(RATE * me.rate_factor * me.grad)
                    me.clock += 1
        if type(effects[0]) is AllReduce:
            total = sum(effect.tensor for effect in effects)
            for effect in effects:
                assert effect.op == "sum"
                effect.tensor.copy_(total)
        effects = [program.send(None) for program in programs]


def central(strategy: Strategy, me: Worker) -> Tensor:
    with pytest.raises(StopIteration) as ended:
        next(strategy.central(me))
    model: Tensor = ended.value.value
    return model.clone()


def by_the_paper(k: int, steps: int, pull: float, momentum: float, period: int) -> Tensor:
    """Koliousis et al. (2019), Algorithm 1; with period and without momentum, Zhang et al. (2015), Algorithm 1."""
    w, z, previous = [torch.zeros(SIZE) for _ in range(k)], torch.zeros(SIZE), torch.zeros(SIZE)
    for step in range(steps):
        c = [torch.zeros(SIZE)] * k
        if (step + 1) % period == 0:
            c = [pull / k * (w[j] - z) for j in range(k)]
        w = [w[j] - RATE * gradient(w[j], j, step) - c[j] for j in range(k)]
        if (step + 1) % period == 0:
            z, previous = z + sum(c) + momentum * (z - previous), z
    return z


@pytest.mark.parametrize(("workers", "learners"), [(1, 4), (2, 2), (4, 1)])
@pytest.mark.parametrize(
    ("spec", "pull", "momentum", "period"),
    [("sma", 1.0, 0.9, 1), ("sma:momentum=0,period=2", 1.0, 0.0, 2), ("easgd:period=3", 0.9, 0.0, 3)],
)
def test_a_step_is_the_papers_wherever_the_learners_are(spec, pull, momentum, period, workers, learners):
    strategy = make(spec)
    everyone = [start(rank, workers, learners) for rank in range(workers)]
    drive(strategy, everyone, 12)
    expected = by_the_paper(4, 12, pull, momentum, period)
    for me in everyone:
        torch.testing.assert_close(central(strategy, me), expected, rtol=1e-5, atol=1e-6)


def test_one_learner_alone_is_plain_training():
    strategy, me = make("sma"), start(0, 1, 1)
    drive(strategy, [me], 5)
    w = torch.zeros(SIZE)
    for step in range(5):
        w = w - RATE * gradient(w, 0, step)
    torch.testing.assert_close(central(strategy, me), w)


def test_a_program_that_starts_anew_goes_on_from_its_state():
    strategy = make("sma:period=2")
    through, stopped = start(0, 1, 3), start(0, 1, 3)
    drive(strategy, [through], 9)
    drive(strategy, [stopped], 4)
    drive(strategy, [stopped], 5)
    assert torch.equal(central(strategy, through), central(strategy, stopped))


def test_averaging_restarts_when_the_learning_rate_has_fallen_by_half_and_not_while_it_rises():
    """If this failed, learners would average with a momentum and a spread of another learning rate."""
    strategy, rates = make("sma"), [0.1, 0.5, 1.0, 0.9, 0.6, 0.5, 0.4, 0.24, 0.2]
    restarts = []
    for steps in range(1, len(rates) + 1):
        me = start(0, 1, 2)
        drive(strategy, [me], steps, lambda clock: rates[clock])
        if torch.equal(me.params, central(strategy, me).expand_as(me.params)):
            restarts.append(steps)
    assert restarts == [6, 8], "at 0.5 of 1.0, and at 0.24 of 0.5"


def test_without_a_restart_the_rate_does_not_matter():
    """Also where a schedule ends at 0, which is at most every part of what the rate was."""
    for factor in (lambda clock: 0.1**clock, lambda clock: 1.0 - clock / 3):
        strategy, me = make("sma:restart=0"), start(0, 1, 2)
        drive(strategy, [me], 4, factor)
        assert not torch.equal(me.params[0], me.params[1])


@pytest.mark.parametrize("spec", ["sma:learners=0", "sma:pull=0", "easgd:momentum=1", "sma:compute=fast"])
def test_settings_out_of_range_are_refused(spec):
    with pytest.raises(UsageError):
        make(spec)


def test_what_a_plan_leaves_open_can_be_decided():
    strategy = make("sma:learners=auto,period=3")
    assert strategy.learner_plan.is_open
    decided = strategy.with_learners(make("sma:learners=8,compute=together").learner_plan)
    assert not decided.learner_plan.is_open
    assert decided == make("sma:learners=8,compute=together,period=3")
