"""A whole run in one small document, and the interface that observes a run while it goes on."""

from dataclasses import dataclass, field
from typing import Any

from paceline.errors import UsageError
from paceline.records.events import MetricsRow
from paceline.records.files import DamagedFile, from_document, read_json, to_document
from paceline.records.folder import RunFolder
from paceline.records.load import HostLoad, disturbance
from paceline.records.servers import ServerTotals
from paceline.records.spans import StepBreakdown, Totals

SCHEMA = 2


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """The gradient noise scale (McCandlish et al., 2018), in samples: larger batches are mostly waste."""

    last: float
    low: float
    """The lowest and the highest of the run."""
    high: float
    batch: int
    """The run's own global batch."""


@dataclass(kw_only=True)
class Summary:
    """How a run ended and where its time went; written as ``summary.json`` by both runtimes."""

    name: str
    runtime: str
    """"live" or "virtual"."""
    ending: str
    """"budget", "target", "interrupted" or "failed"."""
    workers: int
    steps: int
    epochs: float
    seconds: float
    samples: int
    parameters: int
    target: float | None = None
    target_seconds: float | None = None
    final: dict[str, float] = field(default_factory=dict)
    """The last row of metrics, empty where nothing was evaluated."""
    totals: list[Totals] = field(default_factory=list)
    servers: list[ServerTotals] = field(default_factory=list)
    cpu_percent: float | None = None
    """Mean CPU use a worker, of one core; None where nothing was sampled."""
    memory_bytes: float | None = None
    loads: list[HostLoad] = field(default_factory=list)
    loader_workers: int | None = None
    """Loader processes of each worker, by its job; None where a script has its own, and of simulated runs."""
    coding: float | None = None
    """Seconds that encoding and decoding took rank 0 in a step, in the mean since its process began."""
    profiled: str = ""
    """The steps that the torch profiler saw, such as "20-24"; empty where it saw none."""
    noise_scale: NoiseScale | None = None
    """None where no gradients of two batch sizes were compared, or too few."""

    @property
    def missed(self) -> bool:
        """Whether the run had a target accuracy and ended without reaching it."""
        return self.target is not None and self.target_seconds is None and self.ending == "budget"

    @property
    def notes(self) -> list[str]:
        reached = f"it was {self.final['accuracy']:.4f} " if "accuracy" in self.final else ""
        missed = (
            f"The target accuracy of {self.target} was not reached: {reached}after epoch {self.epochs:.4g}; "
            "train for longer, or with another learning rate."
        )
        return [note for note in (disturbance(self.loads), missed if self.missed else "") if note]

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **to_document(self), "notes": self.notes}


def read_summary(folder: RunFolder) -> Summary:
    document = read_json(folder.summary)
    schema = document.get("schema") if isinstance(document, dict) else None
    if type(schema) is not int:
        raise DamagedFile(folder.summary, "is not the summary of a run")
    if schema != SCHEMA:
        raise UsageError(
            f"{folder.summary} is the summary of a run of schema {schema}, made by another version of paceline; this "
            f"one reads schema {SCHEMA}: use that version, or run it again"
        )
    try:
        return from_document(document, Summary)
    except ValueError as error:
        raise DamagedFile(folder.summary, f"is not the summary of a run: {error}") from error


def recorded_loads(folder: RunFolder) -> list[HostLoad]:
    """What else computed during a run; empty where its summary is missing or cannot be read."""
    try:
        return read_summary(folder).loads
    except (OSError, DamagedFile, UsageError):
        return []


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What gradients, sums and messages took before the first step: what a prediction of it needs to know."""

    steps: tuple[StepBreakdown, ...]
    """Of each worker, while all computed: data, forward, backward and apply."""
    ready: tuple[float, ...]
    """One a parameter: the part of backward after which its gradient is complete, 0 to 1."""
    shapes: tuple[tuple[int, ...], ...]
    """Of the trainable parameters."""
    dtype: str
    buffers: int
    nodes: tuple[int, ...]
    """The host of each worker."""
    sums: tuple[tuple[int, float], ...]
    """Bytes of a tensor, and the seconds of its sum over all workers."""
    coding: float
    """Seconds of encoding and decoding a whole gradient in a reduction among ``coders`` workers."""
    coders: int
    lengths: tuple[int, ...] = ()
    """Elements that a message has of each parameter, the most of all workers; none where no data decide it."""
    samples: int | None = None
    """Of the training data."""


@dataclass(frozen=True, kw_only=True)
class ScriptModel:
    """The trainable parameters of a model that only a script can make."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    buffers: int
    """Elements of its buffers of that type."""


@dataclass(frozen=True, kw_only=True)
class Started:
    """What is about to run."""

    name: str
    job: str
    parameters: int
    strategy: str
    batch_sizes: tuple[int, ...]
    transport: str
    """"gloo", "shm", or the simulated cluster in a few words; empty where there is one worker."""
    codec: str = ""
    """What is sent in place of whole gradients, and whether its error is kept; empty for whole gradients."""
    last_step: int
    """0, and so are the steps of an epoch, where a script decides when it ends."""
    steps_per_epoch: int
    first_step: int = 0
    seconds: float = 0.0
    target: float | None = None
    folder: str | None = None
    threads: int | None = None
    cores: int | None = None
    step: str = ""
    """What a step is made of, after the batch: " x 4 accumulated, bf16"; empty for one plain mini-batch."""
    learning_rate: str = ""
    """How it follows from the batch: "0.05 x 8 for a batch of 256 (linear)"; empty where it is not scaled."""
    probe: Probe | None = None
    """Where a codec is in use."""
    model: ScriptModel | None = None
    """Of a script."""
    subject: Any = None
    """The job, for a prediction of this run; in no document, and None where a run is under way already."""


class Observer:
    """Called by rank 0 while a run goes on; this one shows nothing."""

    def started(self, run: Started) -> None:
        """Before the first step."""

    def stepped(self, progress: int, samples: int, loss: float, seconds: float) -> None:
        """After every step of rank 0: progress in steps, samples of all workers in it, its loss, time so far.

        Called in the training loop: must return within microseconds.
        """

    def evaluated(self, row: MetricsRow) -> None:
        """After every evaluation."""

    def noted(self, sentence: str) -> None:
        """A sentence for the user: a refused checkpoint, a request to stop."""

    def finished(self, summary: Summary) -> None:
        """After the last step, or when the run was interrupted."""

    def close(self) -> None:
        """The run is over, however it ended; may be called twice."""
