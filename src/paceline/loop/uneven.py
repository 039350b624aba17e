"""Loops that end after different numbers of steps: who has ended takes part in the others' exchanges, with no weight.

Before an exchange of a step, workers add up who is still training. Whoever has ended is told by that what to do: its
gradient is zero and the mean is that of the others; then it takes the others' step, along the gradient that one of them
sends, so that its model and its optimizer stay like theirs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten, tree_unflatten

from paceline.errors import UsageError
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.strategies.effects import AllReduce, Broadcast, Program, Wait

if TYPE_CHECKING:
    from paceline.loop.hooks import LoopHooks


class UnevenLoops:
    """What the workers know of each other inside of ``join()``."""

    def __init__(self, hooks: "LoopHooks", comm: SoloComm) -> None:
        self._hooks, self._comm = hooks, comm
        self.training = [True] * comm.workers
        """Of each worker, as of the last exchange."""

    def before_reduction(self) -> None:
        """This worker's gradient is about to be reduced."""
        self._announce(trains=True)

    def before_step(self) -> None:
        """This worker is about to take a step; it sends the gradient to those who have ended."""
        run = self._hooks.run
        assert run is not None
        if not run.reduces:
            self._announce(trains=True, step=True)
        elif not all(self.training):
            self._announce(trains=True, step=True)
            run.carry_out(self._send_gradient())

    def follow_others(self) -> None:
        """This worker's loop has ended: do as the others do until theirs have."""
        hooks = self._hooks
        replica, run = hooks.replica, hooks.run
        assert run is not None
        kept = [None if one.grad is None else one.grad.clone() for one in replica.flat.parameters]
        while True:
            stepped = self._announce(trains=False)
            if not any(self.training):
                break
            if not stepped:
                replica.flat.grad.zero_()
                run.arm()
                run.reduce_gradient()
            elif run.reduces:
                numbers = run.carry_out(self._send_gradient())
                for one, view in zip(replica.flat.parameters, replica.grads[0], strict=True):
                    one.grad = view if one.requires_grad else None
                with _numbers_of(replica.users_optimizer, numbers):
                    hooks.take_step()
            else:
                hooks.take_step(compute=False)
        for one, view, grad in zip(replica.flat.parameters, replica.grads[0], kept, strict=True):
            one.grad = None if grad is None else view.copy_(grad)
        self._check_rates()

    def _announce(self, *, trains: bool, step: bool = False) -> bool:
        """Add up who trains; return whether those who do are about to take a step."""
        run = self._hooks.run
        assert run is not None
        workers = len(self.training)
        flags = torch.zeros(workers + 1)
        flags[run.me.rank], flags[workers] = float(trains), float(step)
        run.heartbeat.enter("exchange")
        run.carry_out(_summed(flags))
        self.training = [one > 0 for one in flags[:workers].tolist()]
        self._hooks.replica.training = max(1, sum(self.training))
        return flags[workers].item() > 0

    def _send_gradient(self) -> Program:
        """The first that trains sends the gradient as its optimizer is given it, and the optimizer's numbers."""
        replica = self._hooks.replica
        root = self.training.index(True)
        for one, view in zip(replica.flat.parameters, replica.grads[0], strict=True):
            if one.grad is not None and one.grad is not view:
                view.copy_(one.grad)
        numbers = torch.tensor(_numbers(replica.users_optimizer), dtype=torch.float64, device=replica.device)
        yield Broadcast(replica.flat.grad, root)
        yield Broadcast(numbers, root)
        return numbers.tolist()

    def _check_rates(self) -> None:
        rates = self._comm.exchange(
            [float(one["lr"]) for one in self._hooks.replica.users_optimizer.param_groups]
        )
        for rank, others in enumerate(rates):
            if others != rates[0]:
                raise UsageError(
                    f"the learning rate after join() is {rates[0][0]:g} on rank 0 and {others[0]:g} on rank {rank}: a "
                    "scheduler was stepped with mini-batches, of which these workers had different numbers; step it "
                    "once an epoch, after join()"
                )


def _summed(flags: Tensor) -> Program:
    yield Wait()
    yield AllReduce(flags, op="sum")


def _hyperparameters(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups
    ]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) or (isinstance(value, Tensor) and value.numel() == 1)


def _numbers(optimizer: Optimizer) -> list[float]:
    """Rates, decays, momenta: all that a schedule may change."""
    leaves, _ = tree_flatten(_hyperparameters(optimizer))
    return [float(leaf) for leaf in leaves if _is_number(leaf)]


def _as_given(own: Any, number: float) -> Any:
    return torch.full_like(own, number) if isinstance(own, Tensor) else type(own)(number)


@contextmanager
def _numbers_of(optimizer: Optimizer, numbers: list[float]) -> Iterator[None]:
    """Take a step with another worker's numbers."""
    own = _hyperparameters(optimizer)
    leaves, nesting = tree_flatten(own)
    given = iter(numbers)
    replaced = [_as_given(leaf, next(given)) if _is_number(leaf) else leaf for leaf in leaves]
    for group, values in zip(optimizer.param_groups, tree_unflatten(replaced, nesting), strict=True):
        group.update(values)
    try:
        yield
    finally:
        for group, values in zip(optimizer.param_groups, own, strict=True):
            group.update(values)
