"""What the layers of networks, and their backwards, give on meta tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.costs.trace.meta_tensors import Ints, contiguous, empty, is_channels_last, only_if, ordered


def nll(scores: Tensor, targets: Tensor, _weight: Any, reduction: int, _ignore: int) -> tuple[Tensor, ...]:
    only_if(scores.dim() == 2, targets.shape == scores.shape[:1])
    return empty(() if reduction else targets.shape, scores.dtype), empty((), scores.dtype)


def embedding(table: Tensor, indices: Tensor, *_: Any) -> Tensor:
    only_if(table.dim() == 2)
    return empty((*indices.shape, table.shape[1]), table.dtype)


def sized(grad: Tensor, shape: Ints, *_: Any) -> Tensor:
    return empty(shape, grad.dtype)


def attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, ...]:
    only_if(query.dim() == key.dim() == value.dim() == 4)
    batch, heads, queries, _width = query.shape
    return ordered(query), empty((batch, queries, heads), query.dtype).transpose(1, 2)


def _slid(
    sizes: Ints, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceiling: bool = False
) -> list[int]:
    """How often a window fits into each dimension."""
    inside, step = np.array(sizes) + np.array(padding), np.array(stride)
    room = inside + padding - np.array(dilation) * (np.array(kernel) - 1) - 1
    found = (room + ceiling * (step - 1)) // step + 1
    found -= ceiling & ((found - 1) * step >= inside)  # a window must start inside
    only_if(found.min() > 0)
    windows: list[int] = found.tolist()
    return windows


def convolution(
    images: Tensor, weight: Tensor, _: Any, stride: Ints, padding: Ints, dilation: Ints, *rest: Any
) -> Tensor:
    transposed, output_padding, groups = rest
    last, sizes, kernel = is_channels_last(images), images.shape[2:], weight.shape[2:]
    outs, ins = weight.shape[0], weight.shape[1] * groups
    if transposed:
        outs, ins = ins, outs
        apart = (np.array(sizes) - 1) * stride - 2 * np.array(padding)
        made = (apart + np.array(dilation) * (np.array(kernel) - 1) + 1 + output_padding).tolist()
    else:
        made = _slid(sizes, kernel, stride, padding, dilation)
    only_if(last or images.is_contiguous(), weight.is_contiguous(), images.dtype == weight.dtype)
    only_if(images.dim() == weight.dim(), images.shape[1] == ins, min(made) > 0)
    return empty((images.shape[0], outs, *made), images.dtype, last)


def max_pool(
    images: Tensor,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    ceiling: bool = False,
) -> tuple[Tensor, Tensor]:
    only_if(images.is_contiguous(), images.dim() == len(kernel) + 2)
    shape = (
        *images.shape[:2],
        *_slid(images.shape[2:], kernel, stride or kernel, padding, dilation, ceiling),
    )
    return empty(shape, images.dtype), empty(shape, torch.int64)


def average_pool(
    images: Tensor, kernel: Ints, stride: Ints = (), padding: Any = None, ceiling: bool = False, *_: Any
) -> Tensor:
    ones = [1] * len(kernel)
    return max_pool(images, kernel, stride, padding or [0] * len(kernel), ones, ceiling)[0]


def batch_norm(images: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    given, training = [one for one in rest[:4] if one is not None], rest[4]
    channels = images.shape[1:2]
    only_if(images.is_contiguous(), len(channels) == 1)
    only_if(all(one.shape == channels and one.dtype == images.dtype for one in given))
    saved = channels if training else (0,)
    return contiguous(images), empty(saved, images.dtype), empty(saved, images.dtype)


def layer_norm(values: Tensor, shape: Ints, weight: Any, bias: Any, _: float) -> tuple[Tensor, ...]:
    given = [one for one in (weight, bias) if one is not None]
    rest = values.dim() - len(shape)
    only_if(all([*one.shape] == [*shape] and one.dtype == values.dtype for one in given))
    only_if([*values.shape[rest:]] == [*shape], values.dtype not in (torch.float16, torch.bfloat16))
    moments = (*values.shape[:rest], *[1] * len(shape))
    return contiguous(values), empty(moments, values.dtype), empty(moments, values.dtype)


def _gradients(mask: Sequence[bool], data: Tensor, *shapes: Ints) -> tuple[Tensor | None, ...]:
    parameters = (
        empty(shape, data.dtype) if wanted else None for wanted, shape in zip(mask[1:], shapes, strict=True)
    )
    return ordered(data) if mask[0] else None, *parameters


def convolution_backward(_: Tensor, images: Tensor, weight: Tensor, bias: Ints | None, *rest: Any) -> Any:
    only_if(weight.is_contiguous(), images.is_contiguous() or is_channels_last(images))
    return _gradients(rest[-1], images, weight.shape, bias or ())


def batch_norm_backward(_: Tensor, images: Tensor, *rest: Any) -> Any:
    only_if(images.is_contiguous())
    return _gradients(rest[-1], images, images.shape[1:2], images.shape[1:2])


def layer_norm_backward(grad: Tensor, values: Tensor, shape: Ints, *rest: Any) -> Any:
    only_if(grad.is_contiguous(), values.is_contiguous())
    return _gradients(rest[-1], values, shape, shape)


def lstm(inputs: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    states, (length, batch, width), hidden = rest[4:6], inputs.shape, rest[4].shape[-1]
    # What it keeps for its backward, about as many bytes as it really asks for.
    kept = 4 * length * batch * (10 * hidden + 6 * max(width, hidden)) if rest[-1] else 0
    output = empty((length, batch, hidden), inputs.dtype)
    return output, *map(contiguous, states), empty((kept,), torch.uint8)


def lstm_backward(*given: Any) -> tuple[Tensor, ...]:
    return tuple(map(contiguous, given[:7]))
