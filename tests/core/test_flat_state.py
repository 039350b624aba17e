"""Flat state must do the mathematics that the model's own parameters would do."""

import pytest
import torch
from torch import nn, optim

from paceline.errors import UsageError
from paceline.runtimes.flat import Flat, flat_optimizer


def test_an_optimizer_that_takes_all_parameters_alike_works_on_the_flat_vector():
    flat = Flat(nn.Linear(3, 2).parameters())
    (group,) = flat_optimizer(lambda parameters: optim.SGD(parameters, lr=0.1), flat).param_groups
    assert [parameter.data_ptr() for parameter in group["params"]] == [flat.params.data_ptr()]


def test_an_optimizer_that_leaves_parameters_out_still_does():
    """If this failed, biases that a job keeps fixed would be trained, or nothing would."""
    flat = Flat(nn.Linear(3, 2).parameters())
    weights_only = flat_optimizer(
        lambda parameters: optim.SGD([p for p in parameters if p.dim() > 1], lr=0.1), flat
    )
    flat.grad.fill_(1.0)
    before = flat.params.clone()
    weights_only.step()
    assert torch.equal(flat.params != before, torch.tensor([True] * 6 + [False] * 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_parameters_that_cannot_count_samples_are_refused(dtype):
    """If this failed, 300 samples would count as 304 in bfloat16, and every mean would be off by a per cent."""
    with pytest.raises(UsageError, match=r"float32, .* torch\.autocast"):
        Flat(nn.Linear(3, 2).to(dtype).parameters())
