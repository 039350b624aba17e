"""What is asked of every process of a training run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import UsageError
from paceline.records.folder import RunFolder
from paceline.records.summary import Observer
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.signals import StopRequest
from paceline.runtimes.live.task import ProcessTask
from paceline.runtimes.prepare import server_count
from paceline.runtimes.settings import Settings
from paceline.strategies import build_strategy


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """One training run: the same for its launchers, workers and servers."""

    settings: Callable[[int | None, RunFolder | None], Settings]
    """For so many workers, in the folder that is resumed; without what is asked of single ranks where it is None."""
    options: LiveOptions
    observe: Callable[[Settings], Observer]
    """Makes what is told of the run; it is closed when the run is over."""
    runs: Path
    """Where run folders are made."""
    resume: RunFolder | None = None
    name: str = ""
    """Of the run; empty: the job's."""
    trust: bool = False

    def settings_for(self, workers: int) -> Settings:
        return self.settings(workers, self.resume)

    def task(self, info: ProcessInfo, heartbeat: Heartbeat, stopping: StopRequest) -> ProcessTask:
        """The part of one worker or server."""
        return ProcessTask(
            settings=self.settings_for(info.workers),
            options=self.options,
            info=info,
            runs=self.runs,
            heartbeat=heartbeat,
            stop_requested=stopping,
            before_hard_end=stopping.before_hard_end,
            resume=self.resume,
            name=self.name,
        )

    def servers(self) -> int:
        """How many servers the run has; imports a strategy of the user's own, and nothing else of the user's."""
        settings = self.settings(None, self.resume)
        servers = server_count(settings, build_strategy(settings.strategy))
        if servers and self.options.backend is not None:
            raise UsageError(
                f"backend {self.options.backend} has no place beside strategy {settings.strategy!r}, whose workers "
                "talk to servers over connections of their own; leave it out"
            )
        return servers
