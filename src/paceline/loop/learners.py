"""Several learners of one worker in a script's loop: the model stands for all of them.

A call of the model cuts the mini-batch into a block of rows for each learner and gives the outputs of all, one below
the other. A loss that is the mean over the rows is then the mean of the learners' own losses, weighted by their rows;
what flows back into each learner's output is multiplied by the inverse of its weight, so that each has the gradient of
its own mean.
"""

from collections.abc import Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from paceline.errors import UsageError
from paceline.jobs.optimizers import has_stepped
from paceline.loop.mini_batch import rows_of

INSTEAD = "or choose learners=1"


def copies_of(model: nn.Module, learners: int) -> list[nn.Module]:
    """The other learners: each is a model of its own."""
    if learners > 1 and hasattr(model, "_orig_mod"):
        raise UsageError(
            f"{learners} learners are copies of the model, and a compiled one is not copied; give distribute() the "
            f"model itself, {INSTEAD}"
        )
    return [deepcopy(model) for _ in range(learners - 1)]


def share_optimizer(optimizer: Optimizer, model: nn.Module, others: Sequence[nn.Module]) -> None:
    """Have the optimizer step all learners: their parameters join the group of the first one's."""
    if not others:
        return
    if optimizer.state:
        kind = type(optimizer).__name__
        if has_stepped(optimizer):
            has, remedy = "has taken steps already", "call distribute() first and load its state afterwards"
        else:
            has, remedy = "makes its state when it is constructed", "choose another optimizer"
        raise UsageError(
            f"the {kind} {has}, and the other learners' parameters would have none; {remedy}, {INSTEAD}"
        )
    alike = {
        id(first): same
        for first, *same in zip(model.parameters(), *(one.parameters() for one in others), strict=True)
    }
    for group in optimizer.param_groups:
        group["params"] += [other for one in [*group["params"]] for other in alike[id(one)]]


class RowBlocks:
    """How a call of the model becomes one of each learner; hooks of the first one's module do it."""

    def __init__(self, learners: Sequence[nn.Module]) -> None:
        self._others = learners[1:]
        self._blocks: list[tuple[Any, Any]] = []
        self._sizes: list[int] = []

    def follow(self, first: nn.Module) -> None:
        """Have the others' modules in the modes of the first one's, and frozen where those are."""
        for other in self._others:
            for own, same in zip(first.modules(), other.modules(), strict=True):
                same.training = own.training
            for one, alike in zip(first.parameters(), other.parameters(), strict=True):
                alike.requires_grad_(one.requires_grad)

    def cut(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """What the first learner is called with; the others' blocks wait for its output."""
        leaves, nesting = tree_flatten((args, kwargs))
        learners = 1 + len(self._others)
        rows = rows_of(args, kwargs)
        if rows < learners:
            raise UsageError(
                f"a mini-batch of {rows} rows cannot be divided among {learners} learners; give each at least one "
                f"(drop_last=True of the DataLoader), {INSTEAD}"
            )
        cuts = [rows * learner // learners for learner in range(learners + 1)]
        self._sizes = [stop - start for start, stop in pairwise(cuts)]
        first, *self._blocks = (
            tree_unflatten([_rows_of(leaf, rows, start, stop) for leaf in leaves], nesting)
            for start, stop in pairwise(cuts)
        )
        return first  # type: ignore[no-any-return]

    def join(self, output: Any) -> Any:
        """All learners' outputs as that of one model."""
        outputs = [
            output,
            *(one(*args, **kwargs) for one, (args, kwargs) in zip(self._others, self._blocks, strict=True)),
        ]
        self._blocks = []
        _, nesting = tree_flatten(output)
        return tree_unflatten(
            [self._joined(parts) for parts in zip(*map(tree_leaves, outputs), strict=True)], nesting
        )

    def _joined(self, parts: Sequence[Any]) -> Any:
        first, total = parts[0], sum(self._sizes)
        if not isinstance(first, Tensor):
            if all(type(part) in (type(None), bool, int, float, str) and part == first for part in parts):
                return first
            raise UsageError(
                f"the model's output has a {type(first).__name__}, and the outputs of {len(parts)} learners are put "
                f"together as tensors; return tensors, {INSTEAD}"
            )
        weighted = [
            _scaled(part, total / size) if part.requires_grad else part
            for part, size in zip(parts, self._sizes, strict=True)
        ]
        if first.dim() == 0:
            means = [part * (size / total) for part, size in zip(weighted, self._sizes, strict=True)]
            return torch.stack(means).sum()
        if [len(part) for part in parts] != self._sizes:
            raise UsageError(
                f"the model's output has {len(first)} rows for {self._sizes[0]}, and the outputs of {len(parts)} "
                f"learners are put together by rows; return one for each row of the mini-batch, {INSTEAD}"
            )
        return torch.cat(weighted)


def _rows_of(leaf: Any, rows: int, start: int, stop: int) -> Any:
    """Its part of what has a row for each sample; all else is the same for all learners."""
    if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == rows:
        return leaf[start:stop]
    return leaf


def _scaled(output: Tensor, factor: float) -> Tensor:
    """The same, with ``factor`` times what flows back through it."""
    output = output.view_as(output)
    output.register_hook(lambda grad: grad * factor)  # type: ignore[no-untyped-call]
    return output
