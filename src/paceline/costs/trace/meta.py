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

from paceline.costs.trace import meta_layers as layers
from paceline.costs.trace.meta_tensors import (
    Ints,
    NotPlain,
    broadcasts,
    contiguous,
    empty,
    into,
    only_if,
    ordered,
    strided,
)


class NeedsValues(Exception):
    """The model asks what a tensor holds, and one on meta holds nothing."""


def meta_result(function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = function._opname
    rule = RULES.get(name)
    if rule is not None:
        try:
            return rule(*args, **kwargs)
        except (NotPlain, ValueError, IndexError):  # the latter of sizes that do not fit
            pass
    if _asks(name, args):
        raise NeedsValues("item() or a condition" if name == "_local_scalar_dense" else name.strip("_"))
    return function(*args, **kwargs)


def _asks(name: str, args: tuple[Any, ...]) -> bool:
    if name == "index":
        return any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1])
    return name in _VALUE_DEPENDENT.split() and any(isinstance(one, Tensor) and one.is_meta for one in args)


def _is_expanded(tensor: Tensor) -> bool:
    """Whether a dimension repeats the same memory, which says nothing about where it belongs."""
    strides = tensor.stride()
    return 0 in strides and any(
        size > 1 and not step for size, step in zip(tensor.shape, strides, strict=True)
    )


def elementwise(*args: Any, **options: Any) -> Tensor:
    """One tensor out of tensors of one floating-point type that broadcast; the first says how it lies in memory."""
    tensors = [one for one in args if isinstance(one, Tensor)]
    first, out = tensors[0], options.get("out")
    only_if(all(one.is_meta and one.dtype == first.dtype for one in tensors))
    only_if(first.dtype.is_floating_point)
    if out is not None:
        only_if(all(one.shape == out.shape and one.dtype == out.dtype for one in tensors))
        return out  # type: ignore[no-any-return]
    if all(broadcasts(one, first) for one in tensors[1:]):
        # Where the first says little of how its memory lies, the others have their say, and torch knows how.
        only_if(len(tensors) == 1 or not _is_expanded(first))
        return ordered(first)
    only_if(all(one.is_contiguous() for one in tensors))
    return empty(np.broadcast_shapes(*(one.shape for one in tensors)), first.dtype)


def _like_first(
    first: Tensor,
    *_: Any,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format | None = None,
    **__: Any,
) -> Tensor:
    only_if(first.is_meta, dtype in (None, first.dtype))
    if memory_format is torch.contiguous_format:
        return contiguous(first)
    only_if(memory_format in (None, torch.preserve_format))
    return ordered(first)


def _like_second(_: Tensor, second: Tensor, *__: Any, **___: Any) -> Tensor:
    only_if(second.is_contiguous())
    return contiguous(second)


def _in_place(first: Tensor, *others: Any, **_: Any) -> Tensor:
    tensors = [one for one in others if isinstance(one, Tensor)]
    only_if(first.is_meta, all(one.is_meta and broadcasts(one, first) for one in tensors))
    return first


def _scattered(first: Tensor, *_: Any, **__: Any) -> Tensor:
    only_if(first.is_meta)
    return first


def _bits(first: Tensor, second: Any, *, out: Tensor | None = None) -> Tensor:
    """Of integers of one type, or of one with a number."""
    tensors = [one for one in (first, second) if isinstance(one, Tensor)]
    only_if(all(one.is_meta and one.dtype == first.dtype and one.is_contiguous() for one in tensors))
    only_if(not first.dtype.is_floating_point, first.dtype != torch.bool)
    return into(out, np.broadcast_shapes(*(one.shape for one in tensors)), first.dtype)


def _asked(first: Tensor, *numbers: Any, **options: Any) -> Tensor:
    """Yes or no for each element."""
    only_if(first.is_meta, first.is_contiguous(), not options)
    only_if(not any(isinstance(one, Tensor) for one in numbers))
    return empty(first.shape, torch.bool)


def _taken(vector: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Of a vector, elements by their numbers."""
    (chosen,) = indices
    only_if(vector.dim() == 1, chosen is not None and chosen.dtype == torch.int64 and chosen.is_meta)
    assert chosen is not None
    return empty(chosen.shape, vector.dtype)


def _random(shape: Ints, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Tensor:
    only_if(device is not None and device.type == "meta")
    return empty(shape, dtype or torch.float32)


def _random_integers(*bounds: Any, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Tensor:
    return _random(bounds[-1], dtype=dtype or torch.int64, device=device)


def _largest(values: Tensor, count: int, dim: int = -1, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    only_if(values.is_meta, values.dim() == 1, dim in (0, -1), 0 <= count <= values.numel())
    return empty((count,), values.dtype), empty((count,), torch.int64)


def _sorted(values: Tensor, *_: Any, **options: Any) -> tuple[Tensor, Tensor]:
    only_if(values.is_meta, values.dim() == 1, not options)
    return empty(values.shape, values.dtype), empty(values.shape, torch.int64)


def _matrix_vector(matrix: Tensor, vector: Tensor) -> Tensor:
    only_if(matrix.dtype == vector.dtype, matrix.shape[1:] == vector.shape)
    return empty(matrix.shape[:1], matrix.dtype)


def _length(values: Tensor, _: float = 2, *rest: Any, **options: Any) -> Tensor:
    only_if(values.is_floating_point(), not rest, not options)
    return empty((), values.dtype)


def _arange(*bounds: Any, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Tensor:
    only_if(all(type(one) is int for one in bounds), device is not None and device.type == "meta")
    return empty((len(range(*bounds)),), dtype or torch.int64)


def _product(dimensions: int, left: Tensor, right: Tensor, *, out: Tensor | None = None) -> Tensor:
    only_if(left.dim() == right.dim() == dimensions, left.dtype == right.dtype)
    only_if(left.shape[:-2] == right.shape[:-2], left.shape[-1] == right.shape[-2])
    return into(out, (*left.shape[:-1], right.shape[-1]), left.dtype)


def _orthogonal_triangular(matrix: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """Both factors column by column, as LAPACK has them."""
    only_if(matrix.is_meta, matrix.dim() == 2, mode == "reduced")
    (height, width), rank = matrix.shape, min(matrix.shape)
    q = strided((height, rank), (1, max(height, 1)), matrix.dtype)
    return q, strided((rank, width), (1, max(rank, 1)), matrix.dtype)


def _chosen(condition: Tensor, first: Tensor, second: Tensor) -> Tensor:
    only_if(first.shape == second.shape, first.dtype == second.dtype, broadcasts(condition, first))
    only_if(all(one.is_meta and one.is_contiguous() for one in (condition, first, second)))
    return contiguous(first)


def _addmm(bias: Tensor, left: Tensor, right: Tensor, **options: Any) -> Tensor:
    made = _product(2, left, right)
    only_if(options.keys() <= {"alpha", "beta"}, bias.dtype == left.dtype, broadcasts(bias, made))
    return made


def _reduced(
    values: Tensor,
    dims: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    only_if(values.is_floating_point() or dtype is not None)
    dims = [dims] if isinstance(dims, int) else dims or range(values.dim())
    depth = max(values.dim(), 1)
    gone = {place % depth for place in dims}
    only_if(len(gone) == len(dims), all(-depth <= place < depth for place in dims))
    sizes = [
        (1 if place in gone else size)
        for place, size in enumerate(values.shape)
        if keepdim or place not in gone
    ]
    return into(out, sizes, dtype or values.dtype)


def _extreme(values: Tensor, dims: Any = None, keepdim: bool = False, **options: Any) -> Tensor:
    return _reduced(values, dims, keepdim, dtype=values.dtype, **options)


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    shape = list(tensors[0].shape)
    shape[dim] = sum(one.shape[dim] for one in tensors)
    place = dim % len(shape)
    rests = {(one.dtype, one.shape[:place], one.shape[place + 1 :]) for one in tensors}
    only_if(len(rests) == 1, all(one.is_contiguous() for one in tensors))
    return empty(shape, tensors[0].dtype)


def _pad(values: Tensor, widths: Ints, *_: Any) -> Tensor:
    shape = list(values.shape)
    for place in range(len(widths) // 2):
        shape[-1 - place] += widths[2 * place] + widths[2 * place + 1]
    only_if(values.is_contiguous(), min(shape) > 0)
    return empty(shape, values.dtype)


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
    "any": partial(_reduced, dtype=torch.bool),
    "cat": _cat,
    "constant_pad_nd": _pad,
    "nll_loss_forward": layers.nll,
    "embedding": layers.embedding,
    "slice_backward": layers.sized,
    "select_backward": layers.sized,
    "_scaled_dot_product_flash_attention_for_cpu": layers.attention,
    "convolution": layers.convolution,
    "convolution_backward": layers.convolution_backward,
    "native_batch_norm": layers.batch_norm,
    "native_batch_norm_backward": layers.batch_norm_backward,
    "native_layer_norm": layers.layer_norm,
    "native_layer_norm_backward": layers.layer_norm_backward,
    "max_pool2d_with_indices": layers.max_pool,
    "avg_pool2d": layers.average_pool,
    "avg_pool3d": layers.average_pool,
    "mkldnn_rnn_layer": layers.lstm,
    "mkldnn_rnn_layer_backward": layers.lstm_backward,
}
