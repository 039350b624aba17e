"""Every layer of torch.nn is traced as it runs, and consists of operators that a calibration measures."""

import inspect
from collections import Counter

import pytest
import torch
from torch import nn

from paceline.costs.trace.operator import is_known
from paceline.costs.trace.trace import trace
from paceline.errors import UsageError
from paceline.jobs.job import Traceable
from paceline.jobs.optimizers import Sgd
from paceline.studies.calibrate.layers import LAYERS, SingleLayer, draw_layer
from timed_operators import time_operators

NO_LAYERS = {
    "Module Container Sequential ModuleDict ModuleList ParameterDict ParameterList": "holds others",
    "RNNBase RNNCellBase": "what others are made of",
    "NLLLoss2d": "another name of NLLLoss",
    "DataParallel SyncBatchNorm": "needs several devices or processes",
    "LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d "
    "LazyConvTranspose2d LazyConvTranspose3d LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d "
    "LazyLinear": "becomes the layer without Lazy",
}
"""Classes of torch.nn that compute nothing of their own."""
NEEDS_VALUES = {
    "GaussianNLLLoss": (nn.GaussianNLLLoss, lambda layer, x: layer(x, x.detach(), torch.ones_like(x))),
    "AdaptiveLogSoftmaxWithLoss": (
        lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5]),
        lambda layer, x: layer(x, torch.zeros(len(x), dtype=torch.long)),
    ),
    "CTCLoss": (
        nn.CTCLoss,
        lambda layer, x: layer(
            x.view(-1, 1, 8).log_softmax(2),
            torch.ones(1, 2, dtype=torch.long),
            torch.full((1,), len(x)),
            torch.full((1,), 2),
        ),
    ),
}
"""Layers that look at what a tensor holds; a trace has no values, and says so."""


def classes() -> set[str]:
    found = {name for name, one in vars(nn).items() if inspect.isclass(one) and issubclass(one, nn.Module)}
    return found - {name for names in NO_LAYERS for name in names.split()}


def test_every_layer_of_torch_is_in_the_table() -> None:
    """A new torch with a new layer would be calibrated without it, and nobody would notice."""
    rows = {name.partition(" ")[0] for name in LAYERS}
    assert classes() == rows | NEEDS_VALUES.keys()


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_traced_as_it_runs(name: str) -> None:
    """A prediction would price operators that no device runs, or whose kind nobody knows."""
    subject, samples = draw_layer(3, list(LAYERS).index(name))
    traced = trace(subject, samples)
    ran = time_operators(subject, samples, warm_up=0, repeats=1)
    names = Counter(one.name for one in (*traced.forward, *traced.backward, *traced.apply))
    assert names == Counter(operator.name for operator, _ in ran)
    unknown = {one for one in names if not is_known(one)} - {"_foreach_add_"}
    assert not unknown


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LSTM(8, 16, proj_size=4),
        lambda: nn.LSTM(8, 16, 2, bias=False, bidirectional=True, dropout=0.5),
        lambda: nn.GRU(8, 16, 3, bias=False, bidirectional=True, batch_first=True, dropout=0.5),
        lambda: nn.RNN(8, 16, 2, nonlinearity="relu", bidirectional=True),
    ],
)
def test_a_recurrent_layer_is_traced_as_it_runs(make) -> None:
    """On meta tensors torch takes every step of a sequence apart, as no CPU does: predictions were twice too long."""
    subject = alone(make, lambda layer, x: layer(x), (5, 8))
    traced = trace(subject, 3)
    ran = Counter(operator.name for operator, _ in time_operators(subject, 3, warm_up=0, repeats=1))
    assert Counter(one.name for one in (*traced.forward, *traced.backward, *traced.apply)) == ran


def alone(make, call, shape) -> Traceable:
    return Traceable(
        name="alone",
        model=lambda: SingleLayer(make(), call),
        loss=lambda outputs, _: outputs if isinstance(outputs, torch.Tensor) else outputs[0].mean(),
        batch=lambda samples: (torch.rand(samples, *shape), torch.zeros(samples)),
        optimizer=Sgd(),
    )


@pytest.mark.parametrize("name", NEEDS_VALUES)
def test_a_layer_that_needs_values_is_refused(name: str) -> None:
    """It would be missing from the table for no reason."""
    subject = alone(*NEEDS_VALUES[name], (8,))
    with pytest.raises(UsageError, match=r"values of a tensor|meta tensors"):
        trace(subject, 4)


def test_a_calibration_goes_through_the_whole_table() -> None:
    """An operator that only one layer has would never be measured."""
    drawn = [draw_layer(1, number)[0].name for number in range(len(LAYERS))]
    assert drawn == list(LAYERS)
