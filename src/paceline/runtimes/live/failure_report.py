"""A failure told in the order a person needs it: what happened, where, what is safe, what to type."""

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from paceline.errors import UsageError
from paceline.records.folder import RunFolder
from paceline.runtimes.config import read_settings
from paceline.runtimes.live.failures import Failure
from paceline.runtimes.live.process_info import file_stem
from paceline.runtimes.live.safe_checkpoints import short


def sentence(failure: Failure, *, trains: bool = True) -> str:
    """What happened to which worker or server, and how far it had come if it ``trains``."""
    if failure.kind == "mistake":
        return failure.message
    who, when = _who(failure), _when(failure, trains)
    match failure.kind:
        case "killed" | "exited":
            return f"{who} died {when} ({failure.message})"
        case "error":
            where = f" ({failure.where})" if failure.where else ""
            return f"{who} failed {when}: {failure.message}{where}"
        case "lost-peer":
            return f"{who} lost contact with the others {when}, and nobody said why ({failure.message})"
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
            where = f" ({failure.where})" if failure.where else ""
            return f"{who} {failure.message}, {when}{where}"
        case "expelled":
            return f"{who} was given up by the servers {when}: {failure.message}"
        case "diverged":
            return failure.message


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


def verdict(
    failure: Failure, *, run: Path | None, others: str = "", safe: Sequence[str] = (), trains: bool = True
) -> str:
    """The whole story: ``run`` is this host's run folder, ``others`` what became of the others.

    ``safe`` says what is safe there and what to type; what does not train saves nothing.
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
    """A line on what is safe or what to type, for what comes again with the same command: its cause must go first."""
    if failure.kind == "diverged" and line.startswith("Resume:"):
        return "Resuming would repeat these steps; start a new run with other settings."
    if failure.kind in ("error", "diverged") and line.lower().endswith("start again with the same command."):
        if failure.kind == "error":
            return f"{line.removesuffix('.')} when the error is repaired."
        return re.sub("with the same command.$", "with other settings, such as a lower --lr.", line)
    return line


def join(run: Path | None, near: bool, endpoints: Sequence[str], secret_file: Path | None) -> list[str]:
    """The command that comes back to a run that goes on: ``near`` server 0 by its folder, else at its address."""
    if run is not None and near:
        return [f"Join: paceline train --join {quote(short(run))}{_job(run)}"]
    if not endpoints or secret_file is None:
        return []
    where = endpoints[0].removeprefix("tcp://")
    return [f"Join: paceline train --join {where} --secret-file {quote(str(secret_file))}{_job(run)}"]


def _job(run: Path | None) -> str:
    """The user's own code, which a worker that joins runs only where its user names it."""
    try:
        path = read_settings(RunFolder(run)).job.path if run else None
    except UsageError:
        path = None
    return f" --job {quote(path)}" if path else ""


def killed_by(code: int) -> str:
    """An exit code as the system reports it, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by signal {-code}, {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
