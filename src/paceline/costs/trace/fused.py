"""Functions on meta tensors as a device runs them, where torch would take them apart."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from paceline.costs.trace.recurrent import is_plain, recurrent

_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_attend_in_parts = functional.scaled_dot_product_attention
_RECURRENT = {getattr(torch, name): name for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}


class FusedKernels(TorchFunctionMode):
    """Takes the kernels that a real device takes for attention, recurrent layers and Mish.

    Torch chooses a kernel by device and has none of these for meta, so that the scores of attention, for one, would be
    traced as if they were written to memory. The CPU's stand for all: what is counted hardly depends on which it is.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace these functions, leave all others alone."""
        del types
        kwargs = kwargs or {}
        if func is _attend_in_parts:
            return _attention(*args, **kwargs)
        if func is functional.multi_head_attention_forward:  # while it runs, no call of its own comes by here
            with _attention_inside():
                return func(*args, **kwargs)
        if func is functional.mish and args[0].is_meta:
            return _Mish.apply(args[0])  # type: ignore[no-untyped-call]
        name = _RECURRENT.get(func)
        if name is not None and is_plain(*args):
            return recurrent(name, *args)
        return func(*args, **kwargs)


@contextmanager
def _attention_inside() -> Iterator[None]:
    functional.scaled_dot_product_attention = _attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = _attend_in_parts


class _Mish(torch.autograd.Function):
    """Mish whose backward is one operator."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        """As torch's."""
        ctx.save_for_backward(inputs)
        return functional.mish(inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Below autograd, which would take it apart on meta."""
        (inputs,) = ctx.saved_tensors
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.aten.mish_backward(grad, inputs)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    plain = query.dim() == key.dim() == value.dim() == 4 and query.is_meta and not dropout_p
    fit = plain and query.shape[-1] == key.shape[-1] == value.shape[-1] and key.shape[2] == value.shape[2]
    same = fit and (enable_gqa or query.shape[1] == key.shape[1]) and query.shape[0] == key.shape[0]
    if not same or (attn_mask is not None and attn_mask.requires_grad):
        return _attend_in_parts(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    made: Tensor = _attend(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
    return made
