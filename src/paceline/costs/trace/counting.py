"""From one call of an operator to its record: kind, floating-point operations, bytes and sizes."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from paceline.costs.trace import operator as ops
from paceline.costs.trace.meta_tensors import is_channels_last
from paceline.costs.trace.operator import Convolution, Operator, OperatorKind, Phase, Shape, kind_of

Arguments = dict[str, Any]

_FACTORS = {
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
}


SCATTERING = ("index_add_", "index_fill_")


def counts(function: OpOverload) -> bool:
    """Whether a call takes time that depends on its tensors: views, allocations and the profiler's marks do not."""
    return not (
        function.is_view or function._opname in ops.FREE or function.namespace in ("profiler", "prim")
    )


def operator(
    function: OpOverload,
    args: tuple[Any, ...],
    kwargs: Arguments,
    result: Any,
    phase: Phase,
    module: str,
    unrolled: bool = False,
) -> Operator:
    name = function._opname
    kind = kind_of(name)
    names = (argument.name for argument in function._schema.arguments)
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    given, made = list(tensors_in(arguments.values())), list(tensors_in([result]))
    elements = max((tensor.numel() for tensor in (*given, *made)), default=0)
    if name in SCATTERING:
        elements = arguments["index"].numel()
    if name == "_trilinear":  # of a bilinear layer: it multiplies its inputs and weights, and sums
        elements = _trilinear_elements(arguments)
    shape, flops = _shape_and_flops(name, kind, arguments, made)
    if flops is None:
        flops = 0.0 if kind in ("copy", "embedding") else ops.FLOPS.get(name, 1.0) * elements
    read, written = _bytes(function, arguments, given, made)
    return Operator(
        name=name,
        kind=kind,
        phase=phase,
        module=module,
        flops=flops,
        read=read,
        written=written,
        elements=elements,
        shape=shape,
        dtype=_dtype([*given, *made]),
        scattered=_is_scattered([*given, *made]),
        unrolled=unrolled,
    )


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def _dtype(tensors: Iterable[Tensor]) -> torch.dtype:
    numbers = (one.dtype.to_real() for one in tensors if one.is_floating_point() or one.is_complex())
    return next(numbers, torch.float32)


def _shape_and_flops(
    name: str, kind: OperatorKind, arguments: Arguments, made: list[Tensor]
) -> tuple[Shape, float | None]:
    """Operations are None where they are a number an element."""
    backward = name.endswith("_backward")
    output: Any = arguments.get("grad_output", made[0] if made else None)
    match kind:
        case "convolution":
            conv = _convolution(arguments, output)
            return conv, _convolution_flops(conv, backward)
        case "product":
            left, right = (arguments[factor] for factor in _FACTORS[name.removesuffix("_")])
            *stack, m, k = left.shape
            product = ops.Product(batch=prod(stack), m=m, n=right.shape[-1], k=k)
            return product, 2.0 * product.batch * m * product.n * k
        case "attention":
            return _attention(arguments, backward)
        case "norm":
            return _norm(name, arguments), None
        case "recurrence":
            length, batch, inputs = arguments["input"].shape
            hidden = arguments["hidden_size"]
            layer = ops.Recurrence(batch=batch, length=length, inputs=inputs, hidden=hidden)
            return layer, 2.0 * batch * length * 4 * hidden * (inputs + hidden) * (2 if backward else 1)
        case "pool":
            window = _window(arguments, output)
            return window, float(window.batch * window.channels * prod(window.out) * prod(window.kernel))
        case "optimizer":
            return None, _optimizer_flops(name, arguments) * sum(part.numel() for part in arguments["self"])
    return None, None


def _convolution(arguments: Arguments, output: Tensor) -> Convolution:
    images, weight = arguments["input"], arguments["weight"]
    data, weights, *_ = arguments.get("output_mask", (True, True))
    padding = arguments["padding"]
    return Convolution(
        batch=images.shape[0],
        inputs=images.shape[1],
        outputs=output.shape[1],
        size=_plane(images.shape[2:]),
        out=_plane(output.shape[2:]),
        kernel=_plane(weight.shape[2:]),
        stride=_plane(arguments["stride"]),
        padding=(padding[-2] if len(padding) > 1 else 0, padding[-1]),
        dilation=max(arguments["dilation"]),
        groups=arguments["groups"],
        transposed=arguments["transposed"],
        dimensions=weight.dim() - 2,
        channels_last=is_channels_last(images),
        data=bool(data),
        filter=bool(weights),
    )


def _convolution_flops(shape: Convolution, backward: bool) -> float:
    """Of the forward, or of the wanted gradients, each of which takes as much.

    A group's filter sees its own channels only, in the gradient too (torch's FlopCounterMode forgets it there).
    """
    places = prod(shape.size if shape.transposed else shape.out) * shape.batch
    cells = prod(shape.kernel) * shape.inputs * shape.outputs // shape.groups
    return 2.0 * places * cells * (shape.data + shape.filter if backward else 1)


def _attention(arguments: Arguments, backward: bool) -> tuple[ops.Attention, float]:
    (batch, heads, queries, width), keys = arguments["query"].shape, arguments["key"].shape[2]
    causal = bool(arguments.get("is_causal", False))
    shape = ops.Attention(batch=batch, heads=heads, queries=queries, keys=keys, width=width, causal=causal)
    value = arguments["value"].shape[-1]
    widths = 3 * width + 2 * value if backward else width + value
    return shape, 2.0 * batch * heads * queries * keys * widths


def _norm(name: str, arguments: Arguments) -> ops.Norm:
    if "group" in name:
        return ops.Norm(channels=arguments["C"], places=arguments["HxW"], groups=arguments["group"])
    if "normalized_shape" in arguments:
        return ops.Norm(channels=1, places=prod(arguments["normalized_shape"]))
    _, channels, *sizes = arguments["input"].shape
    return ops.Norm(channels=channels, places=prod(sizes))


def _window(arguments: Arguments, output: Tensor) -> ops.Window:
    images, kernel = arguments["self"], arguments.get("kernel_size")
    if kernel is None:  # adaptive: as many cells as it takes to get from one size to the other
        dimensions = 3 if images.dim() == 5 else 2
        pairs = zip(images.shape[-dimensions:], output.shape[-dimensions:], strict=True)
        kernel = [-(-size // out) for size, out in pairs]
    dimensions = len(kernel)
    *stack, channels = images.shape[:-dimensions] or (1,)
    size, out = _plane(images.shape[-dimensions:]), _plane(output.shape[-dimensions:])
    return ops.Window(batch=prod(stack), channels=channels, size=size, out=out, kernel=_plane(kernel))


def _plane(sizes: Sequence[int]) -> ops.Plane:
    return prod(sizes[:-1]), sizes[-1]


def _optimizer_flops(name: str, arguments: Arguments) -> float:
    decay = 2.0 if arguments.get("weight_decay") else 0.0
    if name == "_fused_sgd_":
        moment = 2.0 if arguments.get("momentum") else 0.0
        return 2.0 + decay + moment * (2 if arguments.get("nesterov") else 1)
    return decay + (5.0 if name == "_fused_adagrad_" else 12.0)


def _trilinear_elements(arguments: Arguments) -> int:
    shapes = []
    for place in ("1", "2", "3"):
        shape = list(arguments[f"i{place}"].shape)
        for dimension in arguments[f"expand{place}"]:
            shape.insert(dimension, 1)
        shapes.append(shape)
    return prod(map(max, *shapes))


def _bytes(
    function: OpOverload, arguments: Arguments, given: list[Tensor], made: list[Tensor]
) -> tuple[int, int]:
    name = function._opname
    changed = tensors_in(arguments.get(one) for one in _writes(function))
    written = {id(tensor): _memory(tensor) for tensor in (*made, *changed)}
    read = {id(tensor): _memory(tensor) for tensor in given}
    if name in ops.WRITE_ONLY:
        read.pop(id(arguments["self"]), None)
    elif name in ("embedding", "index", "index_select", "gather"):
        # Only the rows that are asked for are read.
        table = arguments.get("weight", arguments.get("self"))
        read[id(table)] = min(_memory(made[0]), read.get(id(table), 0))
    elif name in SCATTERING:
        # Only the elements of a vector that are changed are written; what is filled is not read.
        vector, changed_bytes = arguments["self"], arguments["index"].numel() * arguments["self"].itemsize
        if vector.dim() == 1:
            written[id(vector)] = changed_bytes
            read[id(vector)] = changed_bytes if name == "index_add_" else 0
    return sum(read.values()), sum(written.values())


@cache
def _writes(function: OpOverload) -> tuple[str, ...]:
    """The arguments that a call changes; a fused optimizer changes gradients only to unscale them."""
    changed = (one.name for one in function._schema.arguments if one.alias_info and one.alias_info.is_write)
    return tuple(name for name in changed if not (function._opname.startswith("_fused_") and name == "grads"))


def _memory(tensor: Tensor) -> int:
    """Bytes behind a tensor; what ``expand`` repeats counts once."""
    if tensor.layout is not torch.strided:
        return tensor.numel() * tensor.itemsize
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.itemsize * prod(size for size, stride in pairs if stride or not size)


def _is_scattered(tensors: Sequence[Tensor]) -> bool:
    whole = [one for one in tensors if one.layout is torch.strided and one.numel() > 1]
    most = max((one.numel() for one in whole), default=0)
    orders = {
        tuple(stride for size, stride in zip(one.shape, one.stride(), strict=True) if size > 1)
        for one in whole
        if one.numel() == most and 0 not in one.stride()
    }
    return len(orders) > 1
