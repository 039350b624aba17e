"""Codecs that lose something: fewer bits a number, a few of the numbers, or products of thin matrices."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from paceline.codecs.base import Message, elements
from paceline.specs.ranges import NotNegative, RangeChecked, Ratio, from_1_to

LEVELS, BITS = 127, 8
INDEX_BYTES, MOST_INDEXED = 4, 2**31


@dataclass(frozen=True, kw_only=True)
class Half(RangeChecked):
    """Send every element as a 16-bit float."""

    format: Literal["bf16", "fp16"] = "bf16"
    """bf16 has the range of 32 bits and 8 bits of precision; fp16 has 11 bits and overflows above 65,504."""
    sums: ClassVar[bool] = True

    def encode(self, tensor: Tensor) -> Message:
        return (tensor.to(torch.bfloat16 if self.format == "bf16" else torch.float16),)

    def decode(self, message: Message, shape: Sequence[int]) -> Tensor:
        return message[0].to(torch.float32).reshape(tuple(shape))

    def message_bytes(self, shapes: Sequence[Sequence[int]], element: int) -> int:  # noqa: ARG002
        return 2 * elements(shapes)


@dataclass(frozen=True, kw_only=True)
class Int8(RangeChecked):
    """Round numbers at random to 127 levels of their block's largest, unbiased (QSGD; Alistarh et al., 2017)."""

    block: Annotated[int, from_1_to(2**24)] = 2048
    """Numbers that share a scale; fewer follow the gradient more closely and send more scales."""
    sums: ClassVar[bool] = False  # blocks of different workers have different scales

    def encode(self, tensor: Tensor) -> Message:
        flat = tensor.reshape(-1)
        blocks = pad(flat, (0, -flat.numel() % self.block)).view(-1, self.block)
        scales = blocks.abs().amax(dim=1, keepdim=True)
        # Divided first: the number of levels over a small scale may be more than the format holds.
        levels = (blocks / scales.clamp_min(torch.finfo(scales.dtype).tiny)).mul_(LEVELS)
        rounded = torch.floor(levels + torch.rand_like(levels)).clamp_(-LEVELS, LEVELS)
        return scales.view(-1), rounded.to(torch.int8).view(-1)[: flat.numel()]

    def decode(self, message: Message, shape: Sequence[int]) -> Tensor:
        scales, levels = message
        blocks = pad(levels, (0, -levels.numel() % self.block)).view(-1, self.block)
        values = blocks.to(scales.dtype) * (scales.view(-1, 1) / LEVELS)
        return values.view(-1)[: prod(shape)].reshape(tuple(shape))

    def message_bytes(self, shapes: Sequence[Sequence[int]], element: int) -> int:
        count = elements(shapes)
        return count + -(-count // self.block) * element


@dataclass(frozen=True, kw_only=True)
class Sign:
    """Send one bit a number, and the mean size of all (scaled signSGD; Karimireddy et al., 2019)."""

    sums: ClassVar[bool] = False

    def encode(self, tensor: Tensor) -> Message:
        flat = tensor.reshape(-1)
        bits = pad((flat >= 0).to(torch.uint8), (0, -flat.numel() % BITS)).view(-1, BITS)
        packed = bits << torch.arange(BITS, dtype=torch.uint8, device=flat.device)
        packed = packed.sum(dim=1, dtype=torch.uint8)
        return flat.abs().mean().view(1), packed

    def decode(self, message: Message, shape: Sequence[int]) -> Tensor:
        mean, packed = message
        bits = (packed.view(-1, 1) >> torch.arange(BITS, dtype=torch.uint8, device=packed.device)) & 1
        signs = bits.view(-1)[: prod(shape)].to(mean.dtype).mul_(2).sub_(1)
        return (signs * mean).reshape(tuple(shape))

    def message_bytes(self, shapes: Sequence[Sequence[int]], element: int) -> int:
        return -(-elements(shapes) // BITS) + element


def _kept(count: int, ratio: float) -> int:
    return min(count, max(1, round(ratio * count)))


def _scatter(indices: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    flat = values.new_zeros(prod(shape))
    return flat.scatter_(0, indices.long(), values).reshape(tuple(shape))


class _Sparse(RangeChecked):
    """Values and their indices; workers choose different indices, so messages cannot be summed."""

    sums: ClassVar[bool] = False

    def _message(self, flat: Tensor, indices: Tensor) -> Message:
        if flat.numel() > MOST_INDEXED:
            raise ValueError(
                f"a tensor of {flat.numel():,} numbers is too large to send indices; cut it to {MOST_INDEXED:,}"
            )
        return flat[indices], indices.to(torch.int32)

    def decode(self, message: Message, shape: Sequence[int]) -> Tensor:
        values, indices = message
        return _scatter(indices, values, shape)


@dataclass(frozen=True, kw_only=True)
class TopK(_Sparse):
    """Send the largest elements and their indices (Aji and Heafield, 2017)."""

    ratio: Ratio = 0.01
    """Fraction of the elements that is sent; less is fewer bytes and more error to feed back."""

    def encode(self, tensor: Tensor) -> Message:
        flat = tensor.reshape(-1)
        return self._message(flat, flat.abs().topk(_kept(flat.numel(), self.ratio), sorted=False).indices)

    def message_bytes(self, shapes: Sequence[Sequence[int]], element: int) -> int:
        return _kept(elements(shapes), self.ratio) * (element + INDEX_BYTES)


@dataclass(frozen=True, kw_only=True)
class Threshold(_Sparse):
    """Send the elements whose magnitude reaches a bound, and their indices (Strom, 2015)."""

    bound: NotNegative = 0.001
    """The magnitude from which an element is sent; higher is fewer bytes and more error to feed back."""
    density: Ratio = 0.01
    """Fraction of the elements that is expected to reach the bound; predictions use it, since only data can tell."""

    def encode(self, tensor: Tensor) -> Message:
        flat = tensor.reshape(-1)
        above = flat.abs() >= self.bound
        if flat.is_meta:  # only data can tell how many there are
            indices = torch.empty(_kept(flat.numel(), self.density), dtype=torch.long, device="meta")
        else:
            indices = above.nonzero().view(-1)
        return self._message(flat, indices)

    def message_bytes(self, shapes: Sequence[Sequence[int]], element: int) -> int:
        return _kept(elements(shapes), self.density) * (element + INDEX_BYTES)


@dataclass(frozen=True, kw_only=True)
class RandomK(RangeChecked):
    """Send elements at indices that a seed decides, the same for all workers, so that they sum (Stich et al., 2018)."""

    ratio: Ratio = 0.01
    """Fraction of the elements that is sent; less is fewer bytes and more error to feed back."""
    seed: int = 0
    """Decides the indices; workers must agree on it, and change it from step to step."""
    sums: ClassVar[bool] = True

    def encode(self, tensor: Tensor) -> Message:
        flat = tensor.reshape(-1)
        return (flat[self._indices(flat.numel(), flat.device)],)

    def decode(self, message: Message, shape: Sequence[int]) -> Tensor:
        return _scatter(self._indices(prod(shape), message[0].device), message[0], shape)

    def message_bytes(self, shapes: Sequence[Sequence[int]], element: int) -> int:
        return _kept(elements(shapes), self.ratio) * element

    def _indices(self, count: int, device: torch.device) -> Tensor:
        """Distinct indices, from a generator of its own, so that no other random number changes."""
        if device.type == "meta":
            return torch.randperm(count, device=device)[: _kept(count, self.ratio)]
        drawn = torch.randperm(count, generator=torch.Generator().manual_seed(self.seed))
        return drawn[: _kept(count, self.ratio)].to(device)


@dataclass(frozen=True, kw_only=True)
class PowerSGD(RangeChecked):
    """Send a matrix as the product of two thin ones, by one step of power iteration (Vogels et al., 2019)."""

    rank: Annotated[int, from_1_to(4096)] = 4
    """Columns of the thin matrices; fewer are fewer bytes and more error to feed back."""
    sums: ClassVar[bool] = True  # thin matrices of all workers add: first P, then Q

    def encode(self, tensor: Tensor) -> Message:
        """P and Q of a matrix; what has one dimension, or would not become smaller, is sent as it is."""
        if not self._is_thinner(tensor.shape):
            return (tensor,)
        matrix = tensor.reshape(tensor.shape[0], -1)
        start = torch.randn(matrix.shape[1], self.rank, dtype=matrix.dtype, device=matrix.device)
        left = _orthogonal(matrix @ start)
        return left, matrix.T @ left

    def decode(self, message: Message, shape: Sequence[int]) -> Tensor:
        found = message[0] if len(message) == 1 else message[0] @ message[1].T
        return found.reshape(tuple(shape))

    def message_bytes(self, shapes: Sequence[Sequence[int]], element: int) -> int:
        return element * sum(
            self.rank * (shape[0] + prod(shape[1:])) if self._is_thinner(shape) else prod(shape)
            for shape in shapes
        )

    def _is_thinner(self, shape: Sequence[int]) -> bool:
        if len(shape) < 2:
            return False
        height, width = shape[0], prod(shape[1:])
        return self.rank < min(height, width) and self.rank * (height + width) < height * width


def _orthogonal(columns: Tensor) -> Tensor:
    """Gram-Schmidt, each column against all before it at once; twice, which is as good as one by one."""
    made = columns.clone()
    for place, column in enumerate(made.unbind(dim=1)):
        before = made[:, :place]
        for _ in range(2 if place else 0):
            column.sub_(before @ (before.T @ column))
        column.div_(column.norm().clamp_min(torch.finfo(column.dtype).tiny))
    return made
