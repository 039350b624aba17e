"""What a simulated run leaves behind: the same files as a live one, and the same bytes for the same run."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

from paceline.records.events import EventWriter, MetricsRow, append_metrics
from paceline.records.files import digest_of, to_document, write_json
from paceline.records.folder import RunFolder, create_new, environment
from paceline.records.servers import Entry, ServerLog
from paceline.records.spans import StepRecord
from paceline.records.summary import Observer, Summary
from paceline.records.tensors import write_tensors
from paceline.runtimes.config import new_identity, write_config
from paceline.runtimes.settings import Settings

MOST_STEPS = 100_000
"""Steps of all workers up to which each is kept; longer runs keep totals only."""
MOST_WORKERS = 256
"""Workers up to which each has a file of steps; systems let a process have some 1,000 open."""


class SimulationRecorder:
    """Given what happens, in an order that depends on the settings alone; this one keeps nothing."""

    detailed = False
    """Whether every step is wanted; without, only totals are kept and a run is faster."""
    folder: RunFolder | None = None

    def recorded(self, rank: int, record: StepRecord) -> None:
        """After every step and every sync point of a worker, where ``detailed``; each worker's own in order."""

    def served(self, rank: int, entry: Entry) -> None:
        """What a server receives or does, where ``detailed``; each server's own in order."""

    def exported(self, state: Mapping[str, Tensor]) -> None:
        """At the end, the central model by name, where gradients are on."""


class FolderRecorder(SimulationRecorder, Observer):
    """Keeps what happens in a run folder."""

    folder: RunFolder

    def __init__(self, folder: RunFolder, workers: int, steps: int) -> None:
        self.folder, self._files = folder, ExitStack()
        self.detailed = workers <= MOST_WORKERS and workers * steps <= MOST_STEPS
        self._events = [
            self._files.enter_context(EventWriter(folder.events(rank)))
            for rank in range(workers if self.detailed else 0)
        ]
        self._logs: dict[int, ServerLog] = {}

    def recorded(self, rank: int, record: StepRecord) -> None:
        self._events[rank].append(record)

    def served(self, rank: int, entry: Entry) -> None:
        if rank not in self._logs:
            self._logs[rank] = self._files.enter_context(ServerLog(self.folder.server_events(rank)))
        self._logs[rank].append(entry)

    def exported(self, state: Mapping[str, Tensor]) -> None:
        write_tensors(self.folder.model, dict(state))

    def evaluated(self, row: MetricsRow) -> None:
        append_metrics(self.folder.metrics, row)

    def finished(self, summary: Summary) -> None:
        write_json(self.folder.summary, summary.to_json())

    def close(self) -> None:
        self._files.close()


def new_folder(runs: Path, name: str, settings: Settings, machinery: Mapping[str, Any]) -> RunFolder:
    """Make a run folder that says what is simulated; ``machinery`` says where, or which run is repeated."""
    # A simulation that is repeated is the same run, and leaves the same bytes.
    run = digest_of({"settings": to_document(settings), "machinery": dict(machinery)})[:16]
    identity = new_identity(settings, run=run)

    def describe(folder: RunFolder) -> None:
        write_config(folder, settings, "virtual", machinery, identity=identity)
        write_json(folder.env, environment())

    return create_new(runs, name, describe)
