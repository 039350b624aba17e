"""The run folder, as one live worker writes it."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from paceline.records.checkpoints import Checkpoints
from paceline.records.create import create, environment
from paceline.records.events import read_events, truncate_after
from paceline.records.files import write_json
from paceline.records.folder import RunFolder
from paceline.records.spans import Totals
from paceline.records.tensorfile import write_tensors
from paceline.runtimes.config import write_config
from paceline.runtimes.live.checked import run_name
from paceline.runtimes.live.documents import check_equal
from paceline.runtimes.live.group import Group
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.place import Place
from paceline.runtimes.live.saving import snapshot
from paceline.runtimes.replica import Replica
from paceline.runtimes.session import Position
from paceline.runtimes.settings import Settings
from paceline.strategies.base import Worker


def agree_on_folder(group: Group, runs: Path, name: str) -> RunFolder:
    """Make a new run folder of the same name on every host: rank 0 chooses it."""
    folder = create(runs, name, datetime.now(UTC)) if group.rank == 0 else None
    chosen = group.exchange(folder.path.name if folder else None)[0]
    path = runs / run_name(chosen)
    path.mkdir(parents=True, exist_ok=True)
    return RunFolder(path)


def check_alike(group: Group, settings: Settings, name: str, resume: RunFolder | None) -> None:
    """Refuse to train with workers that were started for something else; where files lie may differ."""
    check_equal(group.exchange(asked_for(settings, name, resume)))


def asked_for(settings: Settings, name: str, resume: RunFolder | None) -> dict[str, Any]:
    """What a process was started for, as all processes of a run must have it alike."""
    asked = settings.to_json()
    job = asked.pop("job")
    asked.update({f"the job's {part}": words for part, words in job.items() if part != "data_dir"})
    asked["the run's name"] = name
    asked["--resume"] = resume.path.resolve().name if resume else None
    return asked


def describe_run(folder: RunFolder, settings: Settings, options: LiveOptions, hosts: list[Any]) -> None:
    """Write ``config.json`` and ``env.json``; once a host."""
    write_config(folder, settings, "live", asdict(options))
    write_json(folder.env, {**environment(), "workers": hosts})


def go_on(folder: RunFolder, rank: int, clock: int, progress: int) -> tuple[Totals, float]:
    """Forget what was recorded and saved after a checkpoint; return what remains in sum, and when it ended."""
    Checkpoints(folder, keep=1).forget_after(progress, rank)
    truncate_after(folder.events(rank), clock)
    if rank == 0:
        truncate_after(folder.metrics, progress)
    return recorded_totals(folder, rank)


def recorded_totals(folder: RunFolder, rank: int) -> tuple[Totals, float]:
    """What a worker has recorded, in sum, and when that ended."""
    totals, end = Totals(), 0.0
    if folder.events(rank).exists():
        for record in read_events(folder.events(rank)):
            totals.add(record)
            end = record.spans[-1].start + record.spans[-1].length if record.spans else end
    return totals, end


class Speaks(Protocol):
    """Who knows whether this worker is the one that speaks for all."""

    @property
    def speaks(self) -> bool:
        """Whether it is."""


class FolderKeeper:
    """Saves one worker into the run folder; the one that speaks for all also exports the model."""

    def __init__(
        self,
        folder: RunFolder,
        settings: Settings,
        replica: Replica,
        me: Worker,
        position: Position,
        speaker: Speaks,
    ) -> None:
        self.folder, self.replica, self.me, self.position = folder, replica, me, position
        self._speaker = speaker
        self._target = settings.target_accuracy
        self._checkpoints = Checkpoints(folder, settings.keep)

    def save(self) -> None:
        """Write a checkpoint, named by the progress that all workers share."""
        tree = snapshot(self.replica, self.me, self.position, self._target)
        self._checkpoints.save(self.position.progress, self.me.rank, tree)

    def tidy(self) -> None:
        """Keep the last few; all workers have passed the point where they were written."""
        self._checkpoints.prune(self.me.rank)

    def export(self, params: Tensor, buffers: Tensor) -> None:
        """Write ``model.tensors``."""
        if self._speaker.speaks:
            write_tensors(self.folder.model, self.replica.export(params, buffers))


def machine(place: Place, pid: int) -> dict[str, Any]:
    """Where one worker runs, for the others."""
    return {"rank": place.rank, "host": place.host, "node": place.node_rank, "pid": pid}
