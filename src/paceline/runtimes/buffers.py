"""A model's buffers as one flat tensor, whatever the model makes of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline.errors import UsageError


@dataclass(eq=False, kw_only=True)
class _Buffer:
    """One tensor that a model has registered, perhaps in several modules."""

    names: list[str]
    registered: list[tuple[dict[str, Tensor | None], str]]
    """For each name, the module's own table of buffers, and the name in it."""
    tensor: Tensor
    """The object itself, so that all that refers to it still does."""
    view: Tensor
    """Where its data belong: in the flat tensor, or in memory of its own."""

    @property
    def now(self) -> Tensor | None:
        """What is registered in its place; None where that is not one tensor."""
        first, *others = (table.get(key) for table, key in self.registered)
        return first if all(one is first for one in others) else None

    @property
    def fits(self) -> bool:
        now, view = self.now, self.view
        return now is not None and (now.shape, now.dtype, now.device) == (view.shape, view.dtype, view.device)

    def register(self, tensor: Tensor) -> None:
        self.tensor = tensor
        for table, key in self.registered:
            table[key] = tensor


class FlatBuffers:
    """The buffers of the parameters' type in a flat tensor, or of several models of the same kind a row for each.

    Buffers of other types, counters for one, stay outside. ``named`` holds all of them, of several models stacked. A
    tensor that is registered twice is one buffer, by its first name.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        found, self._dtype = [_buffers_of(model) for model in models], trained_dtype(models[0])
        sizes = [one.tensor.numel() for one in found[0] if one.tensor.dtype == self._dtype]
        device = found[0][0].tensor.device if found[0] else torch.device("cpu")
        rows = torch.zeros(len(models), sum(sizes), dtype=self._dtype, device=device)
        self.flat = rows if len(models) > 1 else rows[0]
        self._named: dict[str, Tensor] = {}
        start = 0
        for copies in zip(*found, strict=True):
            first = copies[0].tensor
            stacked = first.new_empty(len(models), *first.shape)
            if first.dtype == self._dtype:
                stacked = rows[:, start : start + first.numel()].view_as(stacked)
                start += first.numel()
            stacked.copy_(first.expand_as(stacked))
            self._named[copies[0].names[0]] = stacked if len(models) > 1 else stacked[0]
            for one, view in zip(copies, stacked, strict=True):
                one.tensor.data = one.view = view
        self.names = [one.names for one in found[0]]
        """Of each buffer in ``named``, in its order: more than one where it is shared."""
        self._registered = [(one, *place) for own in found for one in own for place in one.registered]

    @property
    def named(self) -> dict[str, Tensor]:
        """The memory that the model itself uses: writing to it changes the model."""
        self.reattach()
        return self._named

    def check(self) -> None:
        """Before the flat tensor is read as the model's: reattach, and refuse a buffer that has become another one."""
        for one in self.reattach():
            if one.view.dtype == self._dtype:
                raise UsageError(
                    f"buffer {one.names[0]} of the model {_changed(one)}, and buffers are averaged over the workers; "
                    "keep its shape and type, or keep what changes them in an attribute that is no buffer"
                )

    def reattach(self) -> list[_Buffer]:
        """Take over the buffers that the model has assigned anew; return those that do not fit their memory.

        Tensors that were replaced keep their values, in memory of their own, wherever the model still has them.
        """
        replaced = {
            id(one): one
            for one, table, key in self._registered
            if (now := table.get(key)) is not one.tensor or now.data_ptr() != one.view.data_ptr()
        }
        if not replaced:
            return []
        fitting = [one for one in replaced.values() if one.fits]
        with torch.inference_mode(False), torch.no_grad():
            self._take_over(fitting)
        return [one for one in replaced.values() if not one.fits]

    def _take_over(self, replaced: Sequence[_Buffer]) -> None:
        """One may have become what another was, or two the same."""
        found = [(one, now, now.detach().clone()) for one in replaced if (now := one.now) is not None]
        for one, now, _ in found:
            if one.tensor is not now:
                one.tensor.data = one.tensor.data.clone()
        taken = {id(one.tensor) for one, *_ in self._registered} - {id(one.tensor) for one in replaced}
        for one, now, value in found:
            one.view.copy_(value)
            if id(now) in taken or now.is_inference():
                one.register(one.view.detach())
            else:
                now.data = one.view
                one.register(now)
            taken.add(id(one.tensor))


def _changed(buffer: _Buffer) -> str:
    now, view = buffer.now, buffer.view
    if now is not None:
        return f"was {view.dtype} of shape {tuple(view.shape)} and is {now.dtype} of shape {tuple(now.shape)} now"
    _, *others = buffer.names
    return f"and {others[0]} were one tensor and are not any more" if others else "was removed"


def trained_dtype(model: nn.Module) -> torch.dtype:
    """The type of the trainable parameters, and so of the buffers that are averaged: statistics, of batch norm."""
    return next((one.dtype for one in model.parameters() if one.requires_grad), torch.float32)


def flat_buffers(model: nn.Module) -> int:
    """How many elements of buffers travel; one that is shared counts once."""
    dtype = trained_dtype(model)
    return sum(one.numel() for one in model.buffers() if one.dtype == dtype)


def _buffers_of(model: nn.Module) -> list[_Buffer]:
    found: dict[int, _Buffer] = {}
    for prefix, module in model.named_modules():
        for key, tensor in module._buffers.items():
            if tensor is not None:
                new = _Buffer(names=[], registered=[], tensor=tensor, view=tensor)
                one = found.setdefault(id(tensor), new)
                one.names.append(f"{prefix}.{key}" if prefix else key)
                one.registered.append((module._buffers, key))
    return list(found.values())
