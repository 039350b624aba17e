"""What an operator gives on meta tensors: own rules for the common ones, torch's own kernels for the rest.

Torch has such kernels for nearly every operator, but many are written in Python: the first call imports torch's
compiler, which takes longer than a whole trace. A rule answers ``NotImplemented`` wherever the case is not a plain one
(mixed types, odd strides, sizes that do not fit), so that torch decides, and refuses, in its own words.
"""

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from paceline.costs.trace.layer_results import LAYERS
from paceline.costs.trace.making import empty, is_expanded, like, ordered
from paceline.costs.trace.part_results import PARTS

_NEEDS_VALUES = frozenset(
    [
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "repeat_interleave",
        "equal",
        "is_nonzero",
        "bincount",
    ]
)

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
    """The result of a call, without its values."""
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


RULES: dict[str, Any] = {
    **dict.fromkeys(_UNARY.split(), elementwise),
    **dict.fromkeys(_LIKE_FIRST.split(), _like_first),
    **dict.fromkeys(_LIKE_SECOND.split(), _like_second),
    **dict.fromkeys(_IN_PLACE.split(), _in_place),
    **dict.fromkeys(_NOTHING.split(), _nothing),
    "clone": _clone,
    "arange": _arange,
    **LAYERS,
    **PARTS,
}
"""By name; every overload of a name follows the same rule."""
