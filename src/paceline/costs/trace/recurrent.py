"""Recurrent layers on meta tensors as torch's CPU runs them.

Torch chooses by device how it runs ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN``. On the CPU a layer of an LSTM is one
operator of oneDNN, and the other layers multiply all inputs of a sequence by their weights at once; on meta tensors
every step of a sequence would be traced on its own. The CPU's way stands for all devices, as it does for attention.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

States = tuple[Tensor, ...]
Layer = Callable[[Tensor, States, Sequence[Tensor], bool], tuple[Tensor, States]]

_LSTM = 2
"""OneDNN's number of the kind of layer."""


def is_plain(inputs: Any, hidden: Any, weights: Any = None, *_: Any) -> bool:
    """Whether these are the arguments of sequences of one length, on meta; packed ones need values."""
    del hidden
    return isinstance(inputs, Tensor) and inputs.is_meta and isinstance(weights, list)


def recurrent(
    name: str,
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
    """The outputs and the last states of ``torch.lstm``, ``gru``, ``rnn_tanh`` or ``rnn_relu``."""
    directions = 2 if both_ways else 1
    many = len(weights) // (layers * directions)
    projected = many != (4 if biased else 2)
    fused = name == "lstm" and inputs.dtype == torch.float32 and not projected
    run = _fused(layers, both_ways, batch_first, training) if fused else _unrolled(_CELLS[name], projected)
    begin = (hidden,) if isinstance(hidden, Tensor) else tuple(hidden)
    values = inputs.transpose(0, 1) if batch_first else inputs
    values = values.contiguous() if fused else values
    ends = []
    for layer in range(layers):
        made = []
        for place in range(layer * directions, (layer + 1) * directions):
            states = tuple(state[place] for state in begin)
            own = weights[place * many : (place + 1) * many]
            output, end = run(values, states, own, place % directions > 0)
            made.append(output)
            ends.append(end)
        values = torch.cat(made, -1) if both_ways else made[0]
        if dropout and training and layer < layers - 1:
            values = functional.dropout(values, dropout)
    last = tuple(torch.stack(states) for states in zip(*ends, strict=True))
    return (values.transpose(0, 1) if batch_first else values, *last)


def _fused(layers: int, both_ways: bool, batch_first: bool, training: bool) -> Layer:
    def run(
        inputs: Tensor, states: States, weights: Sequence[Tensor], reverse: bool
    ) -> tuple[Tensor, States]:
        hidden, biased = states[0].shape[-1], len(weights) == 4
        biases = (
            weights[2:]
            if biased
            else [torch.zeros(weight.shape, dtype=weight.dtype, device=weight.device) for weight in weights]
        )
        rest: tuple[Any, ...] = (reverse, [], _LSTM, hidden, layers, biased, both_ways, batch_first, training)
        output, *end, _ = torch.ops.aten.mkldnn_rnn_layer(inputs, *weights[:2], *biases, *states, *rest)
        return output, tuple(end)

    return run


def _unrolled(cell: Callable[[Tensor, Tensor, States], States], projected: bool) -> Layer:
    """All inputs are multiplied at once, then the states step by step."""

    def run(
        inputs: Tensor, states: States, weights: Sequence[Tensor], reverse: bool
    ) -> tuple[Tensor, States]:
        own = weights[:-1] if projected else weights
        to_input, to_hidden, *biases = own
        bias: Sequence[Tensor | None] = biases or (None, None)
        steps = functional.linear(inputs, to_input, bias[0]).unbind(0)
        outputs = []
        for step in reversed(steps) if reverse else steps:
            states = cell(step, functional.linear(states[0], to_hidden, bias[1]), states)
            if projected:
                states = (states[0].matmul(weights[-1].t()), *states[1:])
            outputs.append(states[0])
        return torch.stack(outputs[::-1] if reverse else outputs), states

    return run


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


_CELLS: Mapping[str, Callable[[Tensor, Tensor, States], States]] = {
    "lstm": _lstm_cell,
    "gru": _gru_cell,
    "rnn_tanh": lambda given, own, _: (own.add_(given).tanh(),),
    "rnn_relu": lambda given, own, _: (own.add_(given).relu(),),
}
