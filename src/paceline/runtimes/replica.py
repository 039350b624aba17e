"""One worker's model, gradient, optimizer, data and randomness, on flat buffers; the same in both runtimes."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from paceline.errors import Diverged, UsageError
from paceline.jobs.batches import Batch, batch_loss, kept_outputs, targets_of, to_device
from paceline.jobs.data.tensors import TensorData
from paceline.jobs.job import Job
from paceline.jobs.optimizers import clip_norm_
from paceline.jobs.sharding import Shards, scoring_batches
from paceline.runtimes.flat import Flat, Zeros, flatten_buffers, flatten_parameters, own_memory
from paceline.runtimes.loading import Request, load
from paceline.runtimes.optimizers import Rated, flat_optimizer
from paceline.runtimes.randomness import AllStreams, State, Streams, TorchStream, undisturbed


class Replica:
    """The real mathematics of one worker.

    ``params``, ``grad`` and ``buffers`` are the memory that the model itself uses: writing to them changes the model.
    """

    def __init__(
        self, job: Job, shards: Shards, rank: int, seed: int, device: torch.device, zeros: Zeros = own_memory
    ) -> None:
        """``zeros`` makes the memory of the parameters and gradients."""
        self.job, self.shards, self.rank, self.device = job, shards, rank, device
        self._seed = seed
        self._batches: Iterator[Batch] = iter(())
        self._next_step: int | None = None
        self.streams = _streams_of(job)
        with undisturbed(self.streams):
            self.streams.seed(seed)
            self.model = job.model().to(device).train()
        self.rng = first_streams(job, seed, rank)
        self.flat: Flat = flatten_parameters(self.model, zeros)
        self.buffers: Tensor = flatten_buffers(self.model)
        self._rated = Rated(flat_optimizer(job.optimizer, self.flat))
        self.loss_sum = 0.0
        self.loss_samples = 0

    @contextmanager
    def randomness(self) -> Iterator[None]:
        """Draw random numbers from this worker's own streams; for runtimes that host several workers.

        The process's streams are left where this worker's stand: whoever minds wraps the whole run.
        """
        self.streams.set(self.rng)
        yield
        self.rng = self.streams.get()

    def batches(self, step: int) -> Iterator[tuple[Batch, int]]:
        """This worker's mini-batches of a step, on its device, each with its number of samples.

        One unless gradients are accumulated; none where an epoch ends unevenly. All of them must be taken.
        """
        if step != self._next_step:
            self._batches = load(self.job.train, self._all_requests(step), self.job.loader_workers)
        self._next_step = step + 1
        return (
            (to_device(next(self._batches), self.device), len(request.indices))
            for request in self._requests(step)
        )

    def _all_requests(self, first: int) -> Iterator[Request]:
        return (request for step in count(first) for request in self._requests(step))

    def _requests(self, step: int) -> list[Request]:
        parts = self.job.accumulate
        size = max(1, self.shards.batch_size(self.rank) // parts)
        indices = self.shards.indices(self.rank, step).tolist()
        seed = stream_seed(self._seed, self.rank)
        return [
            Request(indices[start : start + size], stream_seed(seed, step * parts + place))
            for place, start in enumerate(range(0, len(indices), size))
        ]

    def forward(self, batch: Batch) -> Tensor:
        """The mean loss of a mini-batch."""
        with self._autocast():
            return batch_loss(self.job, self.model, batch)

    def _autocast(self) -> AbstractContextManager[Any]:
        return (
            nullcontext()
            if self.job.precision == "fp32"
            else torch.autocast(self.device.type, torch.bfloat16)
        )

    def backward(self, loss: Tensor, samples: int, share: float) -> None:
        """Add ``share`` times the gradient to ``flat.grad``.

        With the shares of all workers adding up to 1, the sum of their gradients is the mean over all samples.
        Raises Diverged where the loss is not finite.
        """
        # Handed a gradient instead, torch imports sympy to check its shape: half a second in every worker.
        (loss * share).backward()  # type: ignore[no-untyped-call]
        value = loss.item()
        if not isfinite(value):
            raise self.diverged(f"the loss of rank {self.rank} is {value}", self._next_step or 1)
        self.loss_sum += value * samples
        self.loss_samples += samples

    def diverged(self, what: str, step: int) -> Diverged:
        """The error that says so, with the learning rate of that step."""
        return Diverged(what, step, self.learning_rate((step - 1) / self.shards.steps_per_epoch))

    def apply(self, epoch: float, rate: float = 1.0) -> None:
        """The optimizer's step on the clipped gradient, at ``rate`` times the learning rate of this epoch."""
        clip_norm_(self.flat.grad, self.job.clip_norm)
        self._rated.step(self.job.schedule(epoch) * rate)

    def learning_rate(self, epoch: float) -> float:
        """The first group's rate at an epoch."""
        return float(self._rated.base_rates[0] * self.job.schedule(epoch))

    @torch.no_grad()
    def evaluate(
        self,
        params: Tensor,
        buffers: Tensor,
        seat: int,
        workers: int,
        scored: Callable[[], None] = lambda: None,
    ) -> Tensor:
        """Sums over this worker's share of the test data, laid out as ``Scores.from_sums`` reads them.

        ``workers`` share it, and this one has the ``seat``-th part; ``scored`` is called after each batch.
        """
        ranges = scoring_batches(len(self.job.test or ()), seat, workers)
        loss, metrics = 0.0, [0.0] * len(self.job.metrics)
        if ranges:
            with (
                self._standing_in(params, buffers),
                undisturbed(self.streams),
                kept_outputs(self.model) as kept,
            ):
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
        """Every metric of a batch, by what the model returned last."""
        if self.job.metrics and not kept:
            raise UsageError(
                f"compute_loss of job {self.job.name!r} does not call the model itself, so that there are no outputs "
                f"for the metric {next(iter(self.job.metrics))!r}; call model(...), or leave the metrics out"
            )
        return [float(metric(kept[0], targets_of(batch))) for metric in self.job.metrics.values()]

    def close(self) -> None:
        """End the loader processes."""
        self._batches, self._next_step = iter(()), None

    @contextmanager
    def _standing_in(self, params: Tensor, buffers: Tensor) -> Iterator[None]:
        """Evaluate with other parameters and buffers, then put this worker's own back."""
        pairs = ((self.flat.params, params), (self.buffers, buffers))
        others = [(own, own.clone(), other) for own, other in pairs if own.data_ptr() != other.data_ptr()]
        for own, _, other in others:
            own.copy_(other)
        self.model.eval()
        try:
            yield
        finally:
            self.model.train()
            for own, saved, _ in others:
                own.copy_(saved)

    def export(self, params: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """The model's state by name, with the given parameters and buffers."""
        with self._standing_in(params, buffers):
            return {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}

    def state(self) -> dict[str, Any]:
        """Everything that changes while training; tensors and numbers only. ``load`` is its inverse."""
        return {
            "params": self.flat.params,
            "model": dict(self.model.named_buffers()),
            "optimizer": self._rated.state(),
            "rng": self.streams.get(),
            "loss": [self.loss_sum, self.loss_samples],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Become the replica that was saved; the random stream becomes the process's own."""
        with torch.no_grad():
            self.flat.params.copy_(state["params"])
            for name, value in self.model.named_buffers():
                value.copy_(state["model"][name])
        self._rated.load(state["optimizer"])
        self.streams.set(state["rng"])
        self.loss_sum, self.loss_samples = state["loss"]


def _streams_of(job: Job) -> Streams:
    return TorchStream() if isinstance(job.train, TensorData) else AllStreams()


def first_streams(job: Job, seed: int, rank: int) -> State:
    """Where a worker's random streams stand before its first step; the process's own are left alone."""
    streams = _streams_of(job)
    with undisturbed(streams):
        streams.seed(stream_seed(seed, rank))
        return streams.get()


def stream_seed(seed: int, rank: int) -> int:
    """One seed a worker: streams of neighbouring ranks and seeds have nothing in common."""
    return (seed * 1_000_003 + rank + 1) * 2_654_435_761 % 2**63
