import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim

from paceline import specs
from paceline.errors import UsageError
from paceline.jobs import OPTIMIZERS, SCHEDULES
from paceline.jobs.layerwise import LAMB, LARS
from paceline.jobs.optimizers import ELEMENTWISE, constructor_settings
from paceline.jobs.schedules import scale_schedule
from paceline.runtimes.flat import Flat, flat_optimizer


def schedule(spec: str) -> Callable[[float], float]:
    made: Callable[[float], float] = specs.build(spec, SCHEDULES, "schedule")
    return made


@pytest.mark.parametrize(
    ("spec", "plain"),
    [
        ("sgd:lr=0.2,weight_decay=0", lambda p: optim.SGD(p, lr=0.2, momentum=0.9)),
        ("sgd:momentum=0", lambda p: optim.SGD(p, lr=0.05, weight_decay=0.001)),
        (
            "sgd:nesterov=true,weight_decay=0.1",
            lambda p: optim.SGD(p, 0.05, 0.9, nesterov=True, weight_decay=0.1),
        ),
        (
            "adam:beta1=0.5,beta2=0.8,eps=0.01,weight_decay=0.1",
            lambda p: optim.Adam(p, 1e-3, (0.5, 0.8), 0.01, 0.1),
        ),
        ("adamw:lr=0.1", lambda p: optim.AdamW(p, lr=0.1, weight_decay=0.01)),
    ],
)
def test_an_optimizer_does_what_torchs_plain_one_does(
    spec: str, plain: Callable[[list[nn.Parameter]], optim.Optimizer]
) -> None:
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 37)) for _ in range(2))
    makers = ((ours, specs.build(spec, OPTIMIZERS, "optimizer")), (theirs, plain))
    for parameter, make in makers:
        optimizer = make([parameter])
        for step in range(5):
            parameter.grad = torch.cos(torch.arange(37) + step)
            optimizer.step()
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert not torch.allclose(ours, torch.linspace(-1, 1, 37), atol=1e-3)


class Keywords(optim.AdamW):
    """Of one's own, with no settings of its own."""

    def __init__(self, params: Any, **more: Any) -> None:
        super().__init__(params, **more)


@pytest.mark.parametrize("kind", [*sorted(ELEMENTWISE, key=str), optim.Adafactor, LAMB, LARS, Keywords])
def test_an_optimizer_is_made_again_with_its_defaults(kind: type[optim.Optimizer]) -> None:
    """If this failed, a script's optimizer could be neither predicted nor taken to servers."""
    make: Any = kind
    first = make([nn.Parameter(torch.zeros(2, 2))], lr=0.25, weight_decay=0.125)
    again = make([nn.Parameter(torch.zeros(2, 2))], **constructor_settings(kind, first.defaults))
    assert again.defaults == first.defaults


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("sgd:lr=-0.1", "optimizer 'sgd:lr=-0.1': lr=-0.1 is out of range; it must be more than 0"),
        ("sgd:lr=0", "lr=0 is out of range"),
        ("sgd:lr=nan", "lr=nan is out of range"),
        ("sgd:momentum=1", "momentum=1 is out of range"),
        ("sgd:weight_decay=-1", "weight_decay=-1"),
        ("sgd:nesterov=true,momentum=0", "nesterov=true needs momentum"),
        ("adam:beta2=1.5", "beta2=1.5 is out of range"),
        ("adamw:eps=0", "eps=0 is out of range"),
        ("sgd:rate=1", "setting 'rate' of optimizer 'sgd'"),
        ("adan", "did you mean 'adam'"),
    ],
)
def test_a_wrong_optimizer_is_refused(spec: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        specs.build(spec, OPTIMIZERS, "optimizer")


def test_constant_is_one() -> None:
    assert {schedule("constant")(epoch) for epoch in (0, 0.5, 1e6)} == {1.0}


@given(st.floats(0, 40))
def test_cosine_is_torchs_cosine(epoch: float) -> None:
    expected = 0.1 + 0.9 * (1 + math.cos(math.pi * min(epoch, 20) / 20)) / 2
    assert schedule("cosine:epochs=20,floor=0.1")(epoch) == pytest.approx(expected)


def test_steps_drop_at_their_epochs() -> None:
    step = schedule("step:at=30+60,gamma=0.5")
    assert [step(epoch) for epoch in (0, 29.99, 30, 59.9, 60, 1000)] == [1, 1, 0.5, 0.5, 0.25, 0.25]


@pytest.mark.parametrize("spec", ["constant", "cosine:epochs=20", "step:at=8"])
def test_warmup_rises_in_a_line_and_then_leaves_the_schedule_alone(spec: str) -> None:
    plain = schedule(spec)
    warm = schedule(f"{spec}{',' if ':' in spec else ':'}warmup=5,warmup_from=0.25")
    assert warm(0) == 0.25 * plain(0)
    assert warm(2.5) == pytest.approx(0.625 * plain(2.5))
    for epoch in (5, 7.5, 8, 19):
        assert warm(epoch) == plain(epoch)


def test_constant_warmup_keeps_the_low_rate_and_then_leaves_the_schedule_alone() -> None:
    warm = schedule("step:at=8,warmup=5,warmup_from=0.25,warmup_kind=constant")
    assert [warm(epoch) for epoch in (0, 2.5, 4.99, 5, 7.9, 8)] == [0.25, 0.25, 0.25, 1.0, 1.0, 0.1]


@pytest.mark.parametrize("factor", [8.0, 8**0.5])
def test_a_scaled_rate_warms_up_from_the_unscaled_one(factor: float) -> None:
    """If this failed, warm-up would begin above the rate that the small batch trains with, or far below it."""
    scaled = scale_schedule(schedule("constant:warmup=5"), factor)
    assert scaled(0) == pytest.approx(1.0)
    assert scaled(2.5) == pytest.approx((1 + factor) / 2)
    assert scaled(5) == factor
    assert scale_schedule(schedule("constant:warmup=5,warmup_from=0.5"), factor)(0) == 0.5 * factor
    assert scale_schedule(lambda epoch: epoch, factor)(3) == 3 * factor


def test_a_rate_that_is_scaled_down_needs_no_warmup() -> None:
    scaled = scale_schedule(schedule("constant:warmup=5"), 0.5)
    assert {scaled(epoch) for epoch in (0, 2, 9)} == {0.5}


def test_torchs_momentum_is_the_corrected_form() -> None:
    """Goyal et al., 2017, equations 9 and 10: with the rate inside, v must be rescaled whenever the rate changes.

    torch keeps v without the rate and multiplies when it applies, so nothing is rescaled; if this failed, a run would
    need a correction at every step of its warm-up.
    """
    rates, momentum = (0.1, 0.1, 0.4, 0.4, 0.05, 0.2), 0.9
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 9, dtype=torch.float64)) for _ in range(2))
    optimizer, velocity, before = optim.SGD([ours], lr=1.0, momentum=momentum), torch.zeros(9), rates[0]
    for step, rate in enumerate(rates):
        grad = torch.cos(torch.arange(9, dtype=torch.float64) + step)
        ours.grad, optimizer.param_groups[0]["lr"] = grad, rate
        optimizer.step()
        velocity = momentum * (rate / before) * velocity + rate * grad
        theirs.data -= velocity
        before = rate
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("biases", [True, False])
def test_weight_decay_may_leave_biases_and_batch_norm_alone(biases: bool) -> None:
    """Also in a model whose parameters are all alike, which would else be updated as one vector."""
    net = nn.Linear(3, 2, bias=biases)
    flat = Flat(net.parameters())
    make = specs.build("sgd:lr=0.5,momentum=0,weight_decay=0.1,decay=weights", OPTIMIZERS, "optimizer")
    optimizer, before = flat_optimizer(make, flat), flat.params.clone()
    optimizer.step()
    assert torch.allclose(flat.params[:6], 0.95 * before[:6])
    assert torch.equal(flat.params[6:], before[6:])


def test_a_held_rate_moves_nothing_and_is_not_zero() -> None:
    """Of 0, model averaging would think at every step that the rate has just dropped, and restart."""
    held = schedule("held")
    assert 0 < held(0) == held(1e6) < 1e-8


@pytest.mark.parametrize(
    "name",
    [
        "constant:warmup=2",
        "constant:warmup=2,warmup_from=0.5,warmup_kind=constant",
        "cosine:epochs=12.5,floor=0.1",
        "step:at=3+4.5,gamma=0.2",
    ],
)
def test_a_schedule_is_shown_as_the_spec_that_makes_it(name: str) -> None:
    made = schedule(name)
    assert schedule(specs.show(name.partition(":")[0], made)) == made


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("step:at=60+30", "'60\\+30' is not a list of epochs: they must be more than 0 and rise"),
        ("step:at=0", "more than 0"),
        ("step:at=a", "'a' is not a list of epochs: they must be more than 0 and rise, as in 30\\+60\\+80"),
        ("step:gamma=0", "gamma=0 is out of range"),
        ("cosine:epochs=0", "epochs=0 is out of range"),
        ("cosine:epochs=5,warmup=5", "warmup=5 is too long; it must be less than epochs=5"),
        ("constant:warmup=-1", "warmup=-1 is out of range"),
        (
            "constant:warmup_from=2",
            "warmup_from=2 is out of range; it must be at least 0 and at most 1 or auto",
        ),
        ("constant:warmup_kind=slow", "warmup_kind=slow is unknown; choose gradual or constant"),
    ],
)
def test_a_wrong_schedule_is_refused(spec: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        schedule(spec)
