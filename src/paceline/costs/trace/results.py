"""What an operator gives on meta tensors: own rules for the common ones, torch's own kernels for the rest.

Torch has such kernels for nearly every operator, but many are written in Python: the first call imports torch's
compiler, which takes longer than a whole trace. A rule answers ``NotImplemented`` wherever the case is not a plain one
(mixed types, odd strides, sizes that do not fit), so that torch decides, and refuses, in its own words.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from paceline.costs.trace.meta_layers import LAYERS, empty, is_expanded, like, ordered

_VALUE_DEPENDENT = (
    "_local_scalar_dense nonzero masked_select _unique2 unique_dim unique_consecutive repeat_interleave "
    "equal is_nonzero bincount"
)
_NEEDS_VALUES = frozenset(_VALUE_DEPENDENT.split())

_UNARY = (
    "relu tanh sigmoid gelu silu exp log sqrt rsqrt neg abs sin cos erf hardtanh leaky_relu elu hardswish "
    "hardsigmoid softplus mish log1p reciprocal clamp clamp_min clamp_max mul add sub div pow rsub addcmul addcdiv "
    "threshold_backward gelu_backward tanh_backward sigmoid_backward silu_backward hardtanh_backward "
    "leaky_relu_backward elu_backward hardswish_backward hardsigmoid_backward softplus_backward mish_backward"
)
_LIKE_FIRST = "_softmax _log_softmax _safe_softmax ones_like zeros_like full_like empty_like bernoulli"
_LIKE_SECOND = (
    "_softmax_backward_data _log_softmax_backward_data nll_loss_backward mse_loss_backward multi_margin_loss_backward "
    "multilabel_margin_loss_backward fractional_max_pool3d_backward"
)
_IN_PLACE = (
    "zero_ fill_ normal_ uniform_ bernoulli_ add_ mul_ div_ sub_ relu_ clamp_ sigmoid_ tanh_ silu_ hardtanh_ "
    "leaky_relu_ lerp_ addcmul_ addcdiv_ sqrt_ copy_ exponential_ trunc_ erfinv_ random_"
)
_NOTHING = "_fused_sgd_ _fused_adam_ _fused_adamw_ _fused_adagrad_"


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
    """Whether the size of the result, or the result itself, depends on values."""
    if name == "index":
        return any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1])
    return name in _NEEDS_VALUES and any(isinstance(one, Tensor) and one.is_meta for one in args)


def elementwise(*args: Any, **options: Any) -> Any:
    """One tensor out of tensors of one floating-point type that broadcast; the first says how it lies in memory."""
    tensors = [one for one in args if isinstance(one, Tensor)]
    first = tensors[0]
    dtype = first.dtype
    if not dtype.is_floating_point or "out" in options or not all(_plain(one, dtype) for one in tensors):
        return NotImplemented
    if all(_fits(one, first) for one in tensors[1:]):
        # Where the first says little of how its memory lies, the others have their say, and torch knows how.
        return NotImplemented if is_expanded(first) and len(tensors) > 1 else ordered(first)
    shape = _broadcast(tensors)
    if shape is None or not all(one.is_contiguous() for one in tensors):
        return NotImplemented
    return empty(shape, dtype)


def _plain(tensor: Tensor, dtype: torch.dtype) -> bool:
    return tensor.is_meta and tensor.dtype == dtype


def _fits(tensor: Tensor, into: Tensor) -> bool:
    """Whether a tensor broadcasts to another's shape."""
    if tensor.shape == into.shape:
        return True
    if tensor.dim() > into.dim():
        return False
    pairs = zip(reversed(tensor.shape), reversed(into.shape), strict=False)
    return all(one in (1, size) for one, size in pairs)


def _broadcast(tensors: list[Tensor]) -> list[int] | None:
    depth = max(one.dim() for one in tensors)
    shape = [1] * depth
    for one in tensors:
        for place, size in enumerate(one.shape, depth - one.dim()):
            if shape[place] == 1:
                shape[place] = size
            elif size not in (1, shape[place]):
                return None
    return shape


def _like_first(first: Tensor, *_: Any, **options: Any) -> Any:
    if not first.is_meta or options.get("dtype", first.dtype) not in (None, first.dtype):
        return NotImplemented
    if options.get("memory_format") not in (None, torch.preserve_format):
        return NotImplemented
    return like(first)


def _clone(first: Tensor, *, memory_format: torch.memory_format | None = None) -> Any:
    if not first.is_meta:
        return NotImplemented
    if memory_format is torch.contiguous_format:
        return empty(first.shape, first.dtype)
    return like(first) if memory_format in (None, torch.preserve_format) else NotImplemented


def _like_second(_: Tensor, second: Tensor, *__: Any, **___: Any) -> Any:
    return empty(second.shape, second.dtype) if second.is_contiguous() else NotImplemented


def _in_place(first: Any, *others: Any, **_: Any) -> Any:
    tensors = [one for one in others if isinstance(one, Tensor)]
    fit = first.is_meta and all(one.is_meta and _fits(one, first) for one in tensors)
    return first if fit else NotImplemented


def _arange(*bounds: Any, **options: Any) -> Any:
    dtype = options.get("dtype") or torch.int64
    device = options.get("device")
    if not all(type(one) is int for one in bounds) or device is None or device.type != "meta":
        return NotImplemented
    return empty((len(range(*bounds)),), dtype)


def _nothing(*_: Any, **__: Any) -> None:
    return None


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


def _reduced(values: Tensor, dims: Any = None, keepdim: bool = False, **options: Any) -> Any:
    if not values.is_floating_point() or options.get("dtype") is not None or "out" in options:
        return NotImplemented
    dims = range(values.dim()) if dims in (None, []) else dims
    depth = max(values.dim(), 1)
    gone = {place % depth for place in dims}
    if len(gone) < len(dims) or not all(-depth <= place < depth for place in dims):
        return NotImplemented
    kept = [1 if place in gone else size for place, size in enumerate(values.shape)]
    return empty(
        kept if keepdim else [size for place, size in enumerate(kept) if place not in gone], values.dtype
    )


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    first = tensors[0]
    if not -first.dim() <= dim < first.dim():
        return NotImplemented
    place = dim % first.dim()
    rests = {(one.dtype, one.shape[:place], one.shape[place + 1 :]) for one in tensors}
    if len(rests) > 1 or not all(one.is_contiguous() for one in tensors):
        return NotImplemented
    shape = list(first.shape)
    shape[place] = sum(one.shape[place] for one in tensors)
    return empty(shape, first.dtype)


def _pad(values: Tensor, widths: Sequence[int], value: float = 0) -> Any:
    del value
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


RULES: dict[str, Any] = {
    **dict.fromkeys(_UNARY.split(), elementwise),
    **dict.fromkeys(_LIKE_FIRST.split(), _like_first),
    **dict.fromkeys(_LIKE_SECOND.split(), _like_second),
    **dict.fromkeys(_IN_PLACE.split(), _in_place),
    **dict.fromkeys(_NOTHING.split(), _nothing),
    "clone": _clone,
    "arange": _arange,
    **LAYERS,
    "mm": _mm,
    "addmm": _addmm,
    "bmm": _bmm,
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
}
"""By name; every overload of a name follows the same rule."""
