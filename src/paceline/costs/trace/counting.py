"""From one call of an operator to its record: kind, floating-point operations, bytes and sizes."""

from collections.abc import Iterable, Iterator
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from paceline.costs.trace import sizes
from paceline.costs.trace.kinds import FLOPS, FREE, WRITE_ONLY, kind_of
from paceline.costs.trace.operator import (
    Attention,
    Convolution,
    Kind,
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
    """The record of a call that gave ``result``."""
    name = function._opname
    kind = kind_of(name)
    arguments = _named(function, args, kwargs)
    given, made = list(tensors_in(arguments.values())), list(tensors_in([result]))
    elements = max((tensor.numel() for tensor in [*given, *made]), default=0)
    if name == "_trilinear":  # of a bilinear layer: it multiplies its inputs and weights, and sums
        elements = sizes.trilinear(arguments)
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
        scattered=sizes.scattered([*given, *made]),
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
    """The tensors among some values, and in lists and tuples of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def _shape(name: str, kind: Kind, arguments: dict[str, Any], made: list[Tensor]) -> Shape:
    match kind:
        case "convolution":
            return sizes.convolution(
                arguments, arguments["grad_output"] if "grad_output" in arguments else made[0]
            )
        case "product":
            left, right = _PRODUCTS[name]
            return sizes.product(arguments[left], arguments[right])
        case "attention":
            return sizes.attention(arguments)
        case "norm":
            return sizes.norm(name, arguments)
        case "recurrence":
            return sizes.recurrence(arguments)
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
    return sizes.window(images, output, kernel)


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
