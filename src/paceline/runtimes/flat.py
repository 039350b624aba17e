"""A model whose parameters, gradients and buffers are views into one tensor each, and its optimizer on them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn, optim

from paceline.errors import UsageError
from paceline.jobs.batches import Batch, batch_loss
from paceline.jobs.job import Job, Traceable
from paceline.jobs.optimizers import clip_norm_, plain_step, takes_vector
from paceline.jobs.step import NO_HOOKS, StepHooks, accumulate_gradient

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

    ``offsets`` says where each of the ``parameters`` starts in ``params``; it has one more, the length.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], zeros: Zeros = own_memory) -> None:
        self.parameters = tuple(p for p in parameters if p.requires_grad)
        if not self.parameters:
            raise UsageError("the model has no trainable parameter; a job needs at least one")
        (dtype, device), *others = {(p.dtype, p.device) for p in self.parameters}
        if others or dtype not in (torch.float32, torch.float64):
            dtypes = ", ".join(sorted({str(p.dtype) for p in self.parameters}))
            raise UsageError(
                f"the model's parameters are {dtypes}; they must all be float32, or all float64, and on one device, "
                "so that sums keep their digits: convert the model with .to(), and compute in less with torch.autocast"
            )
        self.offsets = (0, *accumulate(p.numel() for p in self.parameters))
        length = CONTROL + self.offsets[-1]
        self.params_storage, self.grad_storage = (zeros(length, dtype, device) for _ in range(2))
        self.params, self.grad = self.params_storage[CONTROL:], self.grad_storage[CONTROL:]
        with torch.no_grad():
            for parameter, start, stop in zip(self.parameters, self.offsets, self.offsets[1:], strict=False):
                view = self.params[start:stop].view(parameter.shape)
                view.copy_(parameter)
                parameter.data = view
                parameter.grad = self.grad[start:stop].view(parameter.shape)


def flatten_buffers(model: nn.Module) -> Tensor:
    """Move the float32 buffers into one flat tensor; those of other types, counters for one, stay where they are."""
    found = [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if buffer.dtype == torch.float32
    ]
    device = found[0][2].device if found else torch.device("cpu")
    flat = torch.zeros(sum(buffer.numel() for _, _, buffer in found), device=device)
    start = 0
    for module, name, buffer in found:
        view = flat[start : start + buffer.numel()].view(buffer.shape)
        view.copy_(buffer)
        module._buffers[name] = view
        start += buffer.numel()
    return flat


class FlatModel:
    """A model on flat buffers with its loss and optimizer.

    ``flat`` and ``buffers`` are the memory that the model itself uses: writing to them changes the model.
    """

    def __init__(self, job: Job | Traceable, model: nn.Module, zeros: Zeros = own_memory) -> None:
        self.job, self.model = job, model.train()
        self.flat = Flat(self.model.parameters(), zeros)
        self.buffers = flatten_buffers(self.model)
        self.optimizer = ScheduledOptimizer(job, self.flat)

    def forward(self, batch: Batch) -> Tensor:
        if self.job.precision == "fp32":
            return batch_loss(self.job, self.model, batch)
        with torch.autocast(self.flat.params.device.type, torch.bfloat16):
            return batch_loss(self.job, self.model, batch)

    def accumulate(
        self, batches: Iterator[Batch], shares: Sequence[float], hooks: StepHooks = NO_HOOKS
    ) -> list[float]:
        return accumulate_gradient(self.forward, self.flat.grad_storage, batches, shares, hooks)


class ScheduledOptimizer:
    """An optimizer whose learning rates are those that it was built with, times a schedule's factor."""

    def __init__(self, job: Job | Traceable, flat: Flat) -> None:
        self._optimizer = flat_optimizer(job.optimizer, flat)
        self._grad, self._clip_norm = flat.grad, job.clip_norm
        self.base_rates = [group["lr"] for group in self._optimizer.param_groups]
        self._step = plain_step(self._optimizer)

    def step(self, factor: float = 1.0) -> None:
        clip_norm_(self._grad, self._clip_norm)
        for group, rate in zip(self._optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = rate * factor
        self._step()

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
        return optimizer
    whole = nn.Parameter(flat.params)
    whole.grad = flat.grad
    return factory([whole])
