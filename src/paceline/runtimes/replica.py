"""One worker's model, gradient, optimizer, data and randomness, on flat buffers; the same in both runtimes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from paceline.jobs.data.tensors import TensorData
from paceline.jobs.job import Batch, Job
from paceline.jobs.sharding import Shards, scoring_batches
from paceline.runtimes.flat import Flat, Zeros, flatten_buffers, flatten_parameters, own_memory
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

    def draw(self, step: int) -> Batch:
        """This worker's mini-batch of a step, on its device; possibly empty where an epoch ends unevenly."""
        inputs, targets = self.job.train.take(self.shards.indices(self.rank, step))
        return inputs.to(self.device), targets.to(self.device)

    def forward(self, batch: Batch) -> Tensor:
        """The mean loss of a mini-batch."""
        inputs, targets = batch
        return self.job.loss(self.model(inputs), targets)

    def backward(self, loss: Tensor, samples: int, share: float) -> None:
        """Add ``share`` times the gradient to ``flat.grad``.

        With the shares of all workers adding up to 1, the sum of their gradients is the mean over all samples.
        """
        # Handed a gradient instead, torch imports sympy to check its shape: half a second in every worker.
        (loss * share).backward()  # type: ignore[no-untyped-call]
        self.loss_sum += loss.item() * samples
        self.loss_samples += samples

    def apply(self, epoch: float, rate: float = 1.0) -> None:
        """The optimizer's step, at ``rate`` times the learning rate of this epoch."""
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
        batches = scoring_batches(len(self.job.test), seat, workers)
        loss, metrics = 0.0, [0.0] * len(self.job.metrics)
        with self._standing_in(params, buffers) if batches else nullcontext(), undisturbed(self.streams):
            for batch in batches:
                inputs, targets = self.job.test.take(torch.arange(batch.start, batch.stop))
                outputs, targets = self.model(inputs.to(self.device)), targets.to(self.device)
                loss += self.job.loss(outputs, targets).item() * len(inputs)
                for place, metric in enumerate(self.job.metrics.values()):
                    metrics[place] += float(metric(outputs, targets))
                scored()
        trained = self.loss_sum, self.loss_samples
        self.loss_sum, self.loss_samples = 0.0, 0
        tested = sum(map(len, batches))
        return torch.tensor([*trained, loss, tested, *metrics], dtype=torch.float64)

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
