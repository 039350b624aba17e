"""What is asked of a training run, and the part of one of its processes."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

import paceline.shm  # noqa: F401  makes "shm" a backend that torch knows
from paceline.collectives import NATIVE
from paceline.errors import UsageError, unknown
from paceline.records.files import to_document, write_json
from paceline.records.folder import RunFolder, environment
from paceline.records.summary import Observer
from paceline.records.tensors import RunIdentity
from paceline.runtimes.config import (
    Config,
    Placement,
    check_code,
    check_job,
    read_config,
    read_live,
    resolved,
    write_config,
)
from paceline.runtimes.live.failures import command
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.signals import StopRequest
from paceline.runtimes.live.timeouts import HANG, LEAST_SILENCE, SILENCE
from paceline.runtimes.live.worker.profiling import ProfiledSteps
from paceline.runtimes.prepare import server_count, short_codec
from paceline.runtimes.settings import Settings
from paceline.runtimes.threads import usual_threads
from paceline.specs import shorten
from paceline.strategies import STRATEGIES, build_strategy

BACKENDS = ("gloo", "nccl", "shm")
LONGEST = 365 * 24 * 3600
"""Seconds of a year: more overflows where torch or Python counts time."""


@dataclass(frozen=True, kw_only=True)
class LiveOptions:
    device: Literal["cpu", "cuda"] = "cpu"
    backend: str | None = None
    """Of torch.distributed; None is shm among workers of one host, gloo across hosts, nccl on CUDA."""
    timeout: float = 300.0
    threads: int = field(default_factory=usual_threads)
    silence: float = SILENCE
    hang_timeout: float | None = None
    """Seconds that a process may make no progress before it is ended; None is 120, or less where the timeout is short:
    it is ended before the others give up waiting."""

    @property
    def hang(self) -> float:
        return min(HANG, 0.8 * self.timeout) if self.hang_timeout is None else self.hang_timeout

    def __post_init__(self) -> None:
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UsageError("device cuda: torch finds no CUDA device on this host; choose cpu")
        if self.backend is not None:
            self._check_backend(self.backend)
        for what, seconds, least in (
            ("timeout", self.timeout, 1e-3),
            ("silence", self.silence, LEAST_SILENCE),
        ):
            if not least <= seconds <= LONGEST:
                raise UsageError(
                    f"a {what} of {seconds:g} s is out of range: it must lie between {least:g} s and {LONGEST:,} s"
                )
        if self.hang_timeout is not None and not 0 < self.hang_timeout < self.timeout:
            raise UsageError(
                f"a hang timeout of {self.hang_timeout:g} s must lie between 0 and the timeout of {self.timeout:g} s, "
                "or the others give up before the process that hangs is named; lower it, or raise the timeout"
            )
        if self.threads < 1:
            raise UsageError(f"{self.threads} threads are too few: a worker needs at least 1")

    def _check_backend(self, backend: str) -> None:
        if backend not in BACKENDS:
            raise unknown("backend", backend, BACKENDS)
        if not torch.distributed.is_backend_available(backend):
            raise UsageError(f"backend {backend} is not in this torch; leave it out to get the usual one")
        if (backend, self.device) in (("nccl", "cpu"), ("shm", "cuda")):
            raise UsageError(
                f"backend {backend} cannot move tensors of device {self.device}: nccl moves CUDA tensors only, shm CPU "
                "tensors only; change one of them"
            )

    def transport(self, info: ProcessInfo, collective: str = NATIVE) -> str:
        """The backend that a worker uses."""
        return self.backend_for(collective, one_host=info.workers == info.local_workers)

    def backend_for(self, collective: str, *, one_host: bool) -> str:
        """Of workers that all are on one host, or not; schedules send point to point over gloo."""
        if collective != NATIVE and self.device == "cuda":
            raise UsageError(
                f"collective {collective} moves CPU tensors only; choose collective {NATIVE} or device cpu"
            )
        if self.backend:
            return self.backend
        if self.device == "cuda":
            return "nccl"
        return "shm" if one_host and collective == NATIVE else "gloo"

    def device_of(self, info: ProcessInfo) -> torch.device:
        if self.device == "cpu":
            return torch.device("cpu")
        if info.local_rank >= torch.cuda.device_count():
            raise UsageError(
                f"{info.local_workers} workers on {info.host} are too many for its "
                f"{torch.cuda.device_count()} CUDA devices; start at most one a device"
            )
        return torch.device("cuda", info.local_rank)


CHANGEABLE = ("epochs", "iterations", "target_accuracy")
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
    """What the user asked for, for this many workers; None leaves out the options of single ranks."""
    given: Mapping[str, object] = field(default_factory=dict)
    """The settings that the user gave, by name; all others are defaults."""
    options: LiveOptions
    observe: Callable[[Settings], Observer]
    runs: Path
    resume: RunFolder | None = None
    name: str = ""
    trust: bool = False
    profile: ProfiledSteps | None = None
    """Steps that every worker profiles."""

    def settings(self, workers: int | None) -> Settings:
        if self.resume is None:
            return self.asked(workers)
        config = read_live(self.resume)
        check_job(config, self.resume)
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
        return servers_of(self.settings(None), self.options)

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
            profile=self.profile,
        )


def servers_of(settings: Settings, options: LiveOptions) -> int:
    servers = server_count(settings, build_strategy(settings.strategy))
    if servers and options.backend is not None:
        raise UsageError(
            f"backend {options.backend} cannot be used with strategy {settings.strategy!r}, whose workers "
            "talk to servers over connections of their own; leave it out"
        )
    return servers


def check_trust(config: Config, folder: RunFolder, *, trust: bool) -> None:
    if not trust:
        check_code(config, folder, f"resuming {folder.path}", "trust the run to execute it anyway")


def resumed_settings(earlier: Settings, asked: Settings, given: Mapping[str, object]) -> Settings:
    """The earlier run's settings; one that would change its result is a UsageError, one that repeats it is none."""
    was, now = _parts(resolved(earlier)), _parts(resolved(asked))
    for name in given:
        part = _DECIDES.get(name, name)
        before, after = was[part], now[part]
        if name not in CHANGEABLE and before != after:
            raise UsageError(
                f"the {name.replace('_', ' ')} cannot change when a run resumes: this run has {_shown(part, before)} "
                f"and you gave {_shown(part, after)}; leave it out, or start a new run"
            )
    if "epochs" in given or "iterations" in given:
        earlier = replace(earlier, epochs=given.get("epochs"), iterations=given.get("iterations"))  # type: ignore[arg-type]
    return replace(earlier, target_accuracy=given.get("target_accuracy", earlier.target_accuracy))  # type: ignore[arg-type]


def _parts(settings: Settings) -> dict[str, object]:
    job = settings.job
    decided = dict.fromkeys(("data", "model", "optimizer", "schedule"), job.path) if job.path else {}
    return {**vars(job), **decided, **vars(settings)}


def _shown(name: str, value: object) -> str:
    if name == "codec":
        return short_codec(str(value))
    if name == "strategy":
        return shorten(str(value), STRATEGIES)
    if isinstance(value, Mapping):
        value = tuple(f"{rank}={factor:g}" for rank, factor in sorted(value.items()))
    return (",".join(map(str, value)) if isinstance(value, tuple) else str(value or "")) or "none"


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
    profile: ProfiledSteps | None = None

    @cached_property
    def resumed(self) -> RunIdentity | None:
        return read_live(self.resume).identity if self.resume else None

    def asked(self) -> dict[str, Any]:
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
