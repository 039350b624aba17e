"""Convolutions of several learners at once, as batches of matrix products.

``vmap`` makes of them one convolution with a group for each learner. On CPUs a group takes as long as a convolution of
its own; here its input is unfolded (im2col), and one batched matrix product serves all groups.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import fold, pad

Sides = list[int]


def _applies(image: Tensor, transposed: bool, groups: int, dilation: Sides) -> bool:
    return image.dim() == 4 and groups > 1 and not transposed and set(dilation) == {1}


def _columns(image: Tensor, size: Sides, stride: Sides, padding: Sides, groups: int) -> Tensor:
    """What each output pixel is made of: (groups, channels of a group x filter, samples x output pixels)."""
    channels, (height, width) = image.shape[1], padding
    padded = pad(image, (width, width, height, height)) if height or width else image
    windows = padded.unfold(2, size[0], stride[0]).unfold(3, size[1], stride[1])
    split = windows.view(len(image), groups, channels // groups, *windows.shape[2:]).permute(
        1, 2, 5, 6, 0, 3, 4
    )
    return split.reshape(groups, channels // groups * size[0] * size[1], -1)


def convolution(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sides,
    padding: Sides,
    dilation: Sides,
    transposed: bool,
    output_padding: Sides,  # noqa: ARG001
    groups: int,
) -> Any:
    if not _applies(image, transposed, groups, dilation):
        return NotImplemented
    size = list(weight.shape[2:])
    columns = _columns(image, size, stride, padding, groups)
    product = torch.bmm(weight.reshape(groups, -1, columns.shape[1]), columns)
    sides = [
        (side + 2 * more - own) // step + 1
        for side, more, own, step in zip(image.shape[2:], padding, size, stride, strict=True)
    ]
    out = product.view(-1, len(image), *sides).transpose(0, 1)
    return out if bias is None else out + bias.view(-1, 1, 1)


def convolution_backward(
    grad: Tensor,
    image: Tensor,
    weight: Tensor,
    bias_sizes: Sides | None,  # noqa: ARG001
    stride: Sides,
    padding: Sides,
    dilation: Sides,
    transposed: bool,
    output_padding: Sides,  # noqa: ARG001
    groups: int,
    wanted: list[bool],
) -> Any:
    """The gradients of the image, the weight and the bias, as far as they are wanted."""
    if not _applies(image, transposed, groups, dilation):
        return NotImplemented
    size, samples = list(weight.shape[2:]), len(image)
    rows = grad.transpose(0, 1).reshape(groups, len(weight) // groups, -1)
    of_image = of_weight = of_bias = None
    if wanted[0]:
        columns = torch.bmm(weight.reshape(groups, len(weight) // groups, -1).mT, rows)
        split = columns.view(groups, columns.shape[1], samples, -1).permute(2, 0, 1, 3)
        blocks = split.reshape(samples, groups * columns.shape[1], -1)
        sides = tuple(image.shape[2:])
        of_image = fold(blocks, sides, tuple(size), padding=tuple(padding), stride=tuple(stride))
    if wanted[1]:
        of_weight = torch.bmm(rows, _columns(image, size, stride, padding, groups).mT).view(weight.shape)
    if wanted[2]:
        of_bias = grad.sum((0, 2, 3))
    return of_image, of_weight, of_bias


DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.convolution.default: convolution,
    torch.ops.aten.convolution_backward.default: convolution_backward,
}
