"""``paceline.distribute``: a strategy's program, driven by the loop of a user's own script."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from paceline.codecs import CODECS
from paceline.codecs.base import Codec
from paceline.errors import UsageError, say_on_stderr
from paceline.jobs.optimizers import keeps_state
from paceline.loop.ddp import refuse_ddp
from paceline.loop.process import ScriptProcess, check_script
from paceline.loop.saved import read_state, saved_state
from paceline.loop.sharding import shard
from paceline.loop.steps import LoopSteps
from paceline.runtimes.prepare import check_settings
from paceline.runtimes.replica import in_eval_mode
from paceline.specs import spec_of
from paceline.strategies import STRATEGIES
from paceline.strategies.base import Strategy


def distribute(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    strategy: str | Strategy | None = None,
    codec: str | Codec | None = None,
) -> "LoopWorker":
    """Join the run as one of its workers, with this model and optimizer; all workers begin with rank 0's model.

    Call it once the model is on its device and the optimizer made, and before the first step. Under torchrun, or
    whatever sets its variables, each process is one worker, and so it is under ``paceline run``, whose strategy and
    codec win; in a plain ``python script.py`` there is one. Where the default group of torch.distributed is formed
    already, its ranks are the workers. The strategy is all-reduce where nobody names one; it may be an object, even of
    a class of the script's own.
    """
    process = ScriptProcess.here()
    process.check_free(model, optimizer)
    process.take_group()
    asked = (
        None if strategy is None else spec_of(strategy, STRATEGIES, "strategy"),
        None if codec is None else spec_of(codec, CODECS, "codec"),
    )
    settings = process.settings(*process.choose(*asked), (1,) * process.info.workers)
    check_script(settings, servers=process.info.servers > 0)
    refuse_ddp(model, model)
    steps = LoopSteps(process, settings, model, optimizer)
    process.join(steps)
    return LoopWorker(steps)


class LoopWorker:
    """One worker of a run, in the hands of a script."""

    def __init__(self, steps: LoopSteps) -> None:
        self._steps, self.rank, self.workers = steps, steps.comm.rank, steps.comm.workers
        self._orders: list[torch.Generator] = []

    def shard(self, loader: "DataLoader[Any]") -> "DataLoader[Any]":
        """This worker's part of a loader's samples, as many batches as every other worker's."""
        order = torch.Generator().manual_seed(self._steps.seed)
        self._orders.append(order)
        return shard(loader, self.rank, self.workers, order)

    def close(self) -> None:
        """Add up what all workers did: before the process group is destroyed, and else when the script ends."""
        self._close(failed=False)

    def _close(self, *, failed: bool) -> None:
        process = ScriptProcess.here()
        if process.joined is self._steps:
            process.close(failed=failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> None:
        ended = error is None or self._steps.stopped or (isinstance(error, SystemExit) and not error.code)
        self._close(failed=not ended)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only add up gradients in this context; the first backward after it averages them all."""
        before = self._steps.synchronize(False)
        try:
            yield
        finally:
            self._steps.synchronize(before)

    @contextmanager
    def join(self) -> Iterator[None]:
        """Workers may take different numbers of steps in this context; each waits at its end for all.

        A worker whose loop has ended follows the others: their mean is without it, and its model stays like theirs.
        """
        self._steps.begin_join()
        try:
            yield
        except BaseException:
            self._steps.end_join(failed=True)
            raise
        self._steps.end_join(failed=False)

    @contextmanager
    def central_model(self) -> Iterator[nn.Module]:
        """The model that the strategy is about, in eval mode: the average of the replicas where they differ.

        All workers enter at the same step. Afterwards each goes on with its own parameters.
        """
        steps, model = self._steps, self._steps.replica.model
        if steps.run is None:
            self._check_central()
            with in_eval_mode(model):
                yield model
            return
        params, buffers = steps.central()
        standing_in = steps.replica.standing_in(params, buffers)
        with torch.no_grad():
            standing_in.__enter__()
        try:
            yield model
        finally:
            with torch.no_grad():
                standing_in.__exit__(None, None, None)
            steps.evaluated()

    def _check_central(self) -> None:
        """Before the first step all replicas are the same, unless others were loaded."""
        if self._steps.loaded and not self._strategy.replicated:
            raise UsageError(
                "central_model() after load_state_dict() and before the first step, where this rank of strategy "
                f"{self._steps.settings.strategy!r} has only its own replica; take a step first"
            )

    @property
    def _strategy(self) -> Strategy:
        return check_settings(self._steps.settings)

    def state_dict(self) -> dict[str, Any]:
        """What this worker needs to go on as if it had never stopped, beside the model's and the optimizer's states.

        It is this rank's own: what the strategy and the codec keep, the random streams of torch, Python and numpy, and
        the orders of sharded loaders. What servers keep, such as momentum, is not in it.
        """
        steps = self._steps
        steps.wait()
        return saved_state(str(steps.settings.strategy), steps.replica, steps.run, self._orders, steps.loaded)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state: before the first step, with the model and the optimizer that were saved with it."""
        steps = self._steps
        if steps.run is not None:
            raise UsageError(
                "load_state_dict() comes too late: this worker has trained; call it before the first step"
            )
        steps.loaded = read_state(state, str(steps.settings.strategy), steps.replica, self._orders)
        optimizer = steps.replica.users_optimizer
        if self.rank == 0 and self._strategy.served and keeps_state(optimizer):
            say_on_stderr(
                f"servers begin with rank 0's model and a new {type(optimizer).__name__}: its state, such as momentum, "
                "was theirs, and is not in what a worker saves"
            )
