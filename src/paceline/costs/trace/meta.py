"""What an operator gives on meta tensors: own rules for the common ones, torch's own kernels for the rest.

Torch has such kernels for nearly every operator, but they are written in Python: the first call imports torch's
compiler, which takes longer than a whole trace. A rule holds for plain cases only: wherever types are mixed, strides
odd, or sizes do not fit, torch decides, and refuses, in its own words.
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


class _NotPlain(Exception):
    """No rule is for this case."""


def _only_if(*plain: bool) -> None:
    if not all(plain):
        raise _NotPlain


def meta_result(function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = function._opname
    rule = RULES.get(name)
    if rule is not None:
        try:
            return rule(*args, **kwargs)
        except (_NotPlain, ValueError, IndexError):  # the latter of sizes that do not fit
            pass
    if _asks(name, args):
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


def contiguous(like: Tensor) -> Tensor:
    return empty(like.shape, like.dtype)


def ordered(tensor: Tensor) -> Tensor:
    """Of the same shape, without gaps, its dimensions in the order in which the tensor's lie in memory."""
    if tensor.is_contiguous():
        return contiguous(tensor)
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


def _broadcasts(tensor: Tensor, into: Tensor) -> bool:
    if tensor.shape == into.shape:
        return True
    pairs = zip(reversed(tensor.shape), reversed(into.shape), strict=False)
    return tensor.dim() <= into.dim() and all(one in (1, size) for one, size in pairs)


def elementwise(*args: Any, **options: Any) -> Tensor:
    """One tensor out of tensors of one floating-point type that broadcast; the first says how it lies in memory."""
    tensors = [one for one in args if isinstance(one, Tensor)]
    first, out = tensors[0], options.get("out")
    _only_if(all(one.is_meta and one.dtype == first.dtype for one in tensors))
    _only_if(first.dtype.is_floating_point)
    if out is not None:
        _only_if(all(one.shape == out.shape and one.dtype == out.dtype for one in tensors))
        return out  # type: ignore[no-any-return]
    if all(_broadcasts(one, first) for one in tensors[1:]):
        # Where the first says little of how its memory lies, the others have their say, and torch knows how.
        _only_if(len(tensors) == 1 or not _is_expanded(first))
        return ordered(first)
    _only_if(all(one.is_contiguous() for one in tensors))
    return empty(np.broadcast_shapes(*(one.shape for one in tensors)), first.dtype)


def _like_first(
    first: Tensor,
    *_: Any,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format | None = None,
    **__: Any,
) -> Tensor:
    _only_if(first.is_meta, dtype in (None, first.dtype))
    if memory_format is torch.contiguous_format:
        return contiguous(first)
    _only_if(memory_format in (None, torch.preserve_format))
    return ordered(first)


def _like_second(_: Tensor, second: Tensor, *__: Any, **___: Any) -> Tensor:
    _only_if(second.is_contiguous())
    return contiguous(second)


def _in_place(first: Tensor, *others: Any, **_: Any) -> Tensor:
    tensors = [one for one in others if isinstance(one, Tensor)]
    _only_if(first.is_meta, all(one.is_meta and _broadcasts(one, first) for one in tensors))
    return first


def _scattered(first: Tensor, *_: Any, **__: Any) -> Tensor:
    _only_if(first.is_meta)
    return first


def _bits(first: Tensor, second: Any, *, out: Tensor | None = None) -> Tensor:
    """Of integers of one type, or of one with a number."""
    tensors = [one for one in (first, second) if isinstance(one, Tensor)]
    _only_if(all(one.is_meta and one.dtype == first.dtype and one.is_contiguous() for one in tensors))
    _only_if(not first.dtype.is_floating_point, first.dtype != torch.bool)
    shape = np.broadcast_shapes(*(one.shape for one in tensors))
    if out is None:
        return empty(shape, first.dtype)
    _only_if(out.shape == shape, out.dtype == first.dtype)
    return out


def _asked(first: Tensor, *numbers: Any, **options: Any) -> Tensor:
    """Yes or no for each element."""
    _only_if(first.is_meta, first.is_contiguous(), not options)
    _only_if(not any(isinstance(one, Tensor) for one in numbers))
    return empty(first.shape, torch.bool)


def _taken(vector: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Of a vector, elements by their numbers."""
    (chosen,) = indices
    _only_if(vector.dim() == 1, chosen is not None and chosen.dtype == torch.int64 and chosen.is_meta)
    assert chosen is not None
    return empty(chosen.shape, vector.dtype)


def _random(shape: Ints, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Tensor:
    _only_if(device is not None and device.type == "meta")
    return empty(shape, dtype or torch.float32)


def _random_integers(*bounds: Any, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Tensor:
    return _random(bounds[-1], dtype=dtype or torch.int64, device=device)


def _largest(values: Tensor, count: int, dim: int = -1, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    _only_if(values.is_meta, values.dim() == 1, dim in (0, -1), 0 <= count <= values.numel())
    return empty((count,), values.dtype), empty((count,), torch.int64)


def _sorted(values: Tensor, *_: Any, **options: Any) -> tuple[Tensor, Tensor]:
    _only_if(values.is_meta, values.dim() == 1, not options)
    return empty(values.shape, values.dtype), empty(values.shape, torch.int64)


def _matrix_vector(matrix: Tensor, vector: Tensor) -> Tensor:
    _only_if(matrix.dtype == vector.dtype, matrix.shape[1:] == vector.shape)
    return empty(matrix.shape[:1], matrix.dtype)


def _length(values: Tensor, _: float = 2, *rest: Any, **options: Any) -> Tensor:
    _only_if(values.is_floating_point(), not rest, not options)
    return empty((), values.dtype)


def _arange(*bounds: Any, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Tensor:
    _only_if(all(type(one) is int for one in bounds), device is not None and device.type == "meta")
    return empty((len(range(*bounds)),), dtype or torch.int64)


def _product(dimensions: int, left: Tensor, right: Tensor, *, out: Tensor | None = None) -> Tensor:
    _only_if(left.dim() == right.dim() == dimensions, left.dtype == right.dtype)
    _only_if(left.shape[:-2] == right.shape[:-2], left.shape[-1] == right.shape[-2])
    shape = (*left.shape[:-1], right.shape[-1])
    if out is None:
        return empty(shape, left.dtype)
    _only_if(out.shape == shape, out.dtype == left.dtype)
    return out


def _orthogonal_triangular(matrix: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """Both factors column by column, as LAPACK has them."""
    _only_if(matrix.is_meta, matrix.dim() == 2, mode == "reduced")
    (height, width), rank = matrix.shape, min(matrix.shape)
    q = _empty_strided((height, rank), (1, max(height, 1)), dtype=matrix.dtype, device=_META)
    r = _empty_strided((rank, width), (1, max(rank, 1)), dtype=matrix.dtype, device=_META)
    return q, r


def _chosen(condition: Tensor, first: Tensor, second: Tensor) -> Tensor:
    _only_if(first.shape == second.shape, first.dtype == second.dtype, _broadcasts(condition, first))
    _only_if(all(one.is_meta and one.is_contiguous() for one in (condition, first, second)))
    return contiguous(first)


def _addmm(bias: Tensor, left: Tensor, right: Tensor, **options: Any) -> Tensor:
    made = _product(2, left, right)
    _only_if(options.keys() <= {"alpha", "beta"}, bias.dtype == left.dtype, _broadcasts(bias, made))
    return made


def _reduced(
    values: Tensor,
    dims: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    _only_if(values.is_floating_point() or dtype is not None)
    dims = range(values.dim()) if dims in (None, []) else dims
    depth = max(values.dim(), 1)
    gone = {place % depth for place in dims}
    _only_if(len(gone) == len(dims), all(-depth <= place < depth for place in dims))
    sizes = [
        (1 if place in gone else size)
        for place, size in enumerate(values.shape)
        if keepdim or place not in gone
    ]
    if out is None:
        return empty(sizes, dtype or values.dtype)
    _only_if(list(out.shape) == sizes)
    return out


def _extreme(values: Tensor, dims: Any = None, keepdim: bool = False, **options: Any) -> Tensor:
    return _reduced(values, dims, keepdim, dtype=values.dtype, **options)


def _any(values: Tensor, dim: Any = None, keepdim: bool = False, **options: Any) -> Tensor:
    dims = [dim] if isinstance(dim, int) else dim
    return _reduced(values, dims, keepdim, dtype=torch.bool, **options)


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    shape = list(tensors[0].shape)
    shape[dim] = sum(one.shape[dim] for one in tensors)
    place = dim % len(shape)
    rests = {(one.dtype, one.shape[:place], one.shape[place + 1 :]) for one in tensors}
    _only_if(len(rests) == 1, all(one.is_contiguous() for one in tensors))
    return empty(shape, tensors[0].dtype)


def _pad(values: Tensor, widths: Ints, *_: Any) -> Tensor:
    shape = list(values.shape)
    for place in range(len(widths) // 2):
        shape[-1 - place] += widths[2 * place] + widths[2 * place + 1]
    _only_if(values.is_contiguous(), min(shape) > 0)
    return empty(shape, values.dtype)


def _nll(scores: Tensor, targets: Tensor, _weight: Any, reduction: int, _ignore: int) -> tuple[Tensor, ...]:
    _only_if(scores.dim() == 2, targets.shape == scores.shape[:1])
    return empty(() if reduction else targets.shape, scores.dtype), empty((), scores.dtype)


def _embedding(table: Tensor, indices: Tensor, *_: Any) -> Tensor:
    _only_if(table.dim() == 2)
    return empty((*indices.shape, table.shape[1]), table.dtype)


def _sized(grad: Tensor, shape: Ints, *_: Any) -> Tensor:
    return empty(shape, grad.dtype)


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, ...]:
    _only_if(query.dim() == key.dim() == value.dim() == 4)
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
    _only_if(found.min() > 0)
    windows: list[int] = found.tolist()
    return windows


def _convolution(
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
    _only_if(last or images.is_contiguous(), weight.is_contiguous(), images.dtype == weight.dtype)
    _only_if(images.dim() == weight.dim(), images.shape[1] == ins, min(made) > 0)
    return empty((images.shape[0], outs, *made), images.dtype, last)


def _max_pool(
    images: Tensor,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    ceiling: bool = False,
) -> tuple[Tensor, Tensor]:
    _only_if(images.is_contiguous(), images.dim() == len(kernel) + 2)
    shape = (
        *images.shape[:2],
        *_slid(images.shape[2:], kernel, stride or kernel, padding, dilation, ceiling),
    )
    return empty(shape, images.dtype), empty(shape, torch.int64)


def _average_pool(
    images: Tensor, kernel: Ints, stride: Ints = (), padding: Any = None, ceiling: bool = False, *_: Any
) -> Tensor:
    ones = [1] * len(kernel)
    return _max_pool(images, kernel, stride, padding or [0] * len(kernel), ones, ceiling)[0]


def _batch_norm(images: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    given, training = [one for one in rest[:4] if one is not None], rest[4]
    channels = images.shape[1:2]
    _only_if(images.is_contiguous(), len(channels) == 1)
    _only_if(all(one.shape == channels and one.dtype == images.dtype for one in given))
    saved = channels if training else (0,)
    return contiguous(images), empty(saved, images.dtype), empty(saved, images.dtype)


def _layer_norm(values: Tensor, shape: Ints, weight: Any, bias: Any, _: float) -> tuple[Tensor, ...]:
    given = [one for one in (weight, bias) if one is not None]
    rest = values.dim() - len(shape)
    _only_if(all([*one.shape] == [*shape] and one.dtype == values.dtype for one in given))
    _only_if([*values.shape[rest:]] == [*shape], values.dtype not in (torch.float16, torch.bfloat16))
    moments = (*values.shape[:rest], *[1] * len(shape))
    return contiguous(values), empty(moments, values.dtype), empty(moments, values.dtype)


def _gradients(mask: Sequence[bool], data: Tensor, *shapes: Ints) -> tuple[Tensor | None, ...]:
    parameters = (
        empty(shape, data.dtype) if wanted else None for wanted, shape in zip(mask[1:], shapes, strict=True)
    )
    return ordered(data) if mask[0] else None, *parameters


def _convolution_backward(_: Tensor, images: Tensor, weight: Tensor, bias: Ints | None, *rest: Any) -> Any:
    _only_if(weight.is_contiguous(), images.is_contiguous() or is_channels_last(images))
    return _gradients(rest[-1], images, weight.shape, bias or ())


def _batch_norm_backward(_: Tensor, images: Tensor, *rest: Any) -> Any:
    _only_if(images.is_contiguous())
    return _gradients(rest[-1], images, images.shape[1:2], images.shape[1:2])


def _layer_norm_backward(grad: Tensor, values: Tensor, shape: Ints, *rest: Any) -> Any:
    _only_if(grad.is_contiguous(), values.is_contiguous())
    return _gradients(rest[-1], values, shape, shape)


def _lstm(inputs: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    states, (length, batch, width), hidden = rest[4:6], inputs.shape, rest[4].shape[-1]
    # What it keeps for its backward, about as many bytes as it really asks for.
    kept = 4 * length * batch * (10 * hidden + 6 * max(width, hidden)) if rest[-1] else 0
    output = empty((length, batch, hidden), inputs.dtype)
    return output, *map(contiguous, states), empty((kept,), torch.uint8)


def _lstm_backward(*given: Any) -> tuple[Tensor, ...]:
    return tuple(map(contiguous, given[:7]))


_VALUE_DEPENDENT = (
    "_local_scalar_dense nonzero masked_select _unique2 unique_dim unique_consecutive repeat_interleave "
    "equal is_nonzero bincount"
)
_ELEMENTWISE = (
    "relu tanh sigmoid gelu silu exp log sqrt rsqrt neg abs sin cos erf hardtanh leaky_relu elu hardswish "
    "hardsigmoid softplus mish log1p reciprocal clamp clamp_min clamp_max mul add sub div pow rsub addcmul addcdiv "
    "maximum minimum threshold_backward gelu_backward tanh_backward sigmoid_backward silu_backward hardtanh_backward "
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
    "leaky_relu_ lerp_ addcmul_ addcdiv_ sqrt_ copy_ exponential_ trunc_ erfinv_ random_ floor_ neg_ bitwise_or_"
)
_SCATTERED = "index_add_ index_fill_ addmm_"
_BITS = "bitwise_and bitwise_or __lshift__ __rshift__"
_NOTHING = "_fused_sgd_ _fused_adam_ _fused_adamw_ _fused_adagrad_"

RULES: dict[str, Any] = {
    **dict.fromkeys(_ELEMENTWISE.split(), elementwise),
    **dict.fromkeys(_LIKE_FIRST.split(), _like_first),
    **dict.fromkeys(_LIKE_SECOND.split(), _like_second),
    **dict.fromkeys(_IN_PLACE.split(), _in_place),
    **dict.fromkeys(_SCATTERED.split(), _scattered),
    **dict.fromkeys(_BITS.split(), _bits),
    **dict.fromkeys(_NOTHING.split(), lambda *_, **__: None),
    "arange": _arange,
    "mm": partial(_product, 2),
    "mv": _matrix_vector,
    "linalg_qr": _orthogonal_triangular,
    "where": _chosen,
    "linalg_vector_norm": _length,
    "ge": _asked,
    "signbit": _asked,
    "index": _taken,
    "rand": _random,
    "randn": _random,
    "randint": _random_integers,
    "topk": _largest,
    "sort": _sorted,
    "addmm": _addmm,
    "bmm": partial(_product, 3),
    "sum": _reduced,
    "mean": _reduced,
    "amax": _extreme,
    "amin": _extreme,
    "any": _any,
    "cat": _cat,
    "constant_pad_nd": _pad,
    "nll_loss_forward": _nll,
    "embedding": _embedding,
    "slice_backward": _sized,
    "select_backward": _sized,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
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
