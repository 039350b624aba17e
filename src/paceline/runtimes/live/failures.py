"""Failures: the notes that processes leave for their launcher, the root cause, what is safe, and the user's report."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

import msgspec

from paceline.errors import UsageError, printable
from paceline.records.checkpoints import Checkpoints, Commits
from paceline.records.folder import RunFolder, short_path
from paceline.records.tensors import FileRole
from paceline.runtimes.config import Config, read_live
from paceline.runtimes.live.process_info import ProcessInfo, Role, show_process
from paceline.units import show_seconds

_Cause = Literal["killed", "exited", "error", "mistake", "hung", "diverged"]
_Effect = Literal["lost-host", "lost-peer", "stopped", "interrupted", "check", "abandoned", "expelled"]
FailureKind = Literal[_Cause, _Effect]
_SENTENCES: dict[FailureKind, str] = {
    "killed": "{who} died{when} ({message})",
    "exited": "{who} exited{when} ({message})",
    "error": "{who} failed{when}: {message}{where}",
    "mistake": "{message}",
    "lost-host": "{message}; the workers here were ended{when}",
    "lost-peer": "{who} lost contact with the others{when}, for an unknown reason ({message})",
    "stopped": "{who} {message}{comma}{when}",
    "interrupted": "{who} was interrupted{when}",
    "check": "{who} found a wrong result",
    "abandoned": "{who} lost its last worker{when}",
    "hung": "{who} {message}{comma}{when}{where}",
    "expelled": "{who} was removed by the servers{when}: {message}",
    "diverged": "{message}",
}
_LONGEST = {"host": 255, "message": 4096, "where": 1024, "traceback": 65_536, "run": 4096}
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Steps = tuple[_Count, ...]
T = TypeVar("T")
AGAIN = "start again with the same command."


@dataclass(frozen=True, kw_only=True)
class Failure:
    """How one worker or server ended early.

    "killed" and "exited" left no note of their own; "mistake" is the user's to fix; "lost-peer" is a collective that
    failed because another process had ended, "lost-host" a launcher that does not answer. "stopped" ended hard after a
    signal, "interrupted" in agreement with all others; "check" is a result that failed its check, "abandoned" a server
    without workers. "hung" was ended by its launcher, "expelled" by the servers after a long silence.
    """

    rank: _Count
    role: Role = "worker"
    host: str
    kind: FailureKind
    step: _Count = 0
    message: str = ""
    where: str = ""
    """The last line of the user's own code, "my_job.py:42 in loss"."""
    traceback: str = ""
    run: str = ""
    code: _Count = 1
    """The exit code of one that "exited"."""
    at: float = field(default_factory=time.time)

    def to_json(self) -> bytes:
        return msgspec.json.encode(replace(self, traceback=self.traceback[-_LONGEST["traceback"] :]))

    @classmethod
    def of(cls, info: ProcessInfo, kind: FailureKind, step: int, message: str = "", **more: Any) -> Self:
        return cls(
            rank=info.rank, role=info.role, host=info.host, kind=kind, step=step, message=message, **more
        )

    def write(self, info: ProcessInfo) -> None:
        """Leave the note for the launcher of a process; its first note stands."""
        path = info.file("failure.json")
        draft = path.with_suffix(".draft")
        draft.write_bytes(self.to_json())
        with suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()


def decoded(text: bytes, kind: type[T]) -> T | None:
    """What another process wrote as JSON; None for anything else."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError):  # of msgspec: also UnicodeDecodeError
        return None


def read_failure(text: bytes) -> Failure | None:
    """What ``Failure.to_json`` wrote, safe to print; None for anything else."""
    failure = decoded(text, Failure)
    if failure is None:
        return None
    clean: dict[str, Any] = {
        name: printable(getattr(failure, name), longest, lines=name in ("message", "traceback"))
        for name, longest in _LONGEST.items()
    }
    return replace(failure, **clean)


def read_note(info: ProcessInfo) -> Failure | None:
    try:
        return read_failure(info.file("failure.json").read_bytes())
    except FileNotFoundError:
        return None


def root_cause(failures: Iterable[Failure]) -> Failure:
    """The first that has a cause of its own; one that lost a peer or was stopped only where none has."""

    def order(failure: Failure) -> tuple[int, float]:
        lost = failure.kind in ("lost-peer", "lost-host")
        return 0 if failure.kind in get_args(_Cause) else 1 if lost else 2, failure.at

    return min(failures, key=order)


LaunchKind = Literal["training", "measurement", "script"]
"""What the processes of a run do. A script's own loop saves what it likes, and nothing but the script resumes it."""


def sentence(failure: Failure, kind: LaunchKind = "training") -> str:
    when = _when(failure, kind)
    return _SENTENCES[failure.kind].format(
        who=show_process(failure.rank, failure.role, failure.host),
        when=when,
        comma="," if when else "",
        message=failure.message,
        where=f" ({failure.where})" if failure.where else "",
    )


def _when(failure: Failure, kind: LaunchKind) -> str:
    if kind == "measurement":
        return " while it measured" if failure.step else " before it measured anything"
    if failure.role == "server":
        return f" after {failure.step} updates" if failure.step else " before its first update"
    if kind == "script" and not failure.step:  # perhaps it takes steps that nobody counts
        return ""
    return f" at step {failure.step}" if failure.step else " before its first step"


def recorded(run: Path | None) -> list[str]:
    """What is left of a run of a script: the script alone knows what it has saved."""
    where = [f"Records: {short_path(run)}"] if run and run.exists() else []
    return [*where, f"What the script itself has saved is safe; {AGAIN}"]


def what_next(line: str, failure: Failure) -> str:
    """A line on what is safe or what to type; where the same command would fail again, it says what must change."""
    if failure.kind == "diverged" and line.startswith("Resume:"):
        return "Resuming would repeat these steps; start a new run with other settings."
    if failure.kind == "diverged":
        return line.replace("the same command.", "other settings or data.")
    if failure.kind == "error":
        return line.replace("the same command.", "the same command when the error is repaired.")
    return line


def join_command(
    run: Path | None, near: bool, endpoints: Sequence[str], secret_file: Path | None
) -> list[str]:
    """How a worker rejoins a run that goes on: ``near`` server 0 by its folder, else at its address."""
    job = {}  # the user's own code, which runs only where the user names it
    with suppress(UsageError):
        if run and (path := read_live(RunFolder(run)).settings.job.path):
            job = {"job": path}
    if run is not None and near:
        return [f"Join: {command('train', join=short_path(run), **job)}"]
    if not endpoints or secret_file is None:
        return []
    where = endpoints[0].removeprefix("tcp://")
    return [f"Join: {command('train', join=where, secret_file=secret_file, **job)}"]


def killed_by(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"killed by signal {-code}, {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def command(name: str, *words: object, **settings: object) -> str:
    typed = ["paceline", name, *(quote(str(word)) for word in words)]
    for setting, value in settings.items():
        typed.append(f"--{setting.replace('_', '-')}")
        if value is not True:
            typed.append(quote(str(value)))
    return " ".join(typed)


@dataclass(frozen=True, kw_only=True)
class CompleteSteps:
    whole: _Steps = ()
    """Steps whose files that belong on this host are verified; of a run on one node the newest only."""
    complete: _Steps = ()
    """Those of them that every other host has written too, where this host has seen or recorded it."""


def complete_steps(run: Path) -> CompleteSteps:
    """Verify the checkpoints here; the record that all had saved a step stands for files on other hosts.

    Where servers keep the parameters, their files decide: each writes its own after the workers, which may go.
    """
    folder = RunFolder(run)
    config = read_live(folder)
    here, placed = _nodes_here(folder, config), config.placement.servers or config.placement.workers
    files = Checkpoints(folder, config.identity, 1, "server" if config.placement.servers else "rank")
    verified = files.whole_steps([rank for rank, node in enumerate(placed) if node in here])
    whole = tuple(islice(verified, 1 if _nodes(config) == 1 else None)) if here else ()
    committed = {step for node in here for step in Commits(folder, config.identity, node).steps()}
    complete = tuple(step for step in whole if here.issuperset(placed) or step in committed)
    return CompleteSteps(whole=whole, complete=complete)


def _nodes_here(folder: RunFolder, config: Config) -> set[int]:
    """The nodes of whose servers, else workers, this folder holds a record or a checkpoint; a lock is no sign."""

    def nodes(role: FileRole, placed: Sequence[int]) -> set[int]:
        recorded = folder.server_event_files() if role == "server" else folder.event_files()
        saved = {path.name for path in folder.checkpoints.glob(f"step-*/{role}-*.safetensors")}
        return {
            node
            for rank, node in enumerate(placed)
            if rank in recorded or folder.checkpoint(0, rank, role).name in saved
        }

    placement = config.placement
    serving = nodes("server", placement.servers)
    return serving | (nodes("rank", placement.workers) - set(placement.servers))


def newest_safe(hosts: Sequence[CompleteSteps], nodes: int) -> int | None:
    known = [set(host.whole if len(hosts) >= nodes else host.complete) for host in hosts]
    return max(set.intersection(*known) if known else (), default=None)


Ask = Callable[[CompleteSteps], Sequence[CompleteSteps]]


def safe(run: Path, settings: Mapping[str, Any] | None = None, ask: Ask = lambda _: ()) -> list[str]:
    """The newest checkpoint that is safe and the command that goes on from it; other hosts are asked once."""
    try:
        config = read_live(RunFolder(run))
        if config.settings.job.is_script:
            return recorded(run)
        nodes, mine = _nodes(config), complete_steps(run)
    except UsageError as mistake:
        ask(CompleteSteps())
        if not run.exists():
            return [f"Safe: nothing, {short_path(run)} is gone; {AGAIN}"]
        return [f"Safe: nothing that can be resumed: {mistake}."]
    step = newest_safe([mine, *ask(mine)], nodes)
    if step is None:
        return [f"Safe: no checkpoint yet; {AGAIN}"]
    written = RunFolder(run).checkpoint(step, 0).parent.stat().st_mtime
    return [
        f"Safe: checkpoint of step {step}, {show_seconds(max(0.0, time.time() - written))} old.",
        f"Resume: {command('train', resume=short_path(run), **(settings or {}))}",
    ]


def _nodes(config: Config) -> int:
    return len({*config.placement.workers, *config.placement.servers})
