"""Results of layers on meta tensors: convolutions, norms, pooling and LSTMs; and meta tensors of a wanted layout."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_META = torch.device("meta")
_empty = torch.ops.aten.empty.memory_format
_empty_strided = torch.ops.aten.empty_strided.default


def empty(shape: Sequence[int], dtype: torch.dtype, channels_last: bool = False) -> Tensor:
    form = torch.channels_last if channels_last else None
    made: Tensor = _empty(shape, dtype=dtype, device=_META, memory_format=form)
    return made


def like(tensor: Tensor) -> Tensor:
    """Of the same shape, and of the same strides where no element lies apart or twice."""
    return empty(tensor.shape, tensor.dtype) if tensor.is_contiguous() else ordered(tensor)


def ordered(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Of the same shape, without gaps, its dimensions in the order in which the tensor's lie in memory."""
    dtype = dtype or tensor.dtype
    if tensor.is_contiguous():
        return empty(tensor.shape, dtype)
    made, step = [0] * tensor.dim(), 1
    for place in _inmost_first(tensor):
        made[place] = step
        step *= max(tensor.shape[place], 1)
    result: Tensor = _empty_strided(tensor.shape, made, dtype=dtype, device=_META)
    return result


def is_channels_last(images: Tensor) -> bool:
    """Whether the channels of a place lie next to each other, and their places do not."""
    if images.dim() != 4 or images.is_contiguous():
        return False
    return images.is_contiguous(memory_format=torch.channels_last)


def is_expanded(tensor: Tensor) -> bool:
    """Whether a dimension repeats the same memory, which says nothing about where it belongs."""
    return 0 in tensor.stride() and any(
        size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


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


def _convolution(
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    dimensions = weight.dim() - 2
    inputs = weight.shape[0] if transposed else weight.shape[1] * groups
    last = is_channels_last(images)
    plain = (last or images.is_contiguous()) and weight.is_contiguous() and images.dtype == weight.dtype
    fit = images.dim() == weight.dim() and images.shape[1] == inputs
    if not (plain and fit and len(stride) == len(padding) == len(dilation) == dimensions):
        return NotImplemented
    del bias
    sizes = []
    for place, size in enumerate(images.shape[2:]):
        reach = dilation[place] * (weight.shape[2 + place] - 1) + 1
        if transposed:
            out = (size - 1) * stride[place] - 2 * padding[place] + reach + output_padding[place]
        else:
            out = (size + 2 * padding[place] - reach) // stride[place] + 1
        sizes.append(out)
    outputs = weight.shape[1] * groups if transposed else weight.shape[0]
    if min(sizes) <= 0:
        return NotImplemented
    return empty((images.shape[0], outputs, *sizes), images.dtype, last)


def _convolution_backward(
    grad: Tensor, images: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None, *rest: Any
) -> Any:
    if not (weight.is_contiguous() and (images.is_contiguous() or is_channels_last(images))):
        return NotImplemented
    mask = rest[-1]
    return (
        like(images) if mask[0] else None,
        like(weight) if mask[1] else None,
        empty(bias_sizes or (), grad.dtype) if mask[2] else None,
    )


def _batch_norm(
    images: Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, *_: Any
) -> Any:
    given = [one for one in (weight, bias, mean, variance) if one is not None]
    channels = images.shape[1] if images.dim() > 1 else -1
    if not images.is_contiguous() or any(
        one.shape != (channels,) or one.dtype != images.dtype for one in given
    ):
        return NotImplemented
    saved = (channels,) if training else (0,)
    return like(images), empty(saved, images.dtype), empty(saved, images.dtype)


def _batch_norm_backward(grad: Tensor, images: Tensor, *rest: Any) -> Any:
    if not images.is_contiguous():
        return NotImplemented
    mask, channels = rest[-1], (images.shape[1],)
    return (
        like(images) if mask[0] else None,
        empty(channels, grad.dtype) if mask[1] else None,
        empty(channels, grad.dtype) if mask[2] else None,
    )


def _layer_norm(values: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    del eps
    given = [one for one in (weight, bias) if one is not None]
    rest = values.dim() - len(shape)
    fit = list(values.shape[rest:]) == list(shape)
    fit = fit and all(list(one.shape) == list(shape) and one.dtype == values.dtype for one in given)
    if not fit or values.dtype in (torch.float16, torch.bfloat16):
        return NotImplemented
    moments = (*values.shape[:rest], *[1] * len(shape))
    return empty(values.shape, values.dtype), empty(moments, values.dtype), empty(moments, values.dtype)


def _layer_norm_backward(grad: Tensor, values: Tensor, *rest: Any) -> Any:
    if not (grad.is_contiguous() and values.is_contiguous()):
        return NotImplemented
    shape, mask = rest[0], rest[-1]
    return (
        like(values) if mask[0] else None,
        empty(shape, values.dtype) if mask[1] else None,
        empty(shape, values.dtype) if mask[2] else None,
    )


def _pooled(images: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceiling: bool) -> Any:
    stride = stride or kernel
    dimensions = images.dim() - 2
    if not images.is_contiguous() or {len(kernel), len(stride), len(padding)} != {dimensions}:
        return NotImplemented
    sizes = []
    for place, size in enumerate(images.shape[2:]):
        reach = dilation[place] * (kernel[place] - 1) + 1
        room = size + 2 * padding[place] - reach + (stride[place] - 1 if ceiling else 0)
        out = room // stride[place] + 1
        if ceiling and (out - 1) * stride[place] >= size + padding[place]:
            out -= 1  # a window must start inside
        sizes.append(out)
    return (*images.shape[:2], *sizes) if min(sizes) > 0 else NotImplemented


def _max_pool(
    images: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    ceil_mode: bool = False,
) -> Any:
    shape = _pooled(images, kernel, stride, padding, dilation, ceil_mode)
    if shape is NotImplemented:
        return NotImplemented
    return empty(shape, images.dtype), empty(shape, torch.int64)


def _average_pool(
    images: Tensor, kernel: Any, stride: Any = (), padding: Any = None, ceil_mode: bool = False, *_: Any
) -> Any:
    shape = _pooled(images, kernel, stride, padding or [0] * len(kernel), [1] * len(kernel), ceil_mode)
    return shape if shape is NotImplemented else empty(shape, images.dtype)


def _pool_backward(_: Tensor, images: Tensor, *__: Any) -> Any:
    return like(images) if images.is_contiguous() else NotImplemented


def _lstm(inputs: Tensor, weight: Tensor, _: Tensor, __: Tensor, ___: Tensor, *rest: Any) -> Any:
    states, (length, batch, width), hidden = rest[:2], inputs.shape, rest[0].shape[-1]
    output = empty((length, batch, hidden), inputs.dtype)
    # What it keeps for its backward, about as many bytes as it really asks for.
    kept = 4 * length * batch * (10 * hidden + 6 * max(width, hidden)) if rest[-1] else 0
    del weight
    return output, *(empty(one.shape, one.dtype) for one in states), empty((kept,), torch.uint8)


def _lstm_backward(inputs: Tensor, *rest: Any) -> Any:
    return tuple(empty(one.shape, one.dtype) for one in (inputs, *rest[:6]))


LAYERS: dict[str, Any] = {
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "max_pool2d_with_indices": _max_pool,
    "max_pool2d_with_indices_backward": _pool_backward,
    "avg_pool2d": _average_pool,
    "avg_pool2d_backward": _pool_backward,
    "avg_pool3d": _average_pool,
    "avg_pool3d_backward": _pool_backward,
    "mkldnn_rnn_layer": _lstm,
    "mkldnn_rnn_layer_backward": _lstm_backward,
}
