"""A model whose parameters, gradients and buffers are views into one tensor each, and its optimizer on them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn.parameter import is_lazy

from paceline.errors import UsageError
from paceline.jobs.batches import Batch, batch_loss
from paceline.jobs.job import Job, Traceable
from paceline.jobs.optimizers import clip_norm_, plain_step, takes_vector
from paceline.jobs.step import NO_HOOKS, StepHooks, accumulate_gradient
from paceline.runtimes.buffers import FlatBuffers

CONTROL = 16
"""Elements in front of the parameters and of the gradients that travel with every reduction of the whole vector:
the weight, the vote to stop and, of a gradient that is measured, the squared norm of each worker's own. Sixteen keep
the vector behind them aligned to a cache line."""
WEIGHT, VOTE, SQUARES = range(3)

Zeros = Callable[[int, torch.dtype, torch.device], Tensor]


def own_memory(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(length, dtype=dtype, device=device)


class Flat:
    """Trainable parameters and their gradients, moved into two flat tensors; the model goes on as before.

    ``offsets`` says where each of the ``parameters`` starts in ``params``; it has one more, the length. A parameter
    whose channels are last in memory keeps them there, and any other one is contiguous.

    With ``others``, the parameters of models of the same kind, ``params`` and ``grad`` are matrices with a row for each
    model; they all become equal to the first.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        zeros: Zeros = own_memory,
        others: Sequence[Iterable[nn.Parameter]] = (),
    ) -> None:
        self.parameters = tuple(p for p in parameters if p.requires_grad)
        if not self.parameters:
            raise UsageError("the model has no trainable parameter; a job needs at least one")
        (dtype, device), *mixed = {(p.dtype, p.device) for p in self.parameters}
        if mixed or dtype not in (torch.float32, torch.float64):
            dtypes = ", ".join(sorted({str(p.dtype) for p in self.parameters}))
            raise UsageError(
                f"the model's parameters are {dtypes}; they must all be float32, or all float64, and on one device, "
                "so that sums keep their digits: convert the model with .to(), and compute in less with torch.autocast"
            )
        self.offsets = (0, *accumulate(p.numel() for p in self.parameters))
        length = CONTROL + (1 + len(others)) * self.offsets[-1]
        self.params_storage, self.grad_storage = (zeros(length, dtype, device) for _ in range(2))
        self.params, self.grad = self.params_storage[CONTROL:], self.grad_storage[CONTROL:]
        self.param_rows, self.grad_rows = (one.view(1 + len(others), -1) for one in (self.params, self.grad))
        """As matrices, also of one model."""
        self._views: list[tuple[nn.Parameter, Tensor]] = []
        self._move(self.parameters, 0)
        for row, other in enumerate(others, start=1):
            self._move([p for p in other if p.requires_grad], row)
            self.param_rows[row] = self.param_rows[0]
        if others:
            self.params, self.grad = self.param_rows, self.grad_rows
        self._all = [one for one, _ in self._views]
        self._addresses = [one.data_ptr() for one in self._all]

    @torch.no_grad()
    def _move(self, parameters: Iterable[nn.Parameter], row: int) -> None:
        params, grad = self.param_rows[row], self.grad_rows[row]
        for parameter, (start, stop) in zip(parameters, pairwise(self.offsets), strict=True):
            strides = strides_of(parameter)
            view = params[start:stop].as_strided(parameter.shape, strides)
            view.copy_(parameter)
            parameter.data = view
            self._views.append((parameter, view))
            parameter.grad = grad[start:stop].as_strided(parameter.shape, strides)

    def moved(self) -> list[tuple[nn.Parameter, Tensor]]:
        """The parameters of all models whose data were replaced since, as by ``p.data = ...``, with their views."""
        if list(map(Tensor.data_ptr, self._all)) == self._addresses:
            return []
        # share_memory() moves the vector itself.
        self._addresses = [view.data_ptr() for _, view in self._views]
        return [(one, view) for one, view in self._views if one.data_ptr() != view.data_ptr()]

    @torch.inference_mode(False)
    @torch.no_grad()
    def reattach(self, moved: Sequence[tuple[nn.Parameter, Tensor]]) -> None:
        """Take over what the parameters hold now; they are views again. Two may have exchanged their data."""
        values = [one.data.clone() for one, _ in moved]
        for (parameter, view), value in zip(moved, values, strict=True):
            view.copy_(value)
            parameter.data = view

    def stacked(self, rows: Tensor) -> list[Tensor]:
        """What a matrix with a row a model holds of each parameter, all models' in one view."""
        return [
            rows[:, start:stop].as_strided(
                (len(rows), *parameter.shape), (rows.stride(0), *strides_of(parameter))
            )
            for parameter, (start, stop) in zip(self.parameters, pairwise(self.offsets), strict=True)
        ]


def strides_of(parameter: Tensor) -> tuple[int, ...]:
    """Of its view into a flat vector: convolutions are computed as the strides of their weights say."""
    for dimensions, form in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if parameter.dim() == dimensions and parameter.is_contiguous(memory_format=form):
            return parameter.stride()
    return torch.empty(parameter.shape, device="meta").stride()


def check_model(model: nn.Module) -> None:
    """Refuse parameters that cannot be moved: those without a shape yet, and those that share their memory."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for name, one in tensors:
        if is_lazy(one):
            raise UsageError(
                f"{name} of the model has no shape yet, as of a lazy module; run one mini-batch through the model first"
            )
    for first, second in _overlapping(tensors):
        (name, one), (other, another) = tensors[first], tensors[second]
        tied = isinstance(another, nn.Parameter) and (one.shape, one.stride()) == (
            another.shape,
            another.stride(),
        )
        instead = f"one of them its own memory: model.{other}.data = model.{other}.data.clone()"
        if tied:
            instead = f"the model one Parameter for both, before the optimizer is made: model.{other} = model.{name}"
        raise UsageError(
            f"{name} and {other} of the model are tied by their data: they are two tensors in the same memory, and "
            f"each is moved to a place of its own; give {instead}"
        )


def _overlapping(tensors: Sequence[tuple[str, Tensor]]) -> Iterator[tuple[int, int]]:
    """The places of each two that share memory, of which at least one is trained."""
    spans = [
        (one.data_ptr(), one.data_ptr() + _span(one), place)
        for place, (_, one) in enumerate(tensors)
        if type(one.data) is Tensor and one.layout is torch.strided and not one.is_meta and one.numel()
    ]
    before: list[tuple[int, int]] = []
    for start, stop, place in sorted(spans):
        before = [(end, other) for end, other in before if end > start]
        for _, other in before:
            one, another = tensors[place][1], tensors[other][1]
            if (one.requires_grad or another.requires_grad) and _share_elements(one, another):
                yield min(place, other), max(place, other)
        before.append((stop, place))


def _span(tensor: Tensor) -> int:
    """Bytes from its first element to its last."""
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size()


def _share_elements(one: Tensor, other: Tensor) -> bool:
    """Of two whose spans meet: the columns of a matrix lie between each other's."""
    size = one.element_size()
    start = min(one.data_ptr(), other.data_ptr())
    stop = max(tensor.data_ptr() + _span(tensor) for tensor in (one, other))
    if other.element_size() != size or (one.data_ptr() - other.data_ptr()) % size:
        return True
    taken = torch.zeros((stop - start) // size, dtype=torch.bool)
    first, second = (
        taken.as_strided(tensor.shape, tensor.stride(), (tensor.data_ptr() - start) // size)
        for tensor in (one, other)
    )
    first.fill_(True)
    return bool(second.any())


class FlatModel:
    """A model on flat buffers with its loss and optimizer; with ``others``, several learners of the same kind.

    ``flat`` and ``buffers`` are the memory that the model itself uses: writing to them changes the model.
    """

    def __init__(
        self,
        job: Job | Traceable,
        model: nn.Module,
        zeros: Zeros = own_memory,
        others: Sequence[nn.Module] = (),
    ) -> None:
        check_model(model)
        self.job, self.model = job, model.train()
        self.learners = (self.model, *(other.train() for other in others))
        self.flat = Flat(self.model.parameters(), zeros, [other.parameters() for other in others])
        self.named_buffers = FlatBuffers(self.learners)
        self.buffers = self.named_buffers.flat
        self.optimizer = ScheduledOptimizer(
            flat_optimizer(job.optimizer, self.flat), self.flat.grad, job.clip_norm
        )

    def forward(self, batch: Batch, learner: int = 0) -> Tensor:
        model = self.learners[learner]
        if self.job.precision == "fp32":
            return batch_loss(self.job, model, batch)
        with torch.autocast(self.flat.params.device.type, torch.bfloat16):
            return batch_loss(self.job, model, batch)

    def accumulate(
        self, batches: Iterator[Batch], shares: Sequence[float], hooks: StepHooks = NO_HOOKS
    ) -> list[float]:
        return accumulate_gradient(self.forward, self.flat.grad_storage, batches, shares, hooks)


class ScheduledOptimizer:
    """An optimizer whose learning rates are those that it was built with, times a schedule's factor."""

    def __init__(self, optimizer: optim.Optimizer, grad: Tensor, clip_norm: float | None = None) -> None:
        self._optimizer, self._grad, self._clip_norm = optimizer, grad, clip_norm
        self.base_rates = [group["lr"] for group in self._optimizer.param_groups]
        self._step = plain_step(self._optimizer)

    def step(self, factor: float = 1.0) -> None:
        clip_norm_(self._grad, self._clip_norm)
        for group, rate in zip(self._optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = rate * factor
        self._step()

    def follow(self, settings: Sequence[Mapping[str, Any]]) -> None:
        """Take over the settings of each group of parameters, as another optimizer of the same kind has them."""
        for group, changed in zip(self._optimizer.param_groups, settings, strict=True):
            group.update(changed)
        self.base_rates = [group["lr"] for group in self._optimizer.param_groups]

    def forget(self) -> None:
        """Begin anew: momentum and all else that was gathered is gone."""
        self._optimizer.state.clear()

    def state(self) -> dict[int, Any]:
        return self._optimizer.state_dict()["state"]  # type: ignore[no-any-return]

    def load(self, state: dict[Any, Any]) -> None:
        """Take over a saved state; the parameters' numbers may have become text in a file."""
        groups = self._optimizer.state_dict()["param_groups"]
        slots = {int(index): slot for index, slot in state.items()}
        self._optimizer.load_state_dict({"state": slots, "param_groups": groups})


def flat_optimizer(
    factory: Callable[[Iterable[nn.Parameter]], optim.Optimizer], flat: Flat
) -> optim.Optimizer:
    """Build the optimizer on one flat parameter if it is elementwise and takes all alike; else on the model's own."""
    optimizer = factory(flat.parameters)
    if not takes_vector(optimizer, len(flat.parameters)):
        if flat.params.dim() > 1:
            raise _not_shared(optimizer)
        return optimizer
    whole = nn.Parameter(flat.params)
    whole.grad = flat.grad
    return factory([whole])


def _not_shared(optimizer: optim.Optimizer) -> UsageError:
    """Why several learners, whose parameters are one matrix, cannot have one optimizer."""
    groups = len(optimizer.param_groups)
    why, instead = "does not treat every element alike", "an optimizer such as sgd or adam"
    if groups > 1:
        why, instead = f"has {groups} groups of parameters", "one for all of them (of sgd: decay=all)"
    return UsageError(
        f"several learners cannot share the optimizer {type(optimizer).__name__}, which {why}; choose {instead}, or "
        "learners=1"
    )
