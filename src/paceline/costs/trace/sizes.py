"""The sizes of the operators whose time depends on more than their bytes, read from the arguments of a call."""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from paceline.costs.trace.making import is_channels_last
from paceline.costs.trace.operator import Attention, Convolution, Norm, Product, Recurrence, Window


def convolution(arguments: dict[str, Any], output: Tensor) -> Convolution:
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


def product(left: Tensor, right: Tensor) -> Product:
    """Of two matrices, or of two stacks of them."""
    *stack, m, k = left.shape
    return Product(batch=prod(stack), m=m, n=right.shape[-1], k=k)


def window(images: Tensor, output: Tensor, kernel: Sequence[int]) -> Window:
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


def attention(arguments: dict[str, Any]) -> Attention:
    """Of a fused scaled dot-product attention, forward or backward."""
    batch, heads, queries, width = arguments["query"].shape
    return Attention(
        batch=batch,
        heads=heads,
        queries=queries,
        keys=arguments["key"].shape[2],
        width=width,
        causal=bool(arguments.get("is_causal", False)),
    )


def norm(name: str, arguments: dict[str, Any]) -> Norm:
    """Of a norm, forward or backward."""
    if "group" in name:
        return Norm(channels=arguments["C"], places=arguments["HxW"], groups=arguments["group"])
    values = arguments["input"]
    if "normalized_shape" in arguments:
        return Norm(channels=1, places=prod(arguments["normalized_shape"]))
    return Norm(channels=values.shape[1], places=prod(values.shape[2:]))


def scattered(tensors: Iterable[Tensor]) -> bool:
    """Whether some of the largest of these tensors lie in memory in another order than others."""
    whole = [one for one in tensors if one.layout is torch.strided and one.numel() > 1]
    most = max((one.numel() for one in whole), default=0)
    orders = {_order(one) for one in whole if one.numel() == most and 0 not in one.stride()}
    return len(orders) > 1


def _order(tensor: Tensor) -> tuple[int, ...]:
    """The strides of all dimensions that have more than one place."""
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


def recurrence(arguments: dict[str, Any]) -> Recurrence:
    """Of a layer of an LSTM, forward or backward."""
    length, batch, inputs = arguments["input"].shape
    return Recurrence(batch=batch, length=length, inputs=inputs, hidden=arguments["hidden_size"])


def trilinear(arguments: dict[str, Any]) -> int:
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
