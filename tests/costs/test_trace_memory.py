"""What a trace holds is what torch holds: autograd's saved tensors, and the peak of torch's own CPU allocator."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

from paceline.costs.trace.trace import Trace, trace
from paceline.jobs.build import traceable_of
from paceline.jobs.job import Traceable
from paceline.jobs.models.resnet import ResNet18
from paceline.jobs.optimizers import Adam, Sgd
from paceline.studies.predict.compute import interpolate
from small_models import cnn, images, words

SUBJECTS = {
    "mlp": traceable_of("mlp:hidden=300,layers=2"),
    "cnn": images(cnn),
    "resnet18": images(lambda: ResNet18()((3, 16, 16), 10), side=16),
    "googlenet": traceable_of("googlenet", shape=(3, 64, 64), classes=10),
    "transformer": words(),
    "gpt": traceable_of("gpt:layers=2,heads=2,width=32,context=16,vocabulary=100"),
}


def saved_by_torch(subject: Traceable, samples: int, *, mixed: bool = False) -> int:
    """Bytes of the different memories that autograd keeps for backward, parameters and mini-batch apart."""
    model = subject.model().train()
    inputs, targets = subject.batch(samples)
    there = {
        one.untyped_storage().data_ptr() for one in (*model.parameters(), *model.buffers(), inputs, targets)
    }
    kept: dict[int, tuple[int, torch.Tensor]] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in there:
            kept[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    with (
        saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=mixed),
    ):
        subject.loss(model(inputs), targets)
    return sum(size for size, _ in kept.values())


def between(traced: Trace, *, mixed: bool = False) -> int:
    """Bytes held when forward is over: the first operator of backward makes nothing."""
    first = traced.backward[0]
    assert first.name == "zero_"
    return first.held_mixed if mixed else first.held


@pytest.mark.parametrize("name", SUBJECTS)
def test_what_is_held_for_backward_is_what_autograd_saves(name: str) -> None:
    """Wrong here, the memory of every training would be off; the loss itself is held too."""
    assert between(trace(SUBJECTS[name], 5)) - 4 == saved_by_torch(SUBJECTS[name], 5)


def test_mixed_precision_holds_what_autocast_saves() -> None:
    """Half of the activations, and a copy of the weights in 16 bits."""
    found = between(trace(SUBJECTS["googlenet"], 8), mixed=True)
    assert found == pytest.approx(saved_by_torch(SUBJECTS["googlenet"], 8, mixed=True), rel=0.1)


def test_mixed_precision_by_hand() -> None:
    """Weights, the mini-batch and what is between layers have 16 bits; the loss and its logarithms have 32."""
    weights = 2 * (100 * 50 + 50 + 50 * 10 + 10)
    assert between(trace(perceptron(nn.ReLU), 7), mixed=True) == weights + 7 * (200 + 100 + 40) + 8


def allocated_by_torch(subject: Traceable, samples: int) -> int:
    """The most bytes that torch's CPU allocator has given out at a time beyond what was there before the step."""
    model = subject.model().train()
    for one in model.parameters():
        one.grad = torch.zeros_like(one)
    inputs, targets = subject.batch(samples)

    def step() -> None:
        subject.loss(model(inputs), targets).backward()

    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [one for one in profiler.profiler.kineto_results.events() if one.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("name", sorted(set(SUBJECTS) - {"googlenet"}))
def test_the_peak_is_that_of_torchs_allocator(name: str) -> None:
    """Kernels may take memory for themselves, such as a copy of the weights in another order, which no trace sees."""
    traced = trace(SUBJECTS[name], 16)
    real = allocated_by_torch(SUBJECTS[name], 16)
    assert real * 0.7 <= traced.held() - traced.inputs <= real * 1.02


def perceptron(act: Callable[[], nn.Module]) -> Traceable:
    return Traceable(
        name="by hand",
        model=lambda: nn.Sequential(nn.Linear(100, 50), act(), nn.Linear(50, 10)),
        loss=cross_entropy,
        batch=lambda samples: (torch.randn(samples, 100), torch.randint(10, (samples,))),
        optimizer=Sgd(momentum=0),
    )


@pytest.mark.parametrize(
    ("act", "hidden"), [(nn.ReLU, 50), (lambda: nn.ReLU(inplace=True), 50), (nn.GELU, 100)]
)
def test_a_perceptron_by_hand(act: Callable[[], nn.Module], hidden: int) -> None:
    """ReLU keeps its result, which the next layer reads anyway; GELU its argument as well; in place changes nothing.

    The loss keeps the logarithms of 10 shares a sample, its weight and itself.
    """
    traced = trace(perceptron(act), 7)
    assert between(traced) == 4 * (7 * (hidden + 10) + 2)
    assert traced.inputs == 7 * (400 + 8)
    assert traced.optimizer == traced.fixed == 0


def test_batch_normalisation_and_its_buffers() -> None:
    """It keeps its input, mean and inverse deviation; running statistics and a counter of steps are buffers."""
    subject = Traceable(
        name="normalised",
        model=lambda: nn.Sequential(nn.Linear(10, 20, bias=False), nn.BatchNorm1d(20), nn.Linear(20, 10)),
        loss=cross_entropy,
        batch=lambda samples: (torch.randn(samples, 10), torch.randint(10, (samples,))),
        optimizer=Adam(),
    )
    traced = trace(subject, 6)
    assert between(traced) == 4 * (6 * (20 + 20 + 10) + 20 + 20 + 2)
    assert traced.fixed == 4 * 40 + 8
    assert traced.optimizer == 2 * 4 * traced.size


@pytest.mark.parametrize(
    ("optimizer", "slots"), [("sgd:momentum=0", 0), ("sgd", 1), ("adam", 2), ("adamw", 2)]
)
def test_an_optimizers_state(optimizer: str, slots: int) -> None:
    """Per element, as torch's own has it after a step."""
    traced = trace(traceable_of("mlp", optimizer=optimizer), 2)
    assert traced.optimizer == slots * 4 * traced.size


def test_memory_between_two_batches_is_that_of_its_own_trace() -> None:
    """The largest batch that fits is looked for on the line between two traces: it must not miss the peak."""
    subject = SUBJECTS["googlenet"]
    small, large = trace(subject, 2), trace(subject, 64)
    for samples in (3, 17, 40):
        guess, real = interpolate(small, large, samples), trace(subject, samples)
        assert guess is not None
        assert guess.held() == pytest.approx(real.held(), rel=1e-6)
        assert guess.held(mixed=True) == pytest.approx(real.held(mixed=True), rel=1e-6)
