"""``paceline.distribute``: a strategy's program, driven by the loop of a user's own script."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Self

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from paceline.codecs import CODECS
from paceline.codecs.base import Codec
from paceline.errors import UsageError
from paceline.loop.process import ScriptProcess, check_script
from paceline.loop.sharding import shard
from paceline.loop.steps import NUMBERS, LoopSteps
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
    if isinstance(model, DistributedDataParallel):
        raise UsageError(
            "the model is in a DistributedDataParallel, which averages gradients too; give distribute() the model "
            "itself"
        )
    steps = LoopSteps(process, settings, model, optimizer)
    process.join(steps)
    return LoopWorker(steps)


class LoopWorker:
    """One worker of a run, in the hands of a script."""

    def __init__(self, steps: LoopSteps) -> None:
        self._steps, self.rank, self.workers = steps, steps.comm.rank, steps.comm.workers

    def shard(self, loader: "DataLoader[Any]") -> "DataLoader[Any]":
        """This worker's part of a loader's samples, as many batches as every other worker's."""
        return shard(loader, self.rank, self.workers, self._steps.seed)

    def close(self) -> None:
        """Add up what all workers did: before the process group is destroyed, and else when the script ends."""
        ScriptProcess.here().close(failed=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        ScriptProcess.here().close(failed=kind is not None and not self._steps.stopped)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only add up gradients in this context; the first backward after it averages them all."""
        self._steps.synchronize(False)
        try:
            yield
        finally:
            self._steps.synchronize(True)

    @contextmanager
    def central_model(self) -> Iterator[nn.Module]:
        """The model that the strategy is about, in eval mode: the average of the replicas where they differ.

        All workers enter at the same step. Afterwards each goes on with its own parameters.
        """
        steps, model = self._steps, self._steps.replica.model
        if steps.run is None:
            training = model.training
            yield model.eval()
            model.train(training)
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

    def state_dict(self) -> dict[str, Any]:
        """What the strategy and the codec keep on this worker, beside the model's and the optimizer's own states."""
        run = self._steps.run
        if run is None:
            return self._steps.loaded
        return {
            "strategy": str(self._steps.settings.strategy),
            "numbers": {name: getattr(run.me, name) for name in NUMBERS},
            "state": {name: tensor.clone() for name, tensor in run.me.state.items()},
            "position": asdict(run.position),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state: before the first step, with the model and the optimizer that were saved with it."""
        spec = self._steps.settings.strategy
        if self._steps.run is not None:
            raise UsageError(
                "load_state_dict() comes too late: this worker has trained; call it before the first step"
            )
        if state and state["strategy"] != spec:
            raise UsageError(
                f"the state is of strategy {state['strategy']!r}, and this run has {spec!r}; use the same, or leave "
                "the state out"
            )
        self._steps.loaded = state
