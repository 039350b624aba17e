"""What one process of a live run was started for."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.records.files import to_document, write_json
from paceline.records.folder import RunFolder, environment
from paceline.records.tensors import RunIdentity
from paceline.runtimes.config import Placement, read_config, read_live, write_config
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.settings import Settings


@dataclass(frozen=True, kw_only=True)
class ProcessTask:
    """The part of one worker or server in a run; all processes of the run must have the same settings."""

    settings: Settings
    options: LiveOptions
    info: ProcessInfo
    runs: Path
    """The folder in which run folders are made."""
    heartbeat: Heartbeat
    stop_requested: Callable[[], bool]
    before_hard_end: Callable[[Callable[[], None]], None] = lambda _: None
    """Called with what writes the records so far, for a signal handler that may end the process."""
    resume: RunFolder | None = None
    """The earlier run that is continued, in its own folder."""
    name: str = ""
    """Of the run; empty: the job's."""

    @cached_property
    def resumed(self) -> RunIdentity | None:
        """The identity of the run that is continued."""
        return read_live(self.resume).identity if self.resume else None

    def asked(self) -> dict[str, Any]:
        """What must be the same in all processes of the run; the paths of its files may differ."""
        settings = self.settings
        asked: dict[str, Any] = to_document(settings)
        asked |= {"evaluate": str(settings.evaluate), "checkpoint": str(settings.checkpoint)}
        asked["batch_sizes"] = list(settings.batch_sizes)  # as it comes back from JSON
        job = asked.pop("job")
        asked.update({f"the job's {part}": value for part, value in job.items() if part != "data_dir"})
        asked["the run's name"] = self.name
        asked["the run to resume"] = self.resume.path.resolve().name if self.resume else None
        asked["the id of the run to resume"] = self.resumed.run if self.resumed else None
        return asked

    def describe(self, folder: RunFolder, identity: RunIdentity, workers: list[Any]) -> None:
        """Write ``config.json`` and ``env.json``; once a host. ``workers`` says where each runs, by rank."""
        placement = Placement(
            workers=tuple(worker["node"] for worker in workers),
            servers=tuple(number % self.info.nodes for number in range(self.info.servers)),
        )
        origin = read_config(folder).origin if folder.config.exists() else ""
        machinery = asdict(self.options)
        write_config(
            folder, self.settings, "live", machinery, identity=identity, placement=placement, origin=origin
        )
        write_json(folder.env, {**environment(), "workers": workers})
