"""Flat state: a model's parameters, gradients and buffers as views into one tensor each."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline.errors import UsageError

CONTROL = 16
"""Elements in front of the parameters and of the gradients that travel with every reduction of the whole vector:
the weight and the vote to stop. Sixteen keep the vector behind them aligned to a cache line."""

Zeros = Callable[[int, torch.dtype, torch.device], Tensor]
"""Makes the memory of a flat tensor: so many zeros of a type on a device."""


def own_memory(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory of this process alone."""
    return torch.zeros(length, dtype=dtype, device=device)


@dataclass(frozen=True, eq=False)
class Flat:
    """Parameters and gradients, each one tensor with a few control elements in front."""

    params_storage: Tensor
    grad_storage: Tensor
    parameters: tuple[nn.Parameter, ...]
    """The model's own parameters, in order; their memory is ``params`` and their gradients' is ``grad``."""
    offsets: tuple[int, ...]
    """Where each parameter starts in ``params``; one more than parameters, the last is the length."""

    @property
    def params(self) -> Tensor:
        """The flat parameters."""
        return self.params_storage[CONTROL:]

    @property
    def grad(self) -> Tensor:
        """The flat gradient."""
        return self.grad_storage[CONTROL:]


def flatten_parameters(model: nn.Module, zeros: Zeros = own_memory) -> Flat:
    """Move the trainable parameters and their gradients into two flat tensors; the model goes on as before."""
    parameters = tuple(p for p in model.parameters() if p.requires_grad)
    if not parameters:
        raise UsageError("the model has no trainable parameter; a job needs at least one")
    kinds = {(p.dtype, p.device) for p in parameters}
    if len(kinds) > 1:
        dtypes = ", ".join(sorted(str(dtype) for dtype, _ in kinds))
        raise UsageError(
            f"the model's parameters are of several types ({dtypes}); convert the model to one with .to()"
        )
    ((dtype, device),) = kinds
    if dtype not in (torch.float32, torch.float64):
        raise UsageError(
            f"the model's parameters are {dtype}, in which sums over workers and counts of samples lose digits; "
            "keep them in float32 and compute in less with torch.autocast"
        )
    offsets = [0]
    for parameter in parameters:
        offsets.append(offsets[-1] + parameter.numel())
    flat = Flat(
        params_storage=zeros(CONTROL + offsets[-1], dtype, device),
        grad_storage=zeros(CONTROL + offsets[-1], dtype, device),
        parameters=parameters,
        offsets=tuple(offsets),
    )
    params, grad = flat.params, flat.grad
    with torch.no_grad():
        for parameter, start, stop in zip(parameters, offsets, offsets[1:], strict=False):
            view = params[start:stop].view(parameter.shape)
            view.copy_(parameter)
            parameter.data = view
            parameter.grad = grad[start:stop].view(parameter.shape)
    return flat


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
