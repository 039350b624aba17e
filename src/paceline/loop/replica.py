"""A user's own model and optimizer on flat buffers, computed by a loop that is not ours."""

from collections.abc import Callable
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.errors import UsageError
from paceline.jobs.job import Job
from paceline.jobs.partition import NO_CLIENTS, ClientBatch
from paceline.jobs.sharding import Shards
from paceline.loop.learners import copies_of, share_optimizer
from paceline.runtimes.buffers import FlatBuffers
from paceline.runtimes.flat import Flat, Zeros, check_model
from paceline.runtimes.live.worker.run import WorkerRun
from paceline.runtimes.noise_scale import NoiseMeter
from paceline.runtimes.prepare import Prepared, prepare_job
from paceline.runtimes.replica import Replica
from paceline.runtimes.session import Save
from paceline.runtimes.settings import Settings
from paceline.strategies.base import Strategy
from paceline.strategies.effects import Gradient

MOST_BYTES = 2**26
"""Of a message in which frozen parameters are sent."""


class ScriptData:
    """Stands for data that only the script has: as much as all workers take in one step."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def take(self, indices: Tensor) -> Any:  # noqa: ARG002
        raise AssertionError("the script takes its batches itself")


def prepare_script(
    settings: Settings, strategy: Strategy, model: nn.Module, optimizer: Optimizer
) -> Prepared[Job]:
    """A script's model and optimizer as a job, once the batch sizes are known."""
    job = Job(
        name=settings.job.path or "",
        model=lambda: model,
        optimizer=lambda _: optimizer,
        train=ScriptData(sum(settings.batch_sizes) * (strategy.learner_plan.count or 1)),
    )
    return prepare_job(settings, job, strategy)


class LoopReplica(Replica):
    """The model goes on as before; its parameters, gradients and buffers of their type are views into flat vectors.

    Gradients are in ``flat.grad`` when a backward has ended, wherever autograd has put them.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, rank: int, workers: int, zeros: Zeros, learners: int = 1
    ) -> None:
        check_model(model)
        self.model, self.users_optimizer = model, optimizer
        self.rank, self.workers, self.clients = rank, workers, NO_CLIENTS
        parameters = list(model.parameters())
        self.frozen = [one for one in parameters if not one.requires_grad]
        _check_optimizer(optimizer, parameters)
        others = copies_of(model, learners)
        share_optimizer(optimizer, model, others)
        self.learners = (model, *others)
        self.flat = Flat(parameters, zeros, [other.parameters() for other in others])
        self.device = self.flat.params.device
        self.parameters = [[p for p in one.parameters() if p.requires_grad] for one in self.learners]
        """Of each learner, and so are the gradients."""
        self.grads = [_views(row.data, self.flat) for row in self.flat.grad_rows]
        """The views that hold the gradients. Each learner's tell by their version when they were written to."""
        for own in self.parameters:
            for one in own:
                one.grad = None
        self.named_buffers = FlatBuffers(self.learners)
        self.buffers = self.named_buffers.flat
        self.training, self.follows = workers, False
        """How many workers take part in the mean of the gradients, and whether this one only follows their steps."""
        self.rows = self.rows_before = 0
        """Samples that the model was called with in this step so far, and in the step before."""
        self.called = False
        """Whether the model was called to train in this step."""
        self._remember_objects()

    def _remember_objects(self) -> None:
        """Which parameters and modules the model is made of; held, so that no other object is taken for one of them.

        What TorchScript has compiled has no such tables.
        """
        tables: list[Any] = [
            table for one in self.model.modules() for table in (one._parameters, one._modules)
        ]
        self._tables = [one for one in tables if one and isinstance(one, dict)]
        self._objects = self._objects_now()

    def _objects_now(self) -> list[object]:
        return [*chain.from_iterable(map(dict.values, self._tables))]

    def _check_objects(self) -> None:
        """Refuse trainable parameters that ``distribute`` has not seen."""
        now, before = self._objects_now(), self._objects
        if len(now) == len(before) and all(map(is_, now, before)):
            return
        seen = {id(one) for one in (*self.flat.parameters, *self.frozen)}
        found = [(name, one) for name, one in self.model.named_parameters() if id(one) not in seen]
        for name, one in found:
            if one.requires_grad:
                raise UsageError(
                    f"parameter {name} is not the object that the model had when distribute() was called, so neither "
                    "the run nor the optimizer trains it; leave assign=True out of load_state_dict(), or change the "
                    "model before distribute() and before the optimizer is made"
                )
        self.frozen += [one for _, one in found]
        self._remember_objects()

    def reattach(self) -> None:
        """Before the first forward of a step: take over parameters' data that the script has replaced.

        As ``parameter.data = ...`` and ``vector_to_parameters`` do. They are copied to where the data were before, and
        the parameter is a view of that again. Replaced Parameters are refused. Where nothing has changed, it costs
        microseconds.
        """
        self._check_objects()
        if moved := self.flat.moved():
            check_model(self.model)
            for one, view in moved:
                if (one.shape, one.dtype, one.device) != (view.shape, view.dtype, view.device):
                    raise UsageError(
                        f"parameter {self.name_of(one)} was {view.dtype} of shape {tuple(view.shape)} on {view.device} "
                        f"when distribute() was called and is {one.dtype} of shape {tuple(one.shape)} on {one.device} "
                        "now; convert and move the model before distribute()"
                    )
            self.flat.reattach(moved)

    def check_attached(self) -> None:
        """Before the flat vectors are read as the model's: take over buffers that were assigned anew.

        Parameters whose data were replaced since the last step are refused: the script may keep what they had before,
        such as behind the average that it evaluates, and would find it overwritten.
        """
        self._check_objects()
        for one, _ in self.flat.moved():
            raise UsageError(
                f"the data of parameter {self.name_of(one)} were replaced after the last step, and the central model "
                "is that of the parameters that are trained; put them back before central_model(), or change them in "
                "place: parameter.data.copy_(...)"
            )
        self.named_buffers.check()

    def prepare(self, job: Job, shards: Shards) -> None:
        """What is known when the first mini-batch is."""
        self.job, self.shards = job, shards
        self.noise = _NoNoise(shards, self.rank, 1)

    def _outside(self, model: nn.Module) -> list[Tensor]:
        """What of a learner is in no flat vector: frozen parameters, and buffers of other types."""
        frozen = [one.data for one in model.parameters() if not one.requires_grad]
        found = [*frozen, *(one for one in model.buffers() if one.dtype != self.buffers.dtype)]
        return [one for one in found if type(one) is Tensor and one.layout is torch.strided and one.numel()]

    @property
    def elements(self) -> list[int]:
        """Of the trained parameters, of the buffers of their type, and of all else."""
        others = sum(one.numel() for one in self._outside(self.model))
        return [self.flat.offsets[-1], self.buffers.shape[-1], others]

    @torch.no_grad()
    def share_untrained(self, share: Callable[[Tensor], None]) -> None:
        """Replace all but the trained parameters by what ``share`` makes of vectors of them; in all learners alike."""
        self.named_buffers.reattach()
        share(self.buffers)
        for first, *others in zip(*map(self._outside, self.learners), strict=True):
            whole = first.to(self.device).contiguous()
            for part in (
                whole.view(-1).view(torch.uint8).split(MOST_BYTES)
            ):  # bytes, as not all types are sent
                share(part)
            for one in (first, *others):
                one.copy_(whole)

    def begin_step(self) -> None:
        self.rows_before, self.rows, self.called = self.rows, 0, False

    def name_of(self, parameter: Tensor) -> str:
        return next(name for one in self.learners for name, own in one.named_parameters() if own is parameter)

    @property
    def versions(self) -> list[int]:
        """How often each learner's gradient has been written to."""
        return [views[0]._version for views in self.grads]

    def is_zeroed(self, versions: list[int]) -> bool:
        """Whether the first learner's gradient is gone since it was of this version."""
        parameters = self.parameters[0]
        if all(one.grad is None for one in parameters):
            return True
        changed = self.versions[0] != versions[0]
        return changed and not any(one.grad is not None and one.grad.any() for one in parameters)

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Have those that the script has put in place of its own in the flat vector; one that is dropped is zero."""
        for one, view in zip(self.flat.parameters, self.grads[0], strict=True):
            if one.grad is None:
                view.zero_()
            elif one.grad is not view:
                view.copy_(one.grad)
            one.grad = view

    def forget_with_first(self) -> None:
        """The script has the first learner's parameters: where it has zeroed their gradients, so are the others'."""
        if self.parameters[1:] and self.is_zeroed([-1]):
            for own in self.parameters[1:]:
                for one in own:
                    one.grad = None

    def check_changed_alike(self, versions: list[int]) -> None:
        first, *others = (one - before for one, before in zip(self.versions, versions, strict=True))
        if others and any(one != first for one in others):
            rest = "learner's" if len(others) == 1 else f"{len(others)} learners'"
            raise UsageError(
                f"the gradients of model.parameters() were changed before optimizer.step(), and the other "
                f"{rest} were not: they are not the model's; leave clipping out, or choose learners=1"
            )

    def samples(self, step: int, batch: ClientBatch | None = None) -> int:  # noqa: ARG002
        return 0 if self.follows else max(1, self.rows)

    def share(self, step: int) -> float:  # noqa: ARG002
        """All workers count alike, as with DistributedDataParallel."""
        return 1 / self.training

    def total(self, step: int) -> int:  # noqa: ARG002
        return self.rows_before * self.workers

    @property
    def base_rate(self) -> float:
        return float(self.users_optimizer.param_groups[0]["lr"])

    def learning_rate(self, epoch: float) -> float:  # noqa: ARG002
        return self.base_rate

    def close(self) -> None:
        """The script has the data."""


class _NoNoise(NoiseMeter):
    """The script's gradients may be scaled or accumulated: nothing is told by them."""

    def due(self, step: int) -> bool:  # noqa: ARG002
        return False


class LoopRun(WorkerRun):
    """A worker whose gradients and optimizer steps are computed by a script."""

    replica: LoopReplica

    waits = False

    @property
    def rank(self) -> int:
        return self.me.rank

    @property
    def workers(self) -> int:
        return self.me.workers

    @property
    def clock(self) -> int:
        return self.me.clock

    def arm(self) -> None:
        """The next backward completes the gradient: what can be reduced while it runs is."""
        if self._overlap:
            self._overlap.begin(self.replica.share(self.me.clock), scaled=False)

    def reduce_gradient(self) -> None:
        self.waits = True
        super().reduce_gradient()
        self.waits = False

    def disarm(self) -> None:
        if self._overlap:
            self._overlap.pause()

    @property
    def sum_has_begun(self) -> bool:
        return self._overlap is not None and self._overlap.has_begun

    def remove_hooks(self) -> None:
        if self._overlap:
            self._overlap.remove()

    @property
    def reduces(self) -> bool:
        """Whether the program has asked for the mean gradient of several workers."""
        return self._overlap is not None

    def settle(self) -> None:
        """All workers have taken their last step: they compare what they recorded."""
        self._write_records()
        self.me.now = self.recorder.now

    def _begin_gradient(self, effect: Gradient) -> None:
        self.disarm()  # the next gradient may not be one that is reduced
        self.replica.begin_step()
        super()._begin_gradient(effect)

    def _count_gradient(self) -> None:
        self.replica.named_buffers.reattach()  # the program may read them
        self.me.samples = self.replica.samples(self.me.clock)
        self.replica.rows_before = self.me.samples
        if not self.replica.follows:
            super()._count_gradient()

    def _count_step(self) -> None:
        self.me.rate_factor = self.replica.base_rate  # strategies look at how it changes
        super()._count_step()

    def _stepped(self, progress: int, samples: int) -> None:  # noqa: ARG002
        super()._stepped(
            self.me.clock, samples
        )  # servers count mini-batches, of which a step may have several

    def _probe(self) -> None:
        """A script's data cannot be taken beside its loop."""

    def _save(self, _: Save) -> None:
        """A script saves what it wants to."""


def _views(row: Tensor, flat: Flat) -> list[Tensor]:
    return [one[0] for one in flat.stacked(row.view(1, -1))]


def _check_optimizer(optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
    known = set(map(id, parameters))
    held = {id(one) for group in optimizer.param_groups for one in group["params"]}
    if not held <= known:
        raise UsageError(
            f"{len(held - known)} parameters of the {type(optimizer).__name__} are not the model's: all that is "
            "trained must be in one model; give distribute() a module that holds them all"
        )
    if missing := sum(one.requires_grad and id(one) not in held for one in parameters):
        raise UsageError(
            f"{missing} trainable parameters of the model are in no group of the {type(optimizer).__name__}; add them, "
            "or set their requires_grad to False"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError(
            "LBFGS computes several gradients a step, and a worker one; choose another optimizer"
        )
