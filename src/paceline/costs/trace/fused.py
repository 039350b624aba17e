"""Attention as one operator on meta tensors, where torch would take it apart."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class FusedAttention(TorchFunctionMode):
    """Takes the fused kernel for ``scaled_dot_product_attention``, as every real device does when it can.

    Torch chooses the kernel by device and has none for meta, so that the scores would be traced as if they were written
    to memory. The CPU's stands for all: what is counted does not depend on which it is.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace the one function, leave all others alone."""
        del types
        if func is functional.scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


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
    plain = query.dim() == key.dim() == value.dim() == 4 and query.is_meta
    fit = plain and query.shape[-1] == key.shape[-1] == value.shape[-1] and key.shape[2] == value.shape[2]
    same = fit and (enable_gqa or query.shape[1] == key.shape[1]) and query.shape[0] == key.shape[0]
    if not same or (attn_mask is not None and attn_mask.requires_grad):
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    made: Tensor = _attend(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
    return made
