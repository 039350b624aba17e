"""What real loops do, each beside the same loop by hand: ``habits.py PORT NAME...`` is one rank of two.

A habit trains with ``way``, which is this worker's part, or all workers' parts in turn on one model. Both must end
with the same parameters.
"""

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer
from torch.utils.checkpoint import checkpoint

import paceline
from paceline.loop.process import ScriptProcess

WORKERS, STEPS = 2, 6


def batches(rank: int) -> Tensor:
    return torch.randn(STEPS, 2, 8, 6, generator=torch.Generator().manual_seed(7 + rank))


class ByHand:
    """All workers' mini-batches on one model: the mean of their losses. ``steps`` are those of each worker."""

    rank = 0

    def __init__(self, steps: tuple[int, int]) -> None:
        self._steps = steps

    def steps(self) -> range:
        return range(max(self._steps))

    def backward(self, loss: Callable[..., Tensor], step: int, half: int = 0, **how: bool) -> None:
        ranks = [rank for rank, steps in enumerate(self._steps) if step < steps]
        for rank in ranks:
            (loss(batches(rank)[step][half], rank) / len(ranks)).backward(**how)

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    join = no_sync


class Distributed(ByHand):
    def __init__(self, steps: tuple[int, int], worker: paceline.LoopWorker) -> None:
        super().__init__(steps)
        self.rank, self._worker = worker.rank, worker

    def steps(self) -> range:
        return range(self._steps[self.rank])

    def backward(self, loss: Callable[..., Tensor], step: int, half: int = 0, **how: bool) -> None:
        loss(batches(self.rank)[step][half], self.rank).backward(**how)

    def no_sync(self) -> AbstractContextManager[None]:
        return self._worker.no_sync()

    def join(self) -> AbstractContextManager[None]:
        return self._worker.join()


class Net(nn.Module):
    def __init__(self, remember: str = "") -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 16)
        self.last, self.tied = nn.Linear(16, 6, bias=False), nn.Linear(16, 6, bias=False)
        self.tied.weight = self.last.weight
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self._remember = remember

    def rest(self, found: Tensor) -> Tensor:
        found = torch.tanh(self.second(found))
        return self.last(found) + self.tied(found).relu()

    def forward(self, inputs: Tensor) -> Tensor:
        found = torch.tanh(self.first(inputs))
        if self._remember in ("reentrant", "remembered"):
            return checkpoint(self.rest, found, use_reentrant=self._remember == "reentrant")  # type: ignore[no-any-return]
        return self.rest(found)


Habit = Callable[[ByHand, Callable[..., Tensor], nn.Module, Optimizer], None]
HABITS: dict[str, Habit] = {}


def habit(one: Habit) -> Habit:
    HABITS[one.__name__.replace("_", "-")] = one
    return one


@habit
def plain(way: ByHand, call: Callable[..., Tensor], model: nn.Module, optimizer: Optimizer) -> None:
    for step in way.steps():
        way.backward(lambda batch, _: call(batch).pow(2).mean(), step)
        optimizer.step()
        optimizer.zero_grad()


@habit
def accumulate_and_clip(
    way: ByHand, call: Callable[..., Tensor], model: nn.Module, optimizer: Optimizer
) -> None:
    for step in way.steps():
        with way.no_sync():
            way.backward(lambda batch, _: call(batch).pow(2).mean(), step, 0)
        way.backward(lambda batch, _: call(batch).pow(2).mean(), step, 1)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        model.zero_grad()


@habit
def several_backwards(
    way: ByHand, call: Callable[..., Tensor], model: nn.Module, optimizer: Optimizer
) -> None:
    for step in way.steps():
        optimizer.zero_grad(set_to_none=False)
        way.backward(lambda batch, _: call(batch).pow(2).mean(), step, 0)
        way.backward(lambda batch, _: (call(batch) - batch).abs().mean(), step, 1)
        optimizer.step()


@habit
def several_forwards(
    way: ByHand, call: Callable[..., Tensor], model: nn.Module, optimizer: Optimizer
) -> None:
    for step in way.steps():
        way.backward(
            lambda batch, _: (
                (functional.normalize(call(batch)) * functional.normalize(call(-batch * 2))).sum(1).mean()
            ),
            step,
        )
        optimizer.step()
        optimizer.zero_grad()


@habit
def retained_graph(way: ByHand, call: Callable[..., Tensor], model: nn.Module, optimizer: Optimizer) -> None:
    """Two backwards of one forward."""
    for step in way.steps():
        losses: dict[int, Tensor] = {}

        def loss(batch: Tensor, rank: int, losses: dict[int, Tensor] = losses) -> Tensor:
            if rank not in losses:
                losses[rank] = call(batch).pow(2).mean()
            return losses[rank]

        way.backward(loss, step, retain_graph=True)
        way.backward(loss, step)
        optimizer.step()
        optimizer.zero_grad()


@habit
def gradient_penalty(
    way: ByHand, call: Callable[..., Tensor], model: nn.Module, optimizer: Optimizer
) -> None:
    def loss(batch: Tensor, _: int) -> Tensor:
        inputs = batch.clone().requires_grad_()
        found = call(inputs).pow(2).mean()
        (slope,) = torch.autograd.grad(found, inputs, create_graph=True)
        return found + slope.pow(2).sum()

    for step in way.steps():
        way.backward(loss, step)
        optimizer.step()
        optimizer.zero_grad()


@habit
def whole_model_checkpointed(
    way: ByHand, call: Callable[..., Tensor], model: nn.Module, optimizer: Optimizer
) -> None:
    for step in way.steps():
        way.backward(lambda batch, _: checkpoint(call, batch, use_reentrant=False).pow(2).mean(), step)
        optimizer.step()
        optimizer.zero_grad()


@habit
def schedule(way: ByHand, call: Callable[..., Tensor], model: nn.Module, optimizer: Optimizer) -> None:
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=STEPS)
    for step in way.steps():
        way.backward(lambda batch, _: call(batch).pow(2).mean(), step)
        optimizer.step()
        rates.step()
        optimizer.zero_grad()


@habit
def scaler_that_skips(
    way: ByHand, call: Callable[..., Tensor], model: nn.Module, optimizer: Optimizer
) -> None:
    """One worker's gradient overflows in one step, which all skip, and the last one too."""
    scaled_steps(way, call, model, optimizer, overflows=(2, STEPS - 1))


@habit
def uneven_with_a_scaler(
    way: ByHand, call: Callable[..., Tensor], model: nn.Module, optimizer: Optimizer
) -> None:
    """Steps are skipped while all train, when one has ended, and at the very end; whoever has ended skips them too."""
    with way.join():
        scaled_steps(way, call, model, optimizer, overflows=(1, 4, STEPS - 1))


def scaled_steps(
    way: ByHand,
    call: Callable[..., Tensor],
    model: nn.Module,
    optimizer: Optimizer,
    overflows: tuple[int, ...],
) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
    for step in way.steps():

        def loss(batch: Tensor, rank: int, step: int = step) -> Tensor:
            with torch.autocast("cpu", torch.float16 if step % 2 else torch.bfloat16, enabled=False):
                found = call(batch).pow(2).mean()
            return scaler.scale(found * (1e38 if rank == 1 and step in overflows else 1))

        way.backward(loss, step)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@habit
def frozen_in_between(
    way: ByHand, call: Callable[..., Tensor], model: nn.Module, optimizer: Optimizer
) -> None:
    for step in way.steps():
        model.first.weight.requires_grad_(step < 3)
        way.backward(lambda batch, _: call(batch).pow(2).mean(), step)
        optimizer.step()
        optimizer.zero_grad()


@habit
def uneven(way: ByHand, call: Callable[..., Tensor], model: nn.Module, optimizer: Optimizer) -> None:
    """Two epochs in which one worker has fewer mini-batches; it may have none, and one too many to accumulate."""
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for _ in range(2):
        with way.join():
            for step in way.steps():
                way.backward(lambda batch, _: call(batch).pow(2).mean(), step)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        rates.step()


def train(name: str, distributed: bool) -> dict[str, Tensor]:
    name, _, how = name.partition("+")
    name, _, counts = name.partition("=")
    steps = tuple(map(int, counts.split("/"))) if counts else (STEPS, STEPS)
    assert len(steps) == WORKERS
    torch.manual_seed(3)
    model = Net(how)
    groups = [
        {"params": [*model.first.parameters()], "lr": 0.2},
        {"params": [*model.second.parameters(), model.last.weight, model.unused]},
    ]
    optimizer = SGD(groups, lr=0.1, momentum=0.9)
    way = ByHand(steps)
    if distributed:
        way = Distributed(steps, paceline.distribute(model, optimizer))
    call = torch.compile(model, backend="aot_eager") if distributed and how == "compiled" else model
    HABITS[name](way, call, model, optimizer)
    if distributed:
        assert ScriptProcess.current is not None
        ScriptProcess.current.close(failed=False)
        ScriptProcess.current = None
    return {key: value.clone() for key, value in model.state_dict().items()}


def main(ports: str, names: list[str]) -> None:
    for port, name in zip(ports.split(","), names, strict=True):
        os.environ["MASTER_PORT"] = port
        mine, by_hand = (train(name, distributed=one) for one in (True, False))
        worst = max((mine[key] - value).abs().max().item() for key, value in by_hand.items())
        assert all(value.isfinite().all() for value in by_hand.values())
        sys.stdout.write(f"{name}: {'equal' if worst < 1e-6 else f'differs by {worst:.1e}'}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
