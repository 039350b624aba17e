"""Codecs that send a few of the numbers: the largest, random ones, or those above a bound."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from paceline.codecs.base import Message, elements

INDEX = 4
"""Bytes of a number's place."""
MOST = 2**31
"""Numbers of a tensor whose places fit that."""


def _check(**ratios: float) -> None:
    for name, ratio in ratios.items():
        if not 0 < ratio <= 1:
            raise ValueError(f"{name}={ratio:g} is out of range; it must be more than 0 and at most 1")


def _kept(count: int, ratio: float) -> int:
    return min(count, max(1, round(ratio * count)))


def _narrow(places: Tensor, flat: Tensor) -> Tensor:
    if flat.numel() > MOST:
        raise ValueError(
            f"a tensor of {flat.numel():,} numbers is too large to send places; cut it to {MOST:,}"
        )
    return places.to(torch.int32)


def _scatter(places: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    flat = values.new_zeros(prod(shape))
    return flat.scatter_(0, places.long(), values).reshape(tuple(shape))


class _WithPlaces:
    """Values and their places; those of different workers are elsewhere, so messages do not add."""

    @property
    def sums(self) -> bool:
        return False

    def decode(self, message: Message, shape: Sequence[int]) -> Tensor:
        values, places = message
        return _scatter(places, values, shape)


@dataclass(frozen=True, kw_only=True)
class TopK(_WithPlaces):
    """Send the largest numbers and their places (Aji and Heafield, 2017)."""

    ratio: float = 0.01
    """Part of the numbers that is sent; less is fewer bytes and more error to feed back."""

    def __post_init__(self) -> None:
        _check(ratio=self.ratio)

    def encode(self, tensor: Tensor) -> Message:
        """Values and places of the largest, in no order."""
        flat = tensor.reshape(-1)
        places = flat.abs().topk(_kept(flat.numel(), self.ratio), sorted=False).indices
        return flat[places], _narrow(places, flat)

    def message_bytes(self, shapes: Sequence[Sequence[int]], element: int) -> int:
        return _kept(elements(shapes), self.ratio) * (element + INDEX)


@dataclass(frozen=True, kw_only=True)
class RandomK:
    """Send numbers at places that a seed decides, the same for all workers, so that they add (Stich et al., 2018)."""

    ratio: float = 0.01
    """Part of the numbers that is sent; less is fewer bytes and more error to feed back."""

    seed: int = 0
    """Decides the places; workers must agree on it, and change it from step to step."""

    def __post_init__(self) -> None:
        _check(ratio=self.ratio)

    @property
    def sums(self) -> bool:
        """All send the same places."""
        return True

    def encode(self, tensor: Tensor) -> Message:
        flat = tensor.reshape(-1)
        return (flat[self._places(flat.numel(), flat.device)],)

    def decode(self, message: Message, shape: Sequence[int]) -> Tensor:
        return _scatter(self._places(prod(shape), message[0].device), message[0], shape)

    def message_bytes(self, shapes: Sequence[Sequence[int]], element: int) -> int:
        return _kept(elements(shapes), self.ratio) * element

    def _places(self, count: int, device: torch.device) -> Tensor:
        """Without putting back, from a generator of its own, so that no other random number changes."""
        if device.type == "meta":
            return torch.randperm(count, device=device)[: _kept(count, self.ratio)]
        drawn = torch.randperm(count, generator=torch.Generator().manual_seed(self.seed))
        return drawn[: _kept(count, self.ratio)].to(device)


@dataclass(frozen=True, kw_only=True)
class Threshold(_WithPlaces):
    """Send the numbers whose size is at least a bound, and their places (Strom, 2015)."""

    bound: float = 0.001
    """The size from which a number is sent; higher is fewer bytes and more error to feed back."""

    density: float = 0.01
    """Part of the numbers that is expected above the bound: what predictions count with, since only data can tell."""

    def __post_init__(self) -> None:
        _check(density=self.density)
        if not 0 <= self.bound < float("inf"):
            raise ValueError(f"bound={self.bound:g} is out of range; it must be at least 0")

    def encode(self, tensor: Tensor) -> Message:
        """Values and places of those above the bound, in order."""
        flat = tensor.reshape(-1)
        above = flat.abs() >= self.bound
        if flat.is_meta:  # only data can tell how many there are
            places = torch.empty(_kept(flat.numel(), self.density), dtype=torch.long, device="meta")
        else:
            places = above.nonzero().view(-1)
        return flat[places], _narrow(places, flat)

    def message_bytes(self, shapes: Sequence[Sequence[int]], element: int) -> int:
        """A value and a place each, as many as are expected."""
        return _kept(elements(shapes), self.density) * (element + INDEX)
