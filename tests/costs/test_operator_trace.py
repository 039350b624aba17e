"""A trace counts what torch counts, and what torch does on real tensors."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from paceline.costs.trace.meta import RULES, meta_result
from paceline.costs.trace.meta_tensors import ordered
from paceline.costs.trace.operator import Attention, Convolution, Operator
from paceline.costs.trace.recorder import OperatorRecorder
from paceline.costs.trace.trace import Trace, TracedStep, trace, without_values
from paceline.jobs.build import traceable_of
from paceline.jobs.job import Traceable
from paceline.jobs.models.resnet import ResNet18
from small_models import cnn, images, words
from timed_operators import time_operators

SUBJECTS = {
    "cnn": images(cnn),
    "resnet18": images(lambda: ResNet18()((3, 16, 16), 10), side=16),
    "transformer": words(),
}


def counted_by_torch(subject: Traceable, samples: int) -> tuple[int, int]:
    """Forward and backward of the products and convolutions, run for real."""
    model = subject.model().train()
    inputs, targets = subject.batch(samples)
    with FlopCounterMode(display=False) as forward:
        loss = subject.loss(model(inputs), targets)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    return forward.get_total_flops(), backward.get_total_flops()


def flops_of(operators: tuple[Operator, ...], *kinds: str) -> float:
    return sum(operator.flops for operator in operators if operator.kind in kinds)


@pytest.mark.parametrize("name", SUBJECTS)
def test_products_and_convolutions_are_counted_as_torch_counts_them(name: str) -> None:
    """Wrong here, every prediction would be off by the same factor."""
    traced = trace(SUBJECTS[name], 2)
    found = tuple(flops_of(phase, "product", "convolution") for phase in (traced.forward, traced.backward))
    assert found == counted_by_torch(SUBJECTS[name], 2)


def test_attention_is_one_operator_and_counted_as_torch_counts_it() -> None:
    """Torch takes it apart on meta tensors, as if the scores were written to memory."""
    traced = trace(words(), 3)
    heads = (3, 2, 8, 8)
    assert flops_of(traced.forward, "attention") == 2 * sdpa_flop_count(heads, heads, heads)
    assert flops_of(traced.backward, "attention") == 2 * sdpa_backward_flop_count(heads, heads, heads, heads)
    shapes = {one.shape for one in (*traced.forward, *traced.backward) if one.kind == "attention"}
    assert shapes == {Attention(batch=3, heads=2, queries=8, keys=8, width=8, causal=True)}


def in_dtype(subject: Traceable, dtype: torch.dtype) -> Traceable:
    def batch(samples: int) -> Any:
        inputs, targets = subject.batch(samples)
        return inputs.to(dtype) if inputs.is_floating_point() else inputs, targets

    return replace(subject, model=lambda: subject.model().to(dtype), batch=batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", SUBJECTS)
def test_operators_have_the_dtype_of_the_tensors_that_they_compute_with(
    name: str, dtype: torch.dtype
) -> None:
    """Else a narrow module would be priced at the peak of float32; attention also reads float32 in its backward."""
    traced = trace(in_dtype(SUBJECTS[name], dtype), 2)
    assert {one.dtype for one in traced.operators if one.shape is not None} == {dtype}
    assert [*traced.dtypes] == [dtype] == [traced.dtype]


def test_attention_with_dropout_stays_in_its_dtype() -> None:
    """Torch takes it apart on meta, and would compute 16-bit products in 32."""
    layer = partial(nn.TransformerEncoderLayer, 16, 2, dropout=0.1, batch_first=True, dtype=torch.bfloat16)
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    subject = Traceable(
        name="layer",
        model=layer,
        loss=functional.mse_loss,
        batch=lambda samples: (torch.zeros(samples, 4, 16, dtype=torch.bfloat16),) * 2,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    )
    assert [*trace(subject, 2).dtypes] == [torch.bfloat16]
    assert torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed() == before


def test_each_operator_has_a_dtype_of_its_own() -> None:
    """A frozen part in bfloat16 is no reason to price all of the model so, nor the other way round."""

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.Linear(8, 8, dtype=torch.bfloat16).requires_grad_(False)
            self.head = nn.Linear(8, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head(self.frozen(inputs.bfloat16()).float())

    subject = Traceable(
        name="adapted",
        model=Adapted,
        loss=functional.cross_entropy,
        batch=lambda samples: (torch.zeros(samples, 8), torch.zeros(samples, dtype=torch.int64)),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    )
    traced = trace(subject, 2)
    assert traced.dtypes == {torch.bfloat16: "frozen", torch.float32: "head"}
    assert traced.place(torch.bfloat16) == "module 'frozen' of 'adapted'"


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_same_operators_run_on_a_real_device(name: str) -> None:
    """A calibration would learn from operators that no trace asks for."""
    traced = trace(SUBJECTS[name], 2)
    timed = time_operators(SUBJECTS[name], 2, warm_up=0, repeats=1)
    assert [operator for operator, _ in timed] == [*traced.forward, *traced.backward, *traced.apply]
    assert all(seconds > 0 for _, seconds in timed)


def look(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return tuple(result.shape), result.stride(), result.dtype
    return [look(one) for one in result] if isinstance(result, tuple | list) else result


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_rules_give_what_the_kernels_of_torch_give(name: str) -> None:
    """A wrong shape or stride would surface operators later, as a copy that nobody makes."""
    own = set()

    def both(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, float]:
        result = meta_result(function, args, kwargs)
        if function._opname in RULES and not function._opname.endswith("_"):
            own.add(function._opname)
            assert look(result) == look(function(*args, **kwargs)), function
        return result, 0.0

    recorder = OperatorRecorder(both)
    with torch.device("meta"), recorder:
        TracedStep(SUBJECTS[name], 2, recorder).run()
    assert len(own) > 10


def test_bytes_of_operators_whose_bytes_are_known() -> None:
    """Memory-bound operators are priced by nothing else."""
    traced = trace(images(cnn), 2)
    by_name = {operator.name: operator for operator in reversed(traced.forward)}
    images_in, weights, out = 2 * 3 * 12 * 12, 8 * 3 * 9 + 8, 2 * 8 * 12 * 12
    first = by_name["convolution"]
    assert (first.read, first.written) == (4 * (images_in + weights), 4 * out)
    assert (by_name["relu_"].read, by_name["relu_"].written) == (4 * out, 4 * out)
    pooled = 2 * 8 * 6 * 6
    pool = by_name["max_pool2d_with_indices"]
    assert (pool.read, pool.written, pool.flops) == (4 * out, (4 + 8) * pooled, 9 * pooled)
    (update,) = traced.apply
    assert (update.read, update.written) == (4 * 3 * traced.size, 4 * 2 * traced.size)


def test_a_convolution_keeps_its_sizes_and_the_gradients_that_are_wanted() -> None:
    """The rate of a convolution depends on its shape; the first layer needs no gradient of the images."""
    traced = trace(images(cnn), 2)
    last, first = (one for one in traced.backward if one.module in ("0", "4") and one.kind == "convolution")
    assert isinstance(first.shape, Convolution)
    assert isinstance(last.shape, Convolution)
    assert (first.shape.data, first.shape.filter, last.shape.data) == (False, True, True)
    assert (last.shape.size, last.shape.out, last.shape.dilation) == ((6, 6), (3, 3), 2)
    forward = next(one for one in traced.forward if one.module == "4")
    assert last.flops == 2 * forward.flops


def test_the_optimizer_is_stepped_as_the_live_runtime_steps_it() -> None:
    """One vector for an elementwise optimizer, one call a parameter for others, as many passes as it makes."""

    def applied(optimizer: Any) -> tuple[int, float]:
        subject = images(lambda: nn.Sequential(nn.Flatten(), nn.Linear(432, 10)), optimizer=optimizer)
        traced = trace(subject, 1)
        big = [one for one in traced.apply if one.elements >= traced.size // 2]
        passes = sum(one.read + one.written for one in big) / 4 / traced.size
        return len(traced.apply), round(passes, 2)

    assert applied(lambda of: torch.optim.SGD(of, lr=0.1, fused=True)) == (1, 3.0)
    assert applied(lambda of: torch.optim.SGD(of, lr=0.1, momentum=0.9)) == (3, 8.0)
    calls, _ = applied(lambda of: torch.optim.Adadelta(of))
    assert calls > 10


def test_a_product_in_place_is_counted_as_one_that_is_not() -> None:
    """It would be refused, or cost as little as an addition."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(432, 10)

        def forward(self, pictures: torch.Tensor) -> torch.Tensor:
            scores = self.layer(pictures.flatten(1))
            weights = torch.ones(10, 10, device=scores.device)
            once = scores.clone().addmm_(scores, weights)
            return once[None].clone().baddbmm_(once[None], weights[None])[0]

    found = {one.name: (one.kind, one.flops) for one in trace(images(Twice), 4).forward}
    assert found["addmm_"] == found["baddbmm_"] == ("product", 2 * 4 * 10 * 10)


@pytest.mark.parametrize("fused", [False, True])
def test_the_state_of_an_optimizer_that_makes_it_at_once_counts_once(fused: bool) -> None:
    """Adagrad makes its sums before its first step; counted twice, a model would seem not to fit."""
    traced = trace(images(cnn, optimizer=lambda of: torch.optim.Adagrad(of, fused=fused)), 2)
    assert traced.optimizer == 4 * traced.size + 4


@given(
    channels=st.integers(1, 8),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    samples=st.integers(1, 4),
)
@settings(max_examples=20, deadline=None)
def test_twice_the_batch_takes_twice_the_operations(
    channels: int, kernel: int, stride: int, padding: int, samples: int
) -> None:
    """The predictor extrapolates from one batch to another by tracing both."""

    def model() -> nn.Module:
        convolution = nn.Conv2d(3, channels, kernel, stride=stride, padding=padding)
        return nn.Sequential(convolution, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))

    once, twice = (trace(images(model), count) for count in (samples, 2 * samples))
    for phase in ("forward", "backward"):
        one, two = (flops_of(getattr(each, phase), "convolution", "product") for each in (once, twice))
        assert 2 * one == two
    assert once.multiply_adds == twice.multiply_adds


@pytest.mark.parametrize(
    ("name", "billions"), [("vgg16", 15.5), ("resnet50", 4.1), ("googlenet", 1.5), ("alexnet", 0.72)]
)
def test_published_counts(name: str, billions: float) -> None:
    """Multiply-adds an image, as the papers give them."""
    assert trace(traceable_of(name), 1).multiply_adds / 1e9 == pytest.approx(billions, rel=0.01)


def test_totals_of_a_trace() -> None:
    """A size or a count of buffers that is off changes every message on the network."""
    traced: Trace = trace(images(lambda: ResNet18()((3, 16, 16), 10), side=16), 1)
    model = ResNet18()((3, 16, 16), 10)
    assert traced.size == sum(one.numel() for one in model.parameters())
    assert traced.buffers == sum(one.numel() for one in model.buffers() if one.is_floating_point())
    assert [one.name for one in traced.parameters] == [name for name, _ in model.named_parameters()]


def test_what_is_expanded_is_read_once() -> None:
    """A broadcast bias would count as a whole image."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(3, 1, 1))

        def forward(self, pictures: torch.Tensor) -> torch.Tensor:
            moved = pictures + self.shift.expand(3, 12, 12)
            return functional.adaptive_avg_pool2d(moved, 1).flatten(1)

    first = trace(images(Shifted), 2).forward[0]
    assert (first.name, first.read) == ("add", 4 * (2 * 3 * 12 * 12 + 3))


@given(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=4), st.randoms())
def test_what_is_made_like_an_expanded_tensor_lies_as_torch_lays_it(shape: list[int], chance: Any) -> None:
    """A view that works would else be refused in a trace."""
    order = chance.sample(range(len(shape)), len(shape))
    wide = torch.zeros(shape).permute(order).expand([4 if shape[at] == 1 else -1 for at in order])
    meta = torch.empty_strided(wide.shape, wide.stride(), device="meta")
    assert ordered(meta).stride() == torch.relu(wide).stride() == wide.clone().stride()


@pytest.mark.parametrize("does", [lambda x: x.sum(2), lambda x: torch.cat([x, x], 2)])
def test_a_dimension_that_is_not_there_is_refused(does: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A model that cannot run would else have a step time."""
    with (
        torch.device("meta"),
        OperatorRecorder(without_values),
        pytest.raises(IndexError, match="out of range"),
    ):
        does(torch.empty(3, 4))


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.AvgPool2d(2)])
def test_a_picture_without_a_batch_is_pooled_as_torch_pools_it(pool: nn.Module) -> None:
    """Its channels would be taken for the batch, and a pool for eight times as much memory."""
    with torch.device("meta"), OperatorRecorder(without_values):
        assert pool(torch.empty(4, 8, 8)).shape == (4, 4, 4)
