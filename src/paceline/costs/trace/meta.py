"""What an operator gives on meta tensors: own rules for the common ones, torch's own kernels for the rest.

Torch has such kernels for nearly every operator, but they are written in Python: the first call imports torch's
compiler, which takes longer than a whole trace. A rule answers ``NotImplemented`` wherever the case is not a plain one
(mixed types, odd strides, sizes that do not fit), so that torch decides, and refuses, in its own words.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload

Ints = Sequence[int]

_META = torch.device("meta")
_empty = torch.ops.aten.empty.memory_format
_empty_strided = torch.ops.aten.empty_strided.default


class NeedsValues(Exception):
    """The model asks what a tensor holds, and one on meta holds nothing."""


def meta_result(function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = function._opname
    rule = RULES.get(name)
    if rule is not None:
        made = rule(*args, **kwargs)
        if made is not NotImplemented:
            return made
    elif _asks(name, args):
        raise NeedsValues("item() or a condition" if name == "_local_scalar_dense" else name.strip("_"))
    return function(*args, **kwargs)


def _asks(name: str, args: tuple[Any, ...]) -> bool:
    if name == "index":
        return any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1])
    return name in _VALUE_DEPENDENT.split() and any(isinstance(one, Tensor) and one.is_meta for one in args)


def empty(shape: Ints, dtype: torch.dtype, channels_last: bool = False) -> Tensor:
    form = torch.channels_last if channels_last else None
    made: Tensor = _empty(shape, dtype=dtype, device=_META, memory_format=form)
    return made


def ordered(tensor: Tensor) -> Tensor:
    """Of the same shape, without gaps, its dimensions in the order in which the tensor's lie in memory."""
    if tensor.is_contiguous():
        return empty(tensor.shape, tensor.dtype)
    strides, step = [0] * tensor.dim(), 1
    for place in _inmost_first(tensor):
        strides[place] = step
        step *= max(tensor.shape[place], 1)
    result: Tensor = _empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=_META)
    return result


def _inmost_first(tensor: Tensor) -> list[int]:
    """Dimensions by stride; one that is repeated keeps its place among them, as torch has it."""
    shape, strides = tensor.shape, tensor.stride()
    order = list(reversed(range(tensor.dim())))
    for end in range(1, len(order)):
        place = end
        for before in reversed(range(end)):
            one, other = strides[order[before]], strides[order[place]]
            if not (one and other) or (one == other and shape[order[before]] <= shape[order[place]]):
                continue
            if one < other:
                break
            order[before], order[place] = order[place], order[before]
            place = before
    return order


def is_channels_last(images: Tensor) -> bool:
    if images.dim() != 4 or images.is_contiguous():
        return False
    return images.is_contiguous(memory_format=torch.channels_last)


def _is_expanded(tensor: Tensor) -> bool:
    """Whether a dimension repeats the same memory, which says nothing about where it belongs."""
    strides = tensor.stride()
    return 0 in strides and any(
        size > 1 and not step for size, step in zip(tensor.shape, strides, strict=True)
    )


def _fits(tensor: Tensor, into: Tensor) -> bool:
    if tensor.shape == into.shape:
        return True
    pairs = zip(reversed(tensor.shape), reversed(into.shape), strict=False)
    return tensor.dim() <= into.dim() and all(one in (1, size) for one, size in pairs)


def elementwise(*args: Any, **options: Any) -> Any:
    """One tensor out of tensors of one floating-point type that broadcast; the first says how it lies in memory."""
    tensors = [one for one in args if isinstance(one, Tensor)]
    first = tensors[0]
    plain = all(one.is_meta and one.dtype == first.dtype for one in tensors) and "out" not in options
    if not plain or not first.dtype.is_floating_point:
        return NotImplemented
    if all(_fits(one, first) for one in tensors[1:]):
        # Where the first says little of how its memory lies, the others have their say, and torch knows how.
        return NotImplemented if _is_expanded(first) and len(tensors) > 1 else ordered(first)
    try:
        shape = np.broadcast_shapes(*(one.shape for one in tensors))
    except ValueError:
        return NotImplemented
    return empty(shape, first.dtype) if all(one.is_contiguous() for one in tensors) else NotImplemented


def _like_first(
    first: Tensor,
    *_: Any,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format | None = None,
    **__: Any,
) -> Any:
    if not first.is_meta or dtype not in (None, first.dtype):
        return NotImplemented
    if memory_format is torch.contiguous_format:
        return empty(first.shape, first.dtype)
    return ordered(first) if memory_format in (None, torch.preserve_format) else NotImplemented


def _like_second(_: Tensor, second: Tensor, *__: Any, **___: Any) -> Any:
    return empty(second.shape, second.dtype) if second.is_contiguous() else NotImplemented


def _in_place(first: Any, *others: Any, **_: Any) -> Any:
    tensors = [one for one in others if isinstance(one, Tensor)]
    fit = first.is_meta and all(one.is_meta and _fits(one, first) for one in tensors)
    return first if fit else NotImplemented


def _arange(*bounds: Any, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Any:
    if not all(type(one) is int for one in bounds) or device is None or device.type != "meta":
        return NotImplemented
    return empty((len(range(*bounds)),), dtype or torch.int64)


def _product(dimensions: int, left: Tensor, right: Tensor, **options: Any) -> Any:
    fit = left.dim() == right.dim() == dimensions and left.dtype == right.dtype and not options
    if not fit or left.shape[:-2] != right.shape[:-2] or left.shape[-1] != right.shape[-2]:
        return NotImplemented
    return empty((*left.shape[:-1], right.shape[-1]), left.dtype)


def _addmm(bias: Tensor, left: Tensor, right: Tensor, **options: Any) -> Any:
    made = _product(2, left, right)
    if made is NotImplemented or not options.keys() <= {"alpha", "beta"} or bias.dtype != left.dtype:
        return NotImplemented
    return made if _fits(bias, made) else NotImplemented


def _reduced(values: Tensor, dims: Any = None, keepdim: bool = False, **options: Any) -> Any:
    if not values.is_floating_point() or options.get("dtype") is not None or "out" in options:
        return NotImplemented
    dims = range(values.dim()) if dims in (None, []) else dims
    depth = max(values.dim(), 1)
    gone = {place % depth for place in dims}
    if len(gone) < len(dims) or not all(-depth <= place < depth for place in dims):
        return NotImplemented
    sizes = [
        (1 if place in gone else size)
        for place, size in enumerate(values.shape)
        if keepdim or place not in gone
    ]
    return empty(sizes, values.dtype)


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    first = tensors[0]
    if not -first.dim() <= dim < first.dim():
        return NotImplemented
    place = dim % first.dim()
    rests = {(one.dtype, one.shape[:place], one.shape[place + 1 :]) for one in tensors}
    if len(rests) > 1 or not all(one.is_contiguous() for one in tensors):
        return NotImplemented
    joined = sum(one.shape[place] for one in tensors)
    return empty((*first.shape[:place], joined, *first.shape[place + 1 :]), first.dtype)


def _pad(values: Tensor, widths: Ints, *_: Any) -> Any:
    if not values.is_contiguous() or len(widths) > 2 * values.dim():
        return NotImplemented
    shape = list(values.shape)
    for place in range(len(widths) // 2):
        shape[-1 - place] += widths[2 * place] + widths[2 * place + 1]
    return empty(shape, values.dtype) if min(shape) > 0 else NotImplemented


def _nll(scores: Tensor, targets: Tensor, weight: Any, reduction: int, ignore: int) -> Any:
    del ignore, weight
    if scores.dim() != 2 or targets.shape != scores.shape[:1]:
        return NotImplemented
    return empty(() if reduction else targets.shape, scores.dtype), empty((), scores.dtype)


def _embedding(table: Tensor, indices: Tensor, *_: Any) -> Any:
    return empty((*indices.shape, table.shape[1]), table.dtype) if table.dim() == 2 else NotImplemented


def _embedding_backward(grad: Tensor, _: Tensor, rows: int, *__: Any) -> Any:
    return empty((rows, grad.shape[-1]), grad.dtype)


def _sized(grad: Tensor, shape: Ints, *_: Any) -> Any:
    return empty(shape, grad.dtype)


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Any:
    if not query.dim() == key.dim() == value.dim() == 4:
        return NotImplemented
    batch, heads, queries, _width = query.shape
    return ordered(query), empty((batch, queries, heads), query.dtype).transpose(1, 2)


def _attention_backward(_: Tensor, *given: Any, **__: Any) -> Any:
    """By token: the heads of a place lie next to each other."""
    shapes = ((one.shape, one.dtype) for one in given[:3])
    return tuple(
        empty((batch, length, heads, width), dtype).transpose(1, 2)
        for (batch, heads, length, width), dtype in shapes
    )


def _slid(
    sizes: Ints, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceiling: bool = False
) -> list[int]:
    """How often a window fits into each dimension."""
    found = []
    for size, width, step, pad, apart in zip(sizes, kernel, stride, padding, dilation, strict=True):
        room = size + 2 * pad - apart * (width - 1) - 1
        out = (room + (step - 1 if ceiling else 0)) // step + 1
        if ceiling and (out - 1) * step >= size + pad:
            out -= 1  # a window must start inside
        found.append(out)
    return found


def _convolution(
    images: Tensor, weight: Tensor, _: Any, stride: Ints, padding: Ints, dilation: Ints, *rest: Any
) -> Any:
    transposed, output_padding, groups = rest
    last, sizes, kernel = is_channels_last(images), images.shape[2:], weight.shape[2:]
    plain = (last or images.is_contiguous()) and weight.is_contiguous() and images.dtype == weight.dtype
    outs, ins = weight.shape[0], weight.shape[1] * groups
    if transposed:
        outs, ins = ins, outs
    fit = images.dim() == weight.dim() and images.shape[1] == ins
    if not (plain and fit and len(stride) == len(padding) == len(dilation) == len(kernel)):
        return NotImplemented
    if transposed:
        each = zip(sizes, kernel, stride, padding, dilation, output_padding, strict=True)
        made = [
            (size - 1) * step - 2 * pad + apart * (width - 1) + 1 + more
            for size, width, step, pad, apart, more in each
        ]
    else:
        made = _slid(sizes, kernel, stride, padding, dilation)
    return empty((images.shape[0], outs, *made), images.dtype, last) if min(made) > 0 else NotImplemented


def _pooled(images: Tensor, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceiling: bool) -> Any:
    """The shape of the result."""
    stride = stride or kernel
    if not images.is_contiguous() or {*map(len, (kernel, stride, padding, dilation))} != {images.dim() - 2}:
        return NotImplemented
    sizes = _slid(images.shape[2:], kernel, stride, padding, dilation, ceiling)
    return (*images.shape[:2], *sizes) if min(sizes) > 0 else NotImplemented


def _max_pool(
    images: Tensor,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    *rest: bool,
) -> Any:
    shape = _pooled(images, kernel, stride, padding, dilation, any(rest))
    return shape if shape is NotImplemented else (empty(shape, images.dtype), empty(shape, torch.int64))


def _average_pool(
    images: Tensor, kernel: Ints, stride: Ints = (), padding: Any = None, ceiling: bool = False, *_: Any
) -> Any:
    shape = _pooled(images, kernel, stride, padding or [0] * len(kernel), [1] * len(kernel), ceiling)
    return shape if shape is NotImplemented else empty(shape, images.dtype)


def _batch_norm(images: Tensor, *rest: Any) -> Any:
    given, training = [one for one in rest[:4] if one is not None], rest[4]
    channels = images.shape[1] if images.dim() > 1 else -1
    fit = all(one.shape == (channels,) and one.dtype == images.dtype for one in given)
    if not images.is_contiguous() or not fit:
        return NotImplemented
    saved = (channels,) if training else (0,)
    return ordered(images), empty(saved, images.dtype), empty(saved, images.dtype)


def _layer_norm(values: Tensor, shape: Ints, weight: Any, bias: Any, _: float) -> Any:
    given = [one for one in (weight, bias) if one is not None]
    rest = values.dim() - len(shape)
    fit = list(values.shape[rest:]) == list(shape)
    fit = fit and all(list(one.shape) == list(shape) and one.dtype == values.dtype for one in given)
    if not fit or values.dtype in (torch.float16, torch.bfloat16):
        return NotImplemented
    moments = (*values.shape[:rest], *[1] * len(shape))
    return empty(values.shape, values.dtype), empty(moments, values.dtype), empty(moments, values.dtype)


def _gradients(mask: Sequence[bool], data: Tensor, *shapes: Ints) -> tuple[Tensor | None, ...]:
    parameters = (
        empty(shape, data.dtype) if wanted else None for wanted, shape in zip(mask[1:], shapes, strict=True)
    )
    return ordered(data) if mask[0] else None, *parameters


def _convolution_backward(
    _: Tensor, images: Tensor, weight: Tensor, bias_sizes: Ints | None, *rest: Any
) -> Any:
    if not (weight.is_contiguous() and (images.is_contiguous() or is_channels_last(images))):
        return NotImplemented
    return _gradients(rest[-1], images, weight.shape, bias_sizes or ())


def _batch_norm_backward(_: Tensor, images: Tensor, *rest: Any) -> Any:
    channels = images.shape[1:2]
    return _gradients(rest[-1], images, channels, channels) if images.is_contiguous() else NotImplemented


def _layer_norm_backward(grad: Tensor, values: Tensor, shape: Ints, *rest: Any) -> Any:
    if not (grad.is_contiguous() and values.is_contiguous()):
        return NotImplemented
    return _gradients(rest[-1], values, shape, shape)


def _lstm(inputs: Tensor, *rest: Any) -> Any:
    states, (length, batch, width), hidden = rest[4:6], inputs.shape, rest[4].shape[-1]
    # What it keeps for its backward, about as many bytes as it really asks for.
    kept = 4 * length * batch * (10 * hidden + 6 * max(width, hidden)) if rest[-1] else 0
    ends = (empty(one.shape, one.dtype) for one in states)
    return empty((length, batch, hidden), inputs.dtype), *ends, empty((kept,), torch.uint8)


def _lstm_backward(*given: Any) -> Any:
    return tuple(empty(one.shape, one.dtype) for one in given[:7])


_VALUE_DEPENDENT = (
    "_local_scalar_dense nonzero masked_select _unique2 unique_dim unique_consecutive repeat_interleave "
    "equal is_nonzero bincount"
)
_ELEMENTWISE = (
    "relu tanh sigmoid gelu silu exp log sqrt rsqrt neg abs sin cos erf hardtanh leaky_relu elu hardswish "
    "hardsigmoid softplus mish log1p reciprocal clamp clamp_min clamp_max mul add sub div pow rsub addcmul addcdiv "
    "threshold_backward gelu_backward tanh_backward sigmoid_backward silu_backward hardtanh_backward "
    "leaky_relu_backward elu_backward hardswish_backward hardsigmoid_backward softplus_backward mish_backward"
)
_LIKE_FIRST = "_softmax _log_softmax _safe_softmax ones_like zeros_like full_like empty_like bernoulli clone"
_LIKE_SECOND = (
    "_softmax_backward_data _log_softmax_backward_data nll_loss_backward mse_loss_backward multi_margin_loss_backward "
    "multilabel_margin_loss_backward fractional_max_pool3d_backward max_pool2d_with_indices_backward "
    "avg_pool2d_backward avg_pool3d_backward"
)
_IN_PLACE = (
    "zero_ fill_ normal_ uniform_ bernoulli_ add_ mul_ div_ sub_ relu_ clamp_ sigmoid_ tanh_ silu_ hardtanh_ "
    "leaky_relu_ lerp_ addcmul_ addcdiv_ sqrt_ copy_ exponential_ trunc_ erfinv_ random_"
)
_NOTHING = "_fused_sgd_ _fused_adam_ _fused_adamw_ _fused_adagrad_"

RULES: dict[str, Any] = {
    **dict.fromkeys(_ELEMENTWISE.split(), elementwise),
    **dict.fromkeys(_LIKE_FIRST.split(), _like_first),
    **dict.fromkeys(_LIKE_SECOND.split(), _like_second),
    **dict.fromkeys(_IN_PLACE.split(), _in_place),
    **dict.fromkeys(_NOTHING.split(), lambda *_, **__: None),
    "arange": _arange,
    "mm": partial(_product, 2),
    "addmm": _addmm,
    "bmm": partial(_product, 3),
    "sum": _reduced,
    "mean": _reduced,
    "cat": _cat,
    "constant_pad_nd": _pad,
    "nll_loss_forward": _nll,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "slice_backward": _sized,
    "select_backward": _sized,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "max_pool2d_with_indices": _max_pool,
    "avg_pool2d": _average_pool,
    "avg_pool3d": _average_pool,
    "mkldnn_rnn_layer": _lstm,
    "mkldnn_rnn_layer_backward": _lstm_backward,
}
