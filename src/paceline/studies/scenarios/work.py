"""The [run] table of a scenario: how much is trained, by which strategy, and what the model weighs."""

from dataclasses import dataclass, replace
from math import inf

from paceline.clusters.toml_reader import Reader
from paceline.collectives import NATIVE
from paceline.errors import UsageError

LENGTHS = ("epochs", "batches", "iterations", "rounds")
MOST_STEPS = 1_000_000
"""Steps of all workers together that a scenario may take: some seconds."""
SHARE = 4
"""Bytes of a parameter."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is trained, in time only."""

    strategy: str
    batch: int
    """Samples of a mini-batch; what the cluster's times are stated for."""
    parameters: int
    collective: str
    servers: int
    horizon: float = inf
    epochs: int = 0
    batches: int = 0
    """Mini-batches that all workers share, however many epochs they are."""
    iterations: int = 0
    """Steps a worker."""
    rounds: int = 0
    """Exchanges, each after ``local_epochs`` of a worker's own samples."""
    samples: int = 0
    local_epochs: int = 0

    @property
    def shared_batches(self) -> int:
        """Mini-batches to be dealt out; an epoch's last one counts as a whole one."""
        return self.batches or -(-self.samples // self.batch) * self.epochs

    def local_batches(self, workers: int) -> int:
        """Mini-batches of one worker between two exchanges."""
        share = -(-self.samples // workers)
        return -(-share // self.batch) * self.local_epochs if self.local_epochs else 1

    def steps(self, workers: int) -> list[int]:
        """Steps of each worker: batches are dealt out whole, one a worker and round, until none is left."""
        if each := self.iterations or self.rounds:
            return [each] * workers
        return [-(-(self.shared_batches - rank) // workers) for rank in range(workers)]


def read_work(reader: Reader) -> Work:
    """Read [run]: what is trained, and how long."""
    epochs, batches, iterations, rounds, samples, local = (
        reader.whole(key, 0, least=1 if key in reader.values else 0)
        for key in (*LENGTHS, "samples", "local-epochs")
    )
    work = replace(
        _read_kind(reader),
        horizon=reader.seconds("horizon", inf),
        epochs=epochs,
        batches=batches,
        iterations=iterations,
        rounds=rounds,
        samples=samples,
        local_epochs=local,
    )
    reader.finish()
    _check_length(reader, work)
    return work


def read_step(reader: Reader) -> Work:
    """Read [run] where only one step, or round, is asked about: it says what is trained, and nothing of how long."""
    work = _read_kind(reader)
    reader.finish()
    return work


def _read_kind(reader: Reader) -> Work:
    reader.need("batch = 32")
    return Work(
        strategy=reader.word("strategy", "all-reduce"),
        batch=reader.whole("batch", 32, least=1),
        parameters=_parameters(reader),
        collective=reader.word("collective", NATIVE),
        servers=reader.whole("servers", 1, least=1),
    )


def _parameters(reader: Reader) -> int:
    """The model's size may be stated in bytes or in parameters."""
    if "model" in reader.values and "parameters" in reader.values:
        raise reader.wrong(
            "parameters", reader.values["parameters"], "model says it too; leave one of them out"
        )
    size = reader.size("model", 0.0)
    return int(size / SHARE) or reader.whole("parameters", 1, least=1)


def _check_length(reader: Reader, work: Work) -> None:
    """Exactly one key says how long, or the horizon does; and it has the samples that it needs."""
    given = [key for key in LENGTHS if key in reader.values]
    if len(given) > 1:
        raise reader.wrong(
            given[1], reader.values[given[1]], f"{given[0]} says it too; leave one of them out"
        )
    if not given and work.horizon == inf:
        raise UsageError(
            f"{reader.place('epochs')} is missing: say how long, by one of {', '.join(LENGTHS)} or horizon"
        )
    needs = [key for key in ("epochs", "local-epochs") if key in reader.values]
    if needs and not work.samples:
        raise UsageError(f"{reader.place('samples')} is missing: {needs[0]} are passes over so many samples")
    if work.samples and not needs:
        raise reader.wrong("samples", work.samples, "only epochs or local-epochs need them; leave them out")
    if bool(work.rounds) != bool(work.local_epochs):
        raise reader.wrong(
            *(("rounds", work.rounds) if work.rounds else ("local-epochs", work.local_epochs)),
            "rounds and local-epochs go together: so many rounds of so many passes over a worker's own samples",
        )
