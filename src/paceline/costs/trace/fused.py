"""Functions on meta tensors as a device runs them, where torch would take them apart."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_attend_in_parts = functional.scaled_dot_product_attention


class FusedKernels(TorchFunctionMode):
    """Takes the kernels that a CPU takes for attention, recurrent layers and Mish.

    Torch has none of these for meta, so that the scores of attention, for one, would be traced as if they were written
    to memory.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if func is _attend_in_parts:
            return _attention(*args, **kwargs)
        if func is functional.multi_head_attention_forward:  # its own calls are not dispatched here
            functional.scaled_dot_product_attention = _attention
            try:
                return func(*args, **kwargs)
            finally:
                functional.scaled_dot_product_attention = _attend_in_parts
        if func is functional.mish and args[0].is_meta:
            return _Mish.apply(args[0])  # type: ignore[no-untyped-call]
        if func in _CELLS and _is_plain(*args):
            return _recurrent(func, *args)
        return func(*args, **kwargs)


class _Mish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
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
        with _in_own_dtype(query):
            return _attend_in_parts(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
    made: Tensor = _attend(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
    return made


@contextmanager
def _in_own_dtype(query: Tensor) -> Iterator[None]:
    """A GPU's kernels keep 16-bit numbers; attention in parts would be traced in 32."""
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()  # type: ignore[no-untyped-call]
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before or query.is_meta)
    try:
        yield
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)


States = tuple[Tensor, ...]

_LSTM = 2


def _is_plain(inputs: Any, _: Any, weights: Any = None, *__: Any) -> bool:
    """Whether these are the arguments of sequences of one length, on meta; packed ones need values."""
    return isinstance(inputs, Tensor) and inputs.is_meta and isinstance(weights, list)


def _recurrent(
    function: Any,
    inputs: Tensor,
    hidden: Tensor | Sequence[Tensor],
    weights: Sequence[Tensor],
    biased: bool,
    layers: int,
    dropout: float,
    training: bool,
    both_ways: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    directions = 2 if both_ways else 1
    many = len(weights) // (layers * directions)
    projected = many != (4 if biased else 2)
    fused = function is torch.lstm and inputs.dtype == torch.float32 and not projected
    begin = (hidden,) if isinstance(hidden, Tensor) else tuple(hidden)
    values = inputs.transpose(0, 1) if batch_first else inputs
    values = values.contiguous() if fused else values
    ends = []
    for layer in range(layers):
        made = []
        for place in range(layer * directions, (layer + 1) * directions):
            states, reverse = tuple(state[place] for state in begin), place % directions > 0
            own = weights[place * many : (place + 1) * many]
            if fused:
                settings = (layers, biased, both_ways, batch_first, training)
                output, end = _fused_lstm(values, states, own, reverse, settings)
            else:
                output, end = _unrolled(_CELLS[function], values, states, own, reverse, projected)
            made.append(output)
            ends.append(end)
        values = torch.cat(made, -1) if both_ways else made[0]
        if dropout and training and layer < layers - 1:
            values = functional.dropout(values, dropout)
    last = tuple(torch.stack(states) for states in zip(*ends, strict=True))
    return (values.transpose(0, 1) if batch_first else values, *last)


def _fused_lstm(
    inputs: Tensor, states: States, weights: Sequence[Tensor], reverse: bool, settings: tuple[Any, ...]
) -> tuple[Tensor, States]:
    biases = weights[2:] or [
        torch.zeros(weight.shape, dtype=weight.dtype, device=weight.device) for weight in weights
    ]
    rest = (reverse, [], _LSTM, states[0].shape[-1], *settings)
    output, *end, _ = torch.ops.aten.mkldnn_rnn_layer(inputs, *weights[:2], *biases, *states, *rest)
    return output, tuple(end)


def _unrolled(
    cell: Callable[[Tensor, Tensor, States], States],
    inputs: Tensor,
    states: States,
    weights: Sequence[Tensor],
    reverse: bool,
    projected: bool,
) -> tuple[Tensor, States]:
    """All inputs are multiplied at once, then the states step by step."""
    to_input, to_hidden, *biases = weights[:-1] if projected else weights
    bias: Sequence[Tensor | None] = biases or (None, None)
    steps = functional.linear(inputs, to_input, bias[0]).unbind(0)
    outputs = []
    for step in reversed(steps) if reverse else steps:
        states = cell(step, functional.linear(states[0], to_hidden, bias[1]), states)
        if projected:
            states = (states[0].matmul(weights[-1].t()), *states[1:])
        outputs.append(states[0])
    return torch.stack(outputs[::-1] if reverse else outputs), states


def _lstm_cell(given: Tensor, own: Tensor, states: States) -> States:
    into, forget, new, out = own.add_(given).unsafe_chunk(4, 1)
    into, forget, new, out = into.sigmoid_(), forget.sigmoid_(), new.tanh_(), out.sigmoid_()
    cell = (forget * states[1]).add_(into * new)
    return out * cell.tanh(), cell


def _gru_cell(given: Tensor, own: Tensor, states: States) -> States:
    given_parts, parts = given.unsafe_chunk(3, 1), own.unsafe_chunk(3, 1)
    reset = parts[0].add_(given_parts[0]).sigmoid_()
    update = parts[1].add_(given_parts[1]).sigmoid_()
    new = given_parts[2].add(parts[2].mul_(reset)).tanh_()
    return ((states[0] - new).mul_(update).add_(new),)


_CELLS: Mapping[Any, Callable[[Tensor, Tensor, States], States]] = {
    torch.lstm: _lstm_cell,
    torch.gru: _gru_cell,
    torch.rnn_tanh: lambda given, own, _: (own.add_(given).tanh(),),
    torch.rnn_relu: lambda given, own, _: (own.add_(given).relu(),),
}
