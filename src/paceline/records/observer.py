"""Who is told while a run goes on; only rank 0 talks."""

from dataclasses import dataclass

from paceline.records.events import MetricsRow
from paceline.records.summary import Summary


@dataclass(frozen=True, kw_only=True)
class Started:
    """What is about to run."""

    name: str
    job: str
    parameters: int
    strategy: str
    batch_sizes: tuple[int, ...]
    transport: str
    """How workers talk: "gloo", or the simulated cluster in a few words; empty where there is one worker."""
    last_step: int
    steps_per_epoch: int
    first_step: int = 0
    """Where a resumed run goes on."""
    seconds: float = 0.0
    """How long a resumed run has taken so far."""
    target: float | None = None
    folder: str | None = None
    threads: int | None = None
    """With which each worker computes; None where nothing is computed for real."""
    cores: int | None = None
    """That the first worker's host has for it."""
    step: str = ""
    """What a step is made of, after the batch: " x 4 accumulated, bf16"; empty for one plain mini-batch."""


class Observer:
    """What a person or a program sees of a run; this one shows nothing."""

    def started(self, run: Started) -> None:
        """Before the first step."""

    def stepped(self, progress: int, samples: int, loss: float, seconds: float) -> None:
        """After every step of rank 0: progress in steps, samples of all workers in it, its loss, time so far.

        Called in the training loop: must return within microseconds.
        """

    def evaluated(self, row: MetricsRow) -> None:
        """After every evaluation."""

    def noted(self, sentence: str) -> None:
        """Something worth saying: a refused checkpoint, a request to stop."""

    def finished(self, summary: Summary) -> None:
        """After the last step, or when the run was interrupted."""

    def close(self) -> None:
        """The run is over, however it ended; may be called twice."""
