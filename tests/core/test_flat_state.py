"""Flat state must do the mathematics that the model's own parameters would do."""

from copy import deepcopy

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


def test_channels_stay_last():
    """If this failed, convolutions of a model with its channels last would be slower, and round differently."""
    torch.manual_seed(1)
    convolutions = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Conv2d(4, 5, 1), nn.Conv3d(2, 3, 2, bias=False))
    for one, form in zip(
        convolutions, (torch.channels_last, torch.channels_last, torch.channels_last_3d), strict=True
    ):
        one.to(memory_format=form)
    before = {name: (one.clone(), one.stride()) for name, one in convolutions.named_parameters()}
    other = deepcopy(convolutions)
    flat = Flat(convolutions.parameters(), others=[other.parameters()])
    for name, (value, strides) in before.items():
        for model in (convolutions, other):
            one = model.get_parameter(name)
            assert torch.equal(one, value)
            assert one.stride() == one.grad.stride() == strides
    for both, own in zip(flat.stacked(flat.param_rows), convolutions.parameters(), strict=True):
        assert torch.equal(both, torch.stack([own, own]))
    flat.param_rows[0] += 1
    assert all(torch.equal(convolutions.get_parameter(name), one + 1) for name, (one, _) in before.items())
