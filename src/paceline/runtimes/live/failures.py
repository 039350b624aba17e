"""Failures: the notes that processes leave for their launcher, the root cause, and the report for the user."""

import json
import os
import re
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from paceline.errors import UsageError, printable
from paceline.records.folder import RunFolder
from paceline.runtimes.config import read_live
from paceline.runtimes.live.process_info import Role, file_stem
from paceline.runtimes.live.safe_checkpoints import command, short

Kind = Literal[
    "killed",
    "exited",
    "error",
    "mistake",
    "lost-host",
    "lost-peer",
    "stopped",
    "interrupted",
    "check",
    "abandoned",
    "hung",
    "expelled",
    "diverged",
]

_CAUSES: tuple[Kind, ...] = ("killed", "exited", "error", "mistake", "hung", "diverged")
_LONGEST = {"host": 255, "message": 4096, "where": 1024, "traceback": 65_536, "run": 4096}
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """How one worker or server ended early.

    "killed" and "exited" left no note of their own. "error" is an exception, "mistake" one that the user can
    fix, "lost-peer" a collective that failed because another process had ended, "lost-host" a launcher that does
    not answer. "stopped" ended hard after a signal, "interrupted" stopped in agreement with all others;
    "check" ended well, with a result that failed its check; "abandoned" is a server whose workers have all died.
    "hung" stood still and was ended by its launcher, "expelled" was given up by the servers after a long silence.
    "diverged" found a loss or a parameter that is not finite.
    """

    rank: _Count
    role: Role = "worker"
    host: str
    kind: Kind
    step: _Count = 0
    """Steps finished; of a server, updates."""
    message: str = ""
    where: str = ""
    """The last line of the user's own code, "my_job.py:42 in loss"."""
    traceback: str = ""
    run: str | None = None
    """The run folder, where it was known."""
    at: float = field(default_factory=time.time)

    def to_json(self) -> str:
        """As ``read_failure`` reads it; a long traceback keeps its end."""
        return json.dumps(asdict(replace(self, traceback=self.traceback[-_LONGEST["traceback"] :])))

    def write(self, launch: Path) -> None:
        """Leave the note for the launcher; a process's first note stands."""
        path = note_path(launch, self.rank, self.role)
        draft = path.with_suffix(".draft")
        draft.write_text(self.to_json())
        with suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()


def read_failure(text: bytes) -> Failure | None:
    """What ``Failure.to_json`` wrote, safe to print; None for whatever else it is."""
    try:
        failure = msgspec.json.decode(text, type=Failure)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    texts = {name: value for name in _LONGEST if (value := getattr(failure, name)) is not None}
    multiline = ("message", "traceback")
    clean = {name: printable(text, _LONGEST[name], lines=name in multiline) for name, text in texts.items()}
    return replace(failure, **clean)  # type: ignore[arg-type]


def note_path(launch: Path, rank: int, role: Role = "worker") -> Path:
    return launch / f"{file_stem(rank, role)}.failure.json"


def read_note(launch: Path, rank: int, role: Role = "worker") -> Failure | None:
    """A worker's or server's note, or None where it left none."""
    try:
        return read_failure(note_path(launch, rank, role).read_bytes())
    except FileNotFoundError:
        return None


def root_cause(failures: Iterable[Failure]) -> Failure:
    """The failure that the others follow from: the first that has a cause of its own.

    A process that lost a peer, or was asked to stop, never is the cause while another failure is known.
    """

    def order(failure: Failure) -> tuple[int, float]:
        lost = failure.kind in ("lost-peer", "lost-host")
        return 0 if failure.kind in _CAUSES else 1 if lost else 2, failure.at

    return min(failures, key=order)


def sentence(failure: Failure, *, trains: bool = True) -> str:
    """What happened to which worker or server, and how far it had come if it ``trains``."""
    who, when = _who(failure), _when(failure, trains)
    where = f" ({failure.where})" if failure.where else ""
    match failure.kind:
        case "mistake" | "diverged":
            return failure.message
        case "killed" | "exited":
            return f"{who} died {when} ({failure.message})"
        case "error":
            return f"{who} failed {when}: {failure.message}{where}"
        case "lost-peer":
            return f"{who} lost contact with the others {when}, for an unknown reason ({failure.message})"
        case "lost-host":
            return f"{failure.message}; the workers here were ended {when}"
        case "stopped":
            return f"{who} {failure.message}, {when}"
        case "interrupted":
            return f"{who} was interrupted {when}"
        case "check":
            return f"{who} found a wrong result"
        case "abandoned":
            return f"{who} lost its last worker {when}"
        case "hung":
            return f"{who} {failure.message}, {when}{where}"
        case "expelled":
            return f"{who} was given up by the servers {when}: {failure.message}"


def _who(failure: Failure) -> str:
    match failure.role:
        case "worker":
            return f"rank {failure.rank} on {failure.host}"
        case "server":
            return f"server {failure.rank} on {failure.host}"
    return f"the worker on {failure.host} that joined"


def _when(failure: Failure, trains: bool) -> str:
    if not trains:
        return "while it measured" if failure.step else "before it measured anything"
    if failure.role == "server":
        return f"after {failure.step} updates" if failure.step else "before its first update"
    return f"at step {failure.step}" if failure.step else "before its first step"


def failure_report(
    failure: Failure, *, run: Path | None, others: str = "", safe: Sequence[str] = (), trains: bool = True
) -> str:
    """What happened, where, what is safe, what to type, in this order.

    ``run`` is this host's run folder, ``others`` what became of the other processes, ``safe`` what is safe and what to
    type; a command that does not train saves nothing.
    """
    lines = [f"{sentence(failure, trains=trains)}{others}."]
    if not trains:
        return "\n".join([*lines, what_next("Start again with the same command.", failure)])
    if run is None:
        nothing = "Safe: nothing was saved yet; start again with the same command."
        return "\n".join([*lines, what_next(nothing, failure)])
    saved = RunFolder(run).failure(file_stem(failure.rank, failure.role))
    if failure.kind == "error" and saved.exists():
        lines.append(f"Traceback: {short(saved)}")
    return "\n".join([*lines, *(what_next(line, failure) for line in safe)])


def what_next(line: str, failure: Failure) -> str:
    """A line on what is safe or what to type; where the same command would fail again, it says what must change."""
    if failure.kind == "diverged" and line.startswith("Resume:"):
        return "Resuming would repeat these steps; start a new run with other settings."
    if failure.kind in ("error", "diverged") and line.lower().endswith("start again with the same command."):
        if failure.kind == "error":
            return f"{line.removesuffix('.')} when the error is repaired."
        return re.sub("with the same command.$", "with other settings, such as a lower learning rate.", line)
    return line


def join_command(
    run: Path | None, near: bool, endpoints: Sequence[str], secret_file: Path | None
) -> list[str]:
    """How a worker comes back to a run that goes on: ``near`` server 0 by its folder, else at its address."""
    try:
        path = read_live(RunFolder(run)).settings.job.path if run else None
    except UsageError:
        path = None
    job = {"job": path} if path else {}  # the user's own code, which runs only where the user names it
    if run is not None and near:
        return [f"Join: {command('train', join=short(run), **job)}"]
    if not endpoints or secret_file is None:
        return []
    where = endpoints[0].removeprefix("tcp://")
    return [f"Join: {command('train', join=where, secret_file=str(secret_file), **job)}"]


def killed_by(code: int) -> str:
    """An exit code as subprocess reports it, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by signal {-code}, {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
