"""A model that cannot be traced is refused in one sentence with the module, the line, the rule and the fix."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.costs.trace.trace import trace
from paceline.errors import UsageError
from paceline.jobs.job import Traceable
from small_models import images


class Odd(nn.Module):
    """A module with one peculiarity."""

    def __init__(self, does: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.does = does

    def forward(self, values: Tensor) -> Tensor:
        return self.does(values)


def branch(values: Tensor) -> Tensor:
    return values * 2 if values.sum() > 0 else values


def subject(does: Callable[[Tensor], Tensor]) -> Traceable:
    return images(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(432, 10), nn.Sequential(nn.ReLU(), Odd(does)))
    )


def refusal(does: Callable[[Tensor], Tensor]) -> str:
    with pytest.raises(UsageError) as caught:
        trace(subject(does), 4)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "does",
    [
        branch,
        lambda values: values * values.sum().item(),
        lambda values: values[values[:, 0] > 0],
        lambda values: values[values[:, 0].nonzero()[:, 0]],
        lambda values: values * float(values.detach().numpy()[0, 0]),
        lambda values: values * values.detach().cpu().sum(),
    ],
)
def test_values_are_not_there(does: Callable[[Tensor], Tensor]) -> None:
    """Torch says so in six different ways, none of which names the module."""
    message = refusal(does)
    assert (
        "module '2.1' (Odd) of 'small' asks for the values of a tensor at test_trace_refusals.py:" in message
    )
    assert "a trace has none" in message
    assert "torch.where" in message


def test_the_line_is_the_one_in_the_users_file() -> None:
    """The innermost line of all is torch's."""
    line = branch.__code__.co_firstlineno + 1
    assert f"test_trace_refusals.py:{line} " in refusal(branch)


def test_inputs_that_do_not_fit_are_told_in_the_words_of_torch() -> None:
    """Without the module, one line about shapes says little."""
    with pytest.raises(
        UsageError, match=r"module '1' \(Linear\) of 'small' fails: .*must have same reduction dim"
    ):
        trace(images(lambda: nn.Sequential(nn.Flatten(), nn.Linear(100, 10))), 4)
    assert "make new tensors on the device of the inputs" in refusal(
        lambda values: values + torch.zeros(4, 10, device="cpu")
    )
    assert refusal(lambda values: values.nothing).endswith("'Tensor' object has no attribute 'nothing'")


def flat(*, loss: Any = functional.cross_entropy, model: Any = None) -> Traceable:
    usual = images(model or (lambda: nn.Sequential(nn.Flatten(), nn.Linear(432, 10))))
    return Traceable(name="flat", model=usual.model, loss=loss, batch=usual.batch, optimizer=usual.optimizer)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (partial(flat, model=nn.ReLU), "no trainable parameter"),
        (partial(flat, model=lambda: nn.LazyLinear(2)), "of a lazy module"),
        (partial(flat, model=lambda: torch.jit.script(nn.Linear(2, 2))), "compiled by torch.jit"),
        (partial(flat, model=lambda: 3), "is a int; it must be an nn.Module"),
        (
            partial(flat, model=lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())),
            "several types",
        ),
        (
            partial(flat, loss=lambda outputs, _: outputs),
            "is a tensor of shape [4, 10]; it must give the batch's mean",
        ),
        (partial(flat, loss=lambda outputs, _: outputs.detach().sum()), "does not depend on any trainable"),
        (
            partial(flat, loss=functional.binary_cross_entropy),
            "cannot take the model's outputs, a tensor of shape [4, 10]",
        ),
    ],
)
def test_models_and_losses_that_make_no_step(made: Callable[[], Traceable], says: str) -> None:
    """Each would otherwise end in a traceback, or in a trace of nothing."""
    with pytest.raises(UsageError) as caught:
        trace(made(), 4)
    assert says in str(caught.value)


def test_an_operator_without_a_meta_kernel_is_named() -> None:
    """Custom kernels often lack one."""
    library = torch.library.Library("paceline_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    message = refusal(lambda values: torch.ops.paceline_test.twice(values.detach()))
    assert "calls paceline_test::twice" in message
    assert "meta kernel" in message
