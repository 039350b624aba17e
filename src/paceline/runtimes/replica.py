"""One worker's model, gradient, optimizer, data and randomness, on flat buffers; the same in both runtimes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from math import isfinite, nan
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.codecs.context import Layout
from paceline.codecs.reduction import NotFinite
from paceline.errors import Diverged, UsageError
from paceline.jobs.batches import Batch, kept_outputs, targets_of, to_device
from paceline.jobs.data import IN_MEMORY
from paceline.jobs.job import Job, StepDefinition
from paceline.jobs.optimizers import has_momentum, takes_vector
from paceline.jobs.partition import NO_CLIENTS, ClientBatch, Clients
from paceline.jobs.sharding import Shards, scoring_batches
from paceline.jobs.step import NO_HOOKS, StepHooks
from paceline.runtimes.compression import layout_of
from paceline.runtimes.flat import Flat, FlatModel, ScheduledOptimizer, Zeros, flat_optimizer, own_memory
from paceline.runtimes.learners import InTurnGradients, TogetherGradients
from paceline.runtimes.loading import Request, load
from paceline.runtimes.noise_scale import FirstMiniBatch, NoiseMeter
from paceline.runtimes.randomness import AllStreams, State, TorchStream, undisturbed
from paceline.strategies.base import ONE_LEARNER, LearnerPlan, Worker, server_slices


class Replica(FlatModel):
    job: Job

    def __init__(
        self,
        job: Job,
        shards: Shards,
        rank: int,
        seed: int,
        device: torch.device,
        zeros: Zeros = own_memory,
        plan: LearnerPlan = ONE_LEARNER,
        clients: Clients = NO_CLIENTS,
    ) -> None:
        """Of a ``plan`` with several learners, which must leave nothing open, all begin as the first one does."""
        assert plan.count is not None, "found before a replica is made"
        self.shards, self.rank, self.device, self.clients = shards, rank, device, clients
        self._seed = seed
        self._batches: Iterator[Batch] = iter(())
        self._next_step: int | None = None
        self.streams = _streams_of(job)
        first, *others = (first_model(job, seed, device) for _ in range(plan.count))
        super().__init__(job, first, zeros, others)
        self._gradients = TogetherGradients(self) if plan.compute == "together" else InTurnGradients(self)
        self.rng = first_streams(job, seed, rank)
        self.loss_sum = 0.0
        self.loss_samples = 0
        self.noise = NoiseMeter(shards, rank, job.accumulate)

    @contextmanager
    def randomness(self) -> Iterator[None]:
        """Draw random numbers from this worker's own streams; for runtimes that host several workers.

        The process's streams are left where this worker's stand; wrap the whole run where that matters.
        """
        self.streams.set(self.rng)
        yield
        self.rng = self.streams.get()

    def gradient(
        self, step: int, share: float, hooks: StepHooks = NO_HOOKS, batch: ClientBatch | None = None
    ) -> float:
        """Overwrite ``flat.grad`` with ``share`` times the mean gradient of a step; return the mean loss.

        With the shares of all workers adding up to 1, the sum of their gradients is the mean over all samples. Where
        an epoch ends unevenly a step may have no samples: the gradient is zero and the loss is not a number. Raises
        Diverged where the loss is not finite. Of several learners, each has the mean over its own samples.
        """
        requests = self._requests_of_learners(step, batch)
        parts = [[len(request.indices) for request in own] for own in requests]
        shares = [[share * (count / sum(own)) for count in own] for own in parts]
        batches = self.batches(step) if batch is None else self._load_now(requests[0])
        # A gradient that is reduced while backward runs is another worker's too.
        if share == 1.0 and batch is None and len(parts) == 1 and self.noise.mini_batches_due(step):
            losses = self._compared(batches, shares[0], hooks)
        else:
            losses = self._gradients.accumulate(batches, shares, hooks)
        self.named_buffers.reattach()  # those that forward has assigned anew
        counts = [count for own in parts for count in own]
        samples = sum(counts)
        if bad := [value for value in losses if not isfinite(value)]:
            raise self.diverged(f"the loss of rank {self.rank} is {bad[0]}", step + 1)
        total = sum(value * count for value, count in zip(losses, counts, strict=True))
        self.loss_sum += total
        self.loss_samples += samples
        return total / samples if samples else nan

    def samples(self, step: int, batch: ClientBatch | None = None) -> int:
        """Of this worker in a step, or of a client's batch."""
        return self.clients.size(batch, self.rank) if batch else self.shards.size(self.rank, step)

    def share(self, step: int) -> float:
        """This worker's part of the mean over all workers' samples."""
        return self.samples(step) / self.total(step)

    def total(self, step: int) -> int:
        """Samples of all workers in a step."""
        return self.shards.total(step)

    def _compared(self, batches: Iterator[Batch], shares: list[float], hooks: StepHooks) -> list[float]:
        """As ``accumulate``; the noise scale is told by the first mini-batch and all of them."""
        first = FirstMiniBatch(hooks, self.flat.grad)
        losses = self.accumulate(batches, shares, first)
        assert first.square is not None
        self.noise.compare_mini_batches(float(first.square) / shares[0] ** 2, self.flat.grad)
        return losses

    def batches(self, step: int) -> Iterator[Batch]:
        """The mini-batches of a step, on the worker's device, and those of the steps after it.

        The mini-batches of one step must all be taken before the next step's are asked for.
        """
        if step != self._next_step:
            requests = (request for one in count(step) for request in self.requests(one))
            self._batches = load(self.job.train, requests, self.job.loader_workers)
        self._next_step = step + 1
        return (to_device(batch, self.device) for batch in self._batches)

    def requests(self, step: int) -> list[Request]:
        """The mini-batches of a step, those of the first learner first."""
        return [request for own in self._requests_of_learners(step) for request in own]

    def _requests_of_learners(self, step: int, batch: ClientBatch | None = None) -> list[list[Request]]:
        """The mini-batches of each learner in a step, or in a batch of a client."""
        rank = self.rank
        if batch is None:
            return self._cut(self.shards.indices(rank, step), self.shards.batch_size(rank), rank, step)
        clients, client = self.clients, batch.client
        number = batch.epoch * clients.batches(client, rank) + batch.place
        return self._cut(clients.indices(batch, rank), clients.batch_sizes[rank], client, number)

    def _cut(self, indices: Tensor, most: int, source: int, step: int) -> list[list[Request]]:
        """Into the parts of each learner, and these into those whose gradients are accumulated.

        Each has random numbers of its own, by source and step. A learner's share of the samples is cut as workers'
        shares are: learners of any worker see the same.
        """
        learners, parts = len(self.learners), self.job.accumulate
        samples, size = indices.tolist(), max(1, most // (learners * parts))
        seed, number = stream_seed(self._seed, source), step * learners * parts
        cuts = [len(samples) * learner // learners for learner in range(learners + 1)]
        return [
            [
                Request(
                    samples[at : min(at + size, stop)], stream_seed(seed, number + learner * parts + place)
                )
                for place, at in enumerate(range(start, stop, size))
            ]
            for learner, (start, stop) in enumerate(pairwise(cuts))
        ]

    def _load_now(self, requests: list[Request]) -> Iterator[Batch]:
        """In this process: which client comes next is the strategy's to say, so nothing is loaded ahead of time."""
        return (to_device(batch, self.device) for batch in load(self.job.train, requests, 0))

    def diverged(self, what: str, step: int) -> Diverged:
        return Diverged(what, step, self.learning_rate((step - 1) / self.shards.steps_per_epoch))

    def not_finite(self, error: NotFinite, me: Worker, effect: Any, clock: int | None = None) -> Diverged:
        """What a worker could not send for an effect; ``clock`` is when it asked for it, if it has gone on."""
        counted = getattr(effect, "tensor", None) is me.params or getattr(effect, "offset", None) is not None
        return self.diverged(f"{error} on rank {me.rank}", (clock or me.clock) + (not counted))

    def apply(self, epoch: float, rate: float = 1.0, *, fresh: bool = False) -> float:
        """Return the schedule's factor on the learning rate."""
        if fresh:
            self.optimizer.forget()
        factor = self.job.schedule(epoch)
        self.optimizer.step(factor * rate)
        return factor

    def learning_rate(self, epoch: float) -> float:
        return self.base_rate * self.job.schedule(epoch)

    @property
    def base_rate(self) -> float:
        """The learning rate before the schedule's factor; of several, the first group's."""
        return float(self.optimizer.base_rates[0])

    @torch.no_grad()
    def evaluate(
        self,
        params: Tensor,
        buffers: Tensor,
        seat: int,
        workers: int,
        scored: Callable[[], None] = lambda: None,
    ) -> Tensor:
        """Sums over this worker's share of the test data, laid out as ``MetricsRow.from_sums`` reads them.

        ``workers`` share it, and this one has the ``seat``-th part; ``scored`` is called after each batch.
        """
        ranges = scoring_batches(len(self.job.test or ()), seat, workers)
        loss, metrics = 0.0, [0.0] * len(self.job.metrics)
        if ranges:
            own = self.standing_in(params, buffers)
            with own, undisturbed(self.streams), kept_outputs(self.model) as kept:
                for samples, batch in zip(ranges, self._test_batches(ranges), strict=True):
                    loss += self.forward(batch).item() * len(samples)
                    for place, value in enumerate(self._measure(kept, batch)):
                        metrics[place] += value
                    scored()
        trained = self.loss_sum, self.loss_samples
        self.loss_sum, self.loss_samples = 0.0, 0
        tested = sum(map(len, ranges))
        return torch.tensor([*trained, loss, tested, *metrics], dtype=torch.float64)

    def _test_batches(self, ranges: list[range]) -> Iterator[Batch]:
        assert self.job.test is not None
        requests = [Request(list(part), stream_seed(self._seed, part.start)) for part in ranges]
        batches = load(self.job.test, requests, min(self.job.loader_workers, len(requests)))
        return (to_device(batch, self.device) for batch in batches)

    def _measure(self, kept: list[Any], batch: Batch) -> list[float]:
        if self.job.metrics and not kept:
            raise UsageError(
                f"compute_loss of job {self.job.name!r} does not call the model itself, so that there are no outputs "
                f"for the metric {next(iter(self.job.metrics))!r}; call model(...), or leave the metrics out"
            )
        return [float(metric(kept[0], targets_of(batch))) for metric in self.job.metrics.values()]

    def close(self) -> None:
        self._batches, self._next_step = iter(()), None

    @contextmanager
    def standing_in(self, params: Tensor, buffers: Tensor) -> Iterator[None]:
        """Have the model be another one, in eval mode; afterwards it is as before."""
        self.named_buffers.check()
        first = self.buffers if self.buffers.dim() == 1 else self.buffers[0]
        pairs = ((self.flat.param_rows[0], params), (first, buffers.view_as(first)))
        others = [(own, own.clone(), other) for own, other in pairs if own.data_ptr() != other.data_ptr()]
        for own, _, other in others:
            own.copy_(other)
        try:
            with in_eval_mode(self.model):
                yield
        finally:
            self.named_buffers.reattach()
            for own, saved, _ in others:
                own.copy_(saved)

    def export(self, params: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        with self.standing_in(params, buffers):
            return {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}

    def state(self) -> dict[str, Any]:
        """Everything that changes while training; tensors and numbers only. ``load`` is its inverse."""
        return {
            "params": self.flat.params,
            "model": dict(self.named_buffers.named),
            "optimizer": self.optimizer.state(),
            "rng": self.streams.get(),
            "loss": [self.loss_sum, self.loss_samples],
            "noise": self.noise.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Become the replica that was saved; the random stream becomes the process's own."""
        with torch.no_grad():
            self.flat.params.copy_(state["params"])
            for name, value in self.named_buffers.named.items():
                value.copy_(state["model"][name])
        self.optimizer.load(state["optimizer"])
        self.streams.set(state["rng"])
        self.loss_sum, self.loss_samples = state["loss"]
        self.noise.load(state["noise"])


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Afterwards each module is in its own mode again: some may not train, such as a frozen batch norm."""
    modes = [(one, one.training) for one in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for one, training in modes:
            one.training = training


def first_model(job: Job, seed: int, device: torch.device) -> nn.Module:
    """The model with which every worker and server begins; the process's random streams are left alone."""
    streams = AllStreams()
    with undisturbed(streams):
        streams.seed(seed)
        return job.model().to(device)


def _streams_of(job: Job) -> TorchStream:
    return TorchStream() if isinstance(job.train, IN_MEMORY) else AllStreams()


def first_streams(job: Job, seed: int, rank: int) -> State:
    """Where a worker's random streams stand before its first step; the process's own are left alone."""
    streams = _streams_of(job)
    with undisturbed(streams):
        streams.seed(stream_seed(seed, rank))
        return streams.get()


def stream_seed(seed: int, rank: int) -> int:
    """One seed a worker: streams of neighbouring ranks and seeds have nothing in common."""
    return (seed * 1_000_003 + rank + 1) * 2_654_435_761 % 2**63


class ParameterShard:
    """One server's parameters and optimizer; every part begins as every worker's model does.

    ``params`` and ``grad`` are the part's own memory: ``apply`` moves the one along the other.
    """

    def __init__(
        self,
        layout: Layout,
        params: Tensor,
        grad: Tensor,
        optimizer: ScheduledOptimizer,
        schedule: Callable[[float], float],
    ) -> None:
        """The ``layout`` is that of all servers' parts together."""
        self.layout, self.params, self.grad = layout, params, grad
        self.follow = optimizer.follow
        self._schedule, self._optimizer = schedule, optimizer

    @classmethod
    def of(cls, job: Job, rank: int, servers: int, seed: int, device: torch.device) -> Self:
        model = first_model(job, seed, device)
        layout, flat = layout_of(model), Flat(model.parameters())
        if servers > 1:
            flat = Flat([nn.Parameter(server_slices(flat.params, servers)[rank])])
        optimizer = ScheduledOptimizer(flat_optimizer(job.optimizer, flat), flat.grad, job.clip_norm)
        return cls(layout, flat.params, flat.grad, optimizer, job.schedule)

    @property
    def groups(self) -> int:
        """Of parameters that the optimizer has."""
        return len(self._optimizer.base_rates)

    def apply(self, epoch: float, rate: float = 1.0) -> None:
        self._optimizer.step(self._schedule(epoch) * rate)

    def state(self) -> dict[str, Any]:
        return {"params": self.params, "optimizer": self._optimizer.state()}

    def load(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            self.params.copy_(state["params"])
        self._optimizer.load(state["optimizer"])


def check_divisible(job: Job, servers: int) -> None:
    """Refuse what cannot work on a part of the vector; the model is examined without its memory."""
    if servers < 2:
        return
    flat, optimizer = _examined(job)
    problem = ""
    if job.clip_norm is not None:
        problem = f"clip_norm={job.clip_norm:g} needs the norm of the whole gradient, which no server knows"
    elif flat.offsets[-1] < servers:
        problem = f"each must keep at least one of its {flat.offsets[-1]} parameters"
    elif not takes_vector(optimizer, len(flat.parameters)):
        problem = f"its optimizer {type(optimizer).__name__} does not treat every element alike"
    if problem:
        raise UsageError(
            f"{servers} servers cannot share job {job.name!r}: {problem}; choose 1 server, or change the job"
        )


def check_learners(job: Job, plan: LearnerPlan) -> None:
    """Refuse an optimizer that several learners cannot share; one for two of them is made, and thrown away."""
    if plan.count != 1:
        first, other = (first_model(job, 0, torch.device("cpu")).parameters() for _ in range(2))
        flat_optimizer(job.optimizer, Flat(first, others=[other]))


def _examined(job: StepDefinition) -> tuple[Flat, Optimizer]:
    with torch.device("meta"):
        flat = Flat(job.model().parameters())
    return flat, job.optimizer(flat.parameters)


def check_momentum(job: StepDefinition, codec: str) -> None:
    """Refuse momentum that would be added twice: by an optimizer, and by the codec of this name before it."""
    _, optimizer = _examined(job)
    check_momentum_of(optimizer, codec, f" of job {job.name!r}", "sgd:momentum=0")


def check_momentum_of(optimizer: Optimizer, codec: str, whose: str, instead: str) -> None:
    if has_momentum(optimizer):
        raise UsageError(
            f"codec {codec!r} adds momentum to gradients in place of the optimizer, and the {type(optimizer).__name__}"
            f"{whose} has momentum too; choose an optimizer without, such as {instead}"
        )
