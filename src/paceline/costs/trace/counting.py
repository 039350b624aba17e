"""From one call of an operator to its record: kind, floating-point operations, bytes and sizes."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from paceline.costs.trace.kinds import FLOPS, FREE, WRITE_ONLY, kind_of
from paceline.costs.trace.meta_layers import is_channels_last
from paceline.costs.trace.operator import (
    Attention,
    Convolution,
    Kind,
    Norm,
    Operator,
    Phase,
    Product,
    Recurrence,
    Shape,
    Window,
)

_PRODUCTS = {
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
}


def counts(function: OpOverload) -> bool:
    """Whether a call takes time that depends on its tensors: views, allocations and the profiler's marks do not."""
    return not (function.is_view or function._opname in FREE or function.namespace in ("profiler", "prim"))


def operator(
    function: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    phase: Phase,
    module: str,
    unrolled: bool = False,
) -> Operator:
    name = function._opname
    kind = kind_of(name)
    arguments = _named(function, args, kwargs)
    given, made = list(tensors_in(arguments.values())), list(tensors_in([result]))
    elements = max((tensor.numel() for tensor in [*given, *made]), default=0)
    if name == "_trilinear":  # of a bilinear layer: it multiplies its inputs and weights, and sums
        elements = _trilinear_size(arguments)
    shape = _shape(name, kind, arguments, made)
    read, written = _bytes(function, arguments, given, made)
    return Operator(
        name=name,
        kind=kind,
        phase=phase,
        module=module,
        flops=_flops(name, kind, shape, elements, arguments),
        read=read,
        written=written,
        elements=elements,
        shape=shape,
        scattered=_is_scattered([*given, *made]),
        unrolled=unrolled,
    )


def held(tensor: Tensor) -> int:
    """Bytes of memory behind a tensor; what ``expand`` repeats is there once."""
    if tensor.layout is not torch.strided:
        return tensor.numel() * tensor.itemsize
    return tensor.itemsize * prod(
        size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not size
    )


def _named(function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = (argument.name for argument in function._schema.arguments)
    return {**dict(zip(names, args, strict=False)), **kwargs}


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def _shape(name: str, kind: Kind, arguments: dict[str, Any], made: list[Tensor]) -> Shape:
    match kind:
        case "convolution":
            return _convolution_size(
                arguments, arguments["grad_output"] if "grad_output" in arguments else made[0]
            )
        case "product":
            left, right = _PRODUCTS[name]
            return _product_size(arguments[left], arguments[right])
        case "attention":
            return _attention_size(arguments)
        case "norm":
            return _norm_size(name, arguments)
        case "recurrence":
            return _recurrence_size(arguments)
        case "pool":
            return _window(arguments, made)
    return None


def _window(arguments: dict[str, Any], made: list[Tensor]) -> Shape:
    output = arguments.get("grad_output", made[0])
    images = arguments["self"]
    kernel = arguments.get("kernel_size")
    if kernel is None:  # adaptive: as many cells as it takes to get from one size to the other
        dimensions = 3 if images.dim() == 5 else 2
        pairs = zip(images.shape[-dimensions:], output.shape[-dimensions:], strict=True)
        kernel = [-(-size // out) for size, out in pairs]
    return _window_size(images, output, kernel)


def _flops(name: str, kind: Kind, shape: Shape, elements: int, arguments: dict[str, Any]) -> float:
    match shape:
        case Convolution():
            return _convolution_flops(name, shape)
        case Product():
            return 2.0 * shape.batch * shape.m * shape.n * shape.k
        case Attention():
            value: int = arguments["value"].shape[-1]
            widths = 3 * shape.width + 2 * value if name.endswith("_backward") else shape.width + value
            return 2.0 * shape.batch * shape.heads * shape.queries * shape.keys * widths
        case Recurrence():
            gates = 4 * shape.hidden * (shape.inputs + shape.hidden)
            return 2.0 * shape.batch * shape.length * gates * (2 if name.endswith("_backward") else 1)
        case Window():
            cells = shape.batch * shape.channels * shape.out_height * shape.out_width
            return float(cells * shape.kernel_height * shape.kernel_width)
    if kind == "optimizer":
        size: int = sum(part.numel() for part in arguments["self"])
        return _optimizer_flops(name, arguments) * size
    if kind in ("copy", "embedding"):
        return 0.0
    return FLOPS.get(name, 1.0) * elements


def _convolution_flops(name: str, shape: Convolution) -> float:
    """Of the forward, or of the wanted gradients, each of which takes as much.

    A group's filter sees its own channels only, in the gradient too (torch's FlopCounterMode forgets it there).
    """
    places = (
        shape.height * shape.width if shape.transposed else shape.out_height * shape.out_width
    ) * shape.batch
    cells = shape.kernel_height * shape.kernel_width * shape.inputs * shape.outputs // shape.groups
    wanted = shape.data + shape.filter if name.endswith("_backward") else 1
    return 2.0 * places * cells * wanted


def _optimizer_flops(name: str, arguments: dict[str, Any]) -> float:
    """An element: each moment, the weight decay and the step are multiply-adds; Adam divides and takes a root too."""
    decay = 2.0 if arguments.get("weight_decay") else 0.0
    if name == "_fused_sgd_":
        moment = 2.0 if arguments.get("momentum") else 0.0
        return 2.0 + decay + moment * (2 if arguments.get("nesterov") else 1)
    return decay + (5.0 if name == "_fused_adagrad_" else 12.0)


@cache
def _writes(function: OpOverload) -> tuple[str, ...]:
    """The arguments that a call changes; a fused optimizer changes gradients only to unscale them."""
    changed = (one.name for one in function._schema.arguments if one.alias_info and one.alias_info.is_write)
    return tuple(name for name in changed if not (function._opname.startswith("_fused_") and name == "grads"))


def _bytes(
    function: OpOverload, arguments: dict[str, Any], given: list[Tensor], made: list[Tensor]
) -> tuple[int, int]:
    """Read and written; every tensor once, and in place means both."""
    name = function._opname
    written = {id(tensor): held(tensor) for tensor in made}
    changed = tensors_in(arguments.get(one) for one in _writes(function))
    written |= {id(tensor): held(tensor) for tensor in changed}
    read = {id(tensor): held(tensor) for tensor in given}
    if name in WRITE_ONLY:
        read.pop(id(arguments["self"]), None)
    elif name in ("embedding", "index", "index_select", "gather"):
        # Only the rows that are asked for are read.
        table = arguments.get("weight", arguments.get("self"))
        read[id(table)] = min(held(made[0]), read.get(id(table), 0))
    return sum(read.values()), sum(written.values())


def _convolution_size(arguments: dict[str, Any], output: Tensor) -> Convolution:
    """Of ``convolution`` or its backward, whose ``output`` is the gradient that it was given."""
    images, weight = arguments["input"], arguments["weight"]
    mask = arguments.get("output_mask", (True, True))
    height, width = _plane(images.shape[2:])
    out_height, out_width = _plane(output.shape[2:])
    kernel_height, kernel_width = _plane(weight.shape[2:])
    stride_height, stride_width = _plane(arguments["stride"])
    padding = arguments["padding"]
    return Convolution(
        batch=images.shape[0],
        inputs=images.shape[1],
        outputs=output.shape[1],
        height=height,
        width=width,
        out_height=out_height,
        out_width=out_width,
        kernel_height=kernel_height,
        kernel_width=kernel_width,
        stride_height=stride_height,
        stride_width=stride_width,
        padding_height=padding[-2] if len(padding) > 1 else 0,
        padding_width=padding[-1],
        dilation=max(arguments["dilation"]),
        groups=arguments["groups"],
        transposed=arguments["transposed"],
        dimensions=weight.dim() - 2,
        channels_last=is_channels_last(images),
        data=bool(mask[0]),
        filter=bool(mask[1]),
    )


def _product_size(left: Tensor, right: Tensor) -> Product:
    *stack, m, k = left.shape
    return Product(batch=prod(stack), m=m, n=right.shape[-1], k=k)


def _window_size(images: Tensor, output: Tensor, kernel: Sequence[int]) -> Window:
    """Of a pooling over images or over a single one without a batch; volumes are brought to a plane."""
    dimensions = len(kernel)
    height, width = _plane(images.shape[-dimensions:])
    out_height, out_width = _plane(output.shape[-dimensions:])
    kernel_height, kernel_width = _plane(kernel)
    *stack, channels = images.shape[:-dimensions] or (1,)
    return Window(
        batch=prod(stack),
        channels=channels,
        out_height=out_height,
        out_width=out_width,
        kernel_height=kernel_height,
        kernel_width=kernel_width,
        height=height,
        width=width,
    )


def _attention_size(arguments: dict[str, Any]) -> Attention:
    batch, heads, queries, width = arguments["query"].shape
    return Attention(
        batch=batch,
        heads=heads,
        queries=queries,
        keys=arguments["key"].shape[2],
        width=width,
        causal=bool(arguments.get("is_causal", False)),
    )


def _norm_size(name: str, arguments: dict[str, Any]) -> Norm:
    if "group" in name:
        return Norm(channels=arguments["C"], places=arguments["HxW"], groups=arguments["group"])
    values = arguments["input"]
    if "normalized_shape" in arguments:
        return Norm(channels=1, places=prod(arguments["normalized_shape"]))
    return Norm(channels=values.shape[1], places=prod(values.shape[2:]))


def _is_scattered(tensors: Iterable[Tensor]) -> bool:
    """Whether some of the largest of these tensors lie in memory in another order than others."""
    whole = [one for one in tensors if one.layout is torch.strided and one.numel() > 1]
    most = max((one.numel() for one in whole), default=0)
    orders = {_order(one) for one in whole if one.numel() == most and 0 not in one.stride()}
    return len(orders) > 1


def _order(tensor: Tensor) -> tuple[int, ...]:
    """The strides of all dimensions that have more than one place."""
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


def _recurrence_size(arguments: dict[str, Any]) -> Recurrence:
    length, batch, inputs = arguments["input"].shape
    return Recurrence(batch=batch, length=length, inputs=inputs, hidden=arguments["hidden_size"])


def _trilinear_size(arguments: dict[str, Any]) -> int:
    """Of three tensors that are expanded and multiplied, the elements of the product."""
    shapes = []
    for place in ("1", "2", "3"):
        shape = list(arguments[f"i{place}"].shape)
        for dimension in arguments[f"expand{place}"]:
            shape.insert(dimension, 1)
        shapes.append(shape)
    return prod(map(max, *shapes))


def _plane(sizes: Sequence[int]) -> tuple[int, int]:
    """Height and width: a line has height 1, the depths of a volume are stacked."""
    return prod(sizes[:-1]), sizes[-1]
