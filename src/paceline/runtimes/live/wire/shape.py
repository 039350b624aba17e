"""Which part of the flat vector each server keeps, in elements."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from paceline.strategies.base import server_slices


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a server keeps: so many elements of a type."""

    length: int
    dtype: torch.dtype


class Span(NamedTuple):
    """Where a server's part starts in the flat vector, and how many elements it has."""

    start: int
    length: int


def span_of(length: int, servers: int, server: int) -> Span:
    """The part of a vector of so many elements that a server keeps."""
    lengths = [piece.numel() for piece in server_slices(torch.empty(length, device="meta"), servers)]
    return Span(sum(lengths[:server]), lengths[server])
