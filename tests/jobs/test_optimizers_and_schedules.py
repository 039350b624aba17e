import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim

from paceline import specs
from paceline.errors import UsageError
from paceline.jobs import OPTIMIZERS, SCHEDULES


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
        ("sgd:rate=1", "setting of optimizer 'sgd'"),
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


@pytest.mark.parametrize(
    "name", ["constant:warmup=2", "cosine:epochs=12.5,floor=0.1", "step:at=3+4.5,gamma=0.2"]
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
        ("constant:warmup_from=2", "warmup_from=2 is out of range"),
    ],
)
def test_a_wrong_schedule_is_refused(spec: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        schedule(spec)
