"""Rules for what layers give on meta tensors: convolutions, products, norms, pooling, losses, attention."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.costs.trace.making import empty, like, ordered


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
    plain = images.is_contiguous() and weight.is_contiguous() and images.dtype == weight.dtype
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
    return empty((images.shape[0], outputs, *sizes), images.dtype)


def _convolution_backward(
    grad: Tensor, images: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None, *rest: Any
) -> Any:
    if not (grad.is_contiguous() and images.is_contiguous() and weight.is_contiguous()):
        return NotImplemented
    mask = rest[-1]
    return (
        like(images) if mask[0] else None,
        like(weight) if mask[1] else None,
        empty(bias_sizes or (), grad.dtype) if mask[2] else None,
    )


def _mm(left: Tensor, right: Tensor, **options: Any) -> Any:
    fit = left.dim() == right.dim() == 2 and left.shape[1] == right.shape[0] and left.dtype == right.dtype
    if not fit or options:
        return NotImplemented
    return empty((left.shape[0], right.shape[1]), left.dtype)


def _addmm(bias: Tensor, left: Tensor, right: Tensor, **options: Any) -> Any:
    made = _mm(left, right)
    if made is NotImplemented or not set(options) <= {"alpha", "beta"}:
        return NotImplemented
    fit = bias.dim() <= 2 and all(
        one in (1, size) for one, size in zip(reversed(bias.shape), reversed(made.shape), strict=False)
    )
    return made if fit and bias.dtype == left.dtype else NotImplemented


def _bmm(left: Tensor, right: Tensor, **options: Any) -> Any:
    fit = (
        left.dim() == right.dim() == 3 and left.shape[0] == right.shape[0] and left.shape[2] == right.shape[1]
    )
    if not fit or options or left.dtype != right.dtype:
        return NotImplemented
    return empty((left.shape[0], left.shape[1], right.shape[2]), left.dtype)


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
    if not (grad.is_contiguous() and images.is_contiguous()):
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
    if images.dim() != 4 or not images.is_contiguous() or {len(kernel), len(stride), len(padding)} != {2}:
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
    images: Tensor, kernel: Any, stride: Any = (), padding: Any = (0, 0), ceil_mode: bool = False, *_: Any
) -> Any:
    shape = _pooled(images, kernel, stride, padding, (1, 1), ceil_mode)
    return shape if shape is NotImplemented else empty(shape, images.dtype)


def _pool_backward(grad: Tensor, images: Tensor, *_: Any) -> Any:
    plain = grad.is_contiguous() and images.is_contiguous()
    return like(images) if plain else NotImplemented


def _reduced(values: Tensor, dims: Any = None, keepdim: bool = False, **options: Any) -> Any:
    if not values.is_floating_point() or options.get("dtype") is not None or "out" in options:
        return NotImplemented
    dims = range(values.dim()) if dims in (None, []) else dims
    gone = {place % max(values.dim(), 1) for place in dims}
    kept = [1 if place in gone else size for place, size in enumerate(values.shape)]
    return empty(
        kept if keepdim else [size for place, size in enumerate(kept) if place not in gone], values.dtype
    )


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    first = tensors[0]
    place = dim % max(first.dim(), 1)
    rests = {(one.dtype, one.shape[:place], one.shape[place + 1 :]) for one in tensors}
    if len(rests) > 1 or not all(one.is_contiguous() for one in tensors) or not first.dim():
        return NotImplemented
    shape = list(first.shape)
    shape[place] = sum(one.shape[place] for one in tensors)
    return empty(shape, first.dtype)


def _nll(scores: Tensor, targets: Tensor, weight: Any, reduction: int, ignore: int) -> Any:
    del ignore, weight
    if scores.dim() != 2 or targets.shape != scores.shape[:1]:
        return NotImplemented
    return empty(() if reduction else targets.shape, scores.dtype), empty((), scores.dtype)


def _embedding(table: Tensor, indices: Tensor, *_: Any) -> Any:
    return empty((*indices.shape, table.shape[1]), table.dtype) if table.dim() == 2 else NotImplemented


def _embedding_backward(grad: Tensor, indices: Tensor, rows: int, *_: Any) -> Any:
    del indices
    return empty((rows, grad.shape[-1]), grad.dtype)


def _sized(grad: Tensor, shape: Sequence[int], *_: Any) -> Any:
    return empty(shape, grad.dtype)


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Any:
    if not query.dim() == key.dim() == value.dim() == 4:
        return NotImplemented
    batch, heads, queries, _width = query.shape
    return ordered(query), empty((batch, queries, heads), query.dtype).transpose(1, 2)


def _attention_backward(_: Tensor, query: Tensor, key: Tensor, value: Tensor, *__: Any, **___: Any) -> Any:
    return tuple(_by_token(one) for one in (query, key, value))


def _by_token(heads: Tensor) -> Tensor:
    batch, count, length, width = heads.shape
    return empty((batch, length, count, width), heads.dtype).transpose(1, 2)


LAYERS: dict[str, Any] = {
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "mm": _mm,
    "addmm": _addmm,
    "bmm": _bmm,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "max_pool2d_with_indices": _max_pool,
    "max_pool2d_with_indices_backward": _pool_backward,
    "avg_pool2d": _average_pool,
    "avg_pool2d_backward": _pool_backward,
    "sum": _reduced,
    "mean": _reduced,
    "cat": _cat,
    "nll_loss_forward": _nll,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "slice_backward": _sized,
    "select_backward": _sized,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
