"""What a model is called with: a mini-batch, of which the workers tell each other the first before the run begins."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

_MOST = 2**20
"""Elements that the digest is of: those of several samples, and what takes a millisecond."""


def first_tensor(args: Any, kwargs: Any) -> Tensor | None:
    """Of what a model is called with, the first that may have a row for each sample."""
    if args and isinstance(args[0], Tensor) and args[0].dim():
        return args[0]
    return next((one for one in tree_leaves([args, kwargs]) if isinstance(one, Tensor) and one.dim()), None)


def rows_of(args: Any, kwargs: Any) -> int:
    """The samples of a batch: the length of its first tensor; 0 where there is none."""
    try:
        rows: int = args[0].size(0)
    except (IndexError, AttributeError, TypeError):
        first = first_tensor(args, kwargs)
        return 0 if first is None else len(first)
    return rows


@dataclass(frozen=True, kw_only=True)
class FirstBatch:
    """What a worker begins with; nothing, where it only follows the others."""

    samples: int = 0
    digest: str = ""
    """Of its first tensor; empty where that has nothing."""
    ended: bool = False
    """Whether the script has ended, and there is no mini-batch."""

    @classmethod
    def of(cls, first: Tensor | None) -> "FirstBatch":
        if first is None:
            return cls()
        return cls(samples=len(first), digest=_digest(first.detach()))


def find_equal(batches: Sequence[FirstBatch]) -> tuple[int, int] | None:
    """Two ranks whose mini-batches are the same."""
    seen: dict[str, int] = {}
    for rank, one in enumerate(batches):
        if one.digest and seen.setdefault(one.digest, rank) != rank:
            return seen[one.digest], rank
    return None


def _digest(tensor: Tensor) -> str:
    if not tensor.numel() or tensor.layout is not torch.strided:
        return ""
    head = tensor.reshape(-1)[:_MOST].cpu().contiguous()
    content = head.view(torch.uint8).numpy().tobytes()
    return sha256(f"{tuple(tensor.shape)}".encode() + content).hexdigest()
