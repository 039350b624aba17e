"""What is asked of a training run, and the part of one of its processes."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.records.files import to_document, write_json
from paceline.records.folder import RunFolder, environment
from paceline.records.summary import Observer
from paceline.records.tensors import RunIdentity
from paceline.runtimes.config import (
    Config,
    Placement,
    check_code,
    read_config,
    read_live,
    resolved,
    write_config,
)
from paceline.runtimes.live.failures import command
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.signals import StopRequest
from paceline.runtimes.prepare import server_count
from paceline.runtimes.settings import Settings
from paceline.strategies import build_strategy

CHANGEABLE = ("epochs", "iterations", "target_accuracy")
"""What a resumed run may be given anew: how long it goes on."""
_DECIDES = {
    "job": "path",
    "lr": "optimizer",
    "batch_size": "batch_sizes",
    "evaluate_every": "evaluate",
    "checkpoint_every": "checkpoint",
}
"""The field of the settings, or of their job, that is asked for by another name."""


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    asked: Callable[[int | None], Settings]
    """What the user asked for, for so many workers; for None, without what is asked of single ranks."""
    given: Mapping[str, object] = field(default_factory=dict)
    """The settings that the user gave, by name; all others are defaults."""
    options: LiveOptions
    observe: Callable[[Settings], Observer]
    runs: Path
    """Where run folders are made."""
    resume: RunFolder | None = None
    name: str = ""
    """Of the run; empty: the job's."""
    trust: bool = False

    def settings(self, workers: int | None) -> Settings:
        if self.resume is None:
            return self.asked(workers)
        config = read_live(self.resume)
        check_trust(config, self.resume, trust=self.trust)
        earlier = config.settings
        if workers is None:
            return earlier
        if workers != earlier.workers:
            made = command("reshard", self.resume.path, workers=workers)
            raise UsageError(
                f"{self.resume.path} ran with {earlier.workers} workers and cannot resume with {workers} as it is; "
                f"resume the folder that '{made}' makes of it"
            )
        return resumed_settings(earlier, self.asked(workers), self.given)

    def servers(self) -> int:
        """How many servers the run has; imports a strategy of the user's own, and nothing else of the user's."""
        settings = self.settings(None)
        servers = server_count(settings, build_strategy(settings.strategy))
        if servers and self.options.backend is not None:
            raise UsageError(
                f"backend {self.options.backend} has no place beside strategy {settings.strategy!r}, whose workers "
                "talk to servers over connections of their own; leave it out"
            )
        return servers

    def repeated(self) -> dict[str, object]:
        """What the command that resumes a resumed run must repeat: until it trains, its folder does not know it."""
        if self.resume is None:
            return {}
        given = {name: self.given[name] for name in CHANGEABLE if name in self.given}
        return {"trust": True, **given} if self.trust else given

    def task(self, info: ProcessInfo, heartbeat: Heartbeat, stopping: StopRequest) -> "ProcessTask":
        return ProcessTask(
            settings=self.settings(info.workers),
            options=self.options,
            info=info,
            runs=self.runs,
            heartbeat=heartbeat,
            stop_requested=stopping,
            before_hard_end=stopping.before_hard_end,
            resume=self.resume,
            name=self.name,
        )


def check_trust(config: Config, folder: RunFolder, *, trust: bool) -> None:
    if not trust:
        check_code(config, folder, f"resuming {folder.path}", "trust the run to execute it all the same")


def resumed_settings(earlier: Settings, asked: Settings, given: Mapping[str, object]) -> Settings:
    """The earlier run's settings; one that would change its result is a UsageError, one that repeats it is none."""
    was, now = resolved(earlier), resolved(asked)
    for name in given:
        before, after = _part(was, name), _part(now, name)
        if name not in CHANGEABLE and before != after:
            raise UsageError(
                f"the {name.replace('_', ' ')} cannot change when a run resumes: this run has {_shown(before)} and you "
                f"gave {_shown(after)}; leave it out, or start a new run"
            )
    if "epochs" in given or "iterations" in given:
        earlier = replace(earlier, epochs=given.get("epochs"), iterations=given.get("iterations"))  # type: ignore[arg-type]
    return replace(earlier, target_accuracy=given.get("target_accuracy", earlier.target_accuracy))  # type: ignore[arg-type]


def _part(settings: Settings, name: str) -> object:
    name = _DECIDES.get(name, name)
    if hasattr(settings, name):
        return getattr(settings, name)
    job_decides = settings.job.path if name in ("data", "model", "optimizer", "schedule") else None
    return job_decides or getattr(settings.job, name)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        value = tuple(f"{rank}={factor:g}" for rank, factor in sorted(value.items()))
    return (",".join(map(str, value)) if isinstance(value, tuple) else str(value or "")) or "none"


def latest_run(parent: Path) -> RunFolder:
    for path in sorted(parent.glob("*/config.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True):
        with suppress(UsageError):
            if read_config(folder := RunFolder(path.parent)).runtime == "live":
                return folder
    raise UsageError(f"{parent} holds no run of 'paceline train'; name a folder, or the place where runs are")


@dataclass(frozen=True, kw_only=True)
class ProcessTask:
    """The part of one worker or server in a run; all processes of the run must have the same settings."""

    settings: Settings
    options: LiveOptions
    info: ProcessInfo
    runs: Path
    heartbeat: Heartbeat
    stop_requested: Callable[[], bool]
    before_hard_end: Callable[[Callable[[], None]], None] = lambda _: None
    """Called with what writes the records so far, for a signal handler that may end the process."""
    resume: RunFolder | None = None
    name: str = ""

    @cached_property
    def resumed(self) -> RunIdentity | None:
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
