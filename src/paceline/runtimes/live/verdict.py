"""A failure told in the order a person needs it: what happened, where, what is safe, what to type."""

import os
import signal
from pathlib import Path
from shlex import quote

from paceline.records.checkpoints import Checkpoints
from paceline.records.folder import RunFolder
from paceline.runtimes.live.failures import Failure
from paceline.units import show_seconds


def sentence(failure: Failure, *, trains: bool = True) -> str:
    """What happened to which worker, and at which step if it ``trains``."""
    if failure.kind == "mistake":
        return failure.message
    who = f"rank {failure.rank} on {failure.host}"
    if not trains:
        when = "while it measured" if failure.step else "before it measured anything"
    else:
        when = f"at step {failure.step}" if failure.step else "before its first step"
    match failure.kind:
        case "killed" | "exited":
            return f"{who} died {when} ({failure.message})"
        case "error":
            where = f" ({failure.where})" if failure.where else ""
            return f"{who} failed {when}: {failure.message}{where}"
        case "lost-peer":
            return f"{who} lost contact with another worker {when}, and nobody said why ({failure.message})"
        case "lost-host":
            return f"{failure.message}; the workers here were ended {when}"
        case "stopped":
            return f"{who} {failure.message}, {when}"
        case "interrupted":
            return f"{who} was interrupted {when}"
        case "check":
            return f"{who} found a wrong result"


def verdict(
    failure: Failure, *, run: Path | None, noticed: float | None, options: str = "", trains: bool = True
) -> str:
    """The whole story: ``run`` is this host's run folder, ``noticed`` how long the others took to stop.

    ``options`` are what the resuming command needs besides the run folder; what does not train saves nothing.
    """
    others = f"; the others stopped after {show_seconds(noticed)}" if noticed is not None else ""
    lines = [f"{sentence(failure, trains=trains)}{others}."]
    if not trains:
        return "\n".join([*lines, "Start again with the same command."])
    if run is None:
        return "\n".join([*lines, "Safe: nothing was saved yet; start again with the same command."])
    saved = RunFolder(run).failure(failure.rank)
    if failure.kind == "error" and saved.exists():
        lines.append(f"Traceback: {_short(saved)}")
    return "\n".join([*lines, *safe(run, options)])


def safe(run: Path, options: str = "") -> list[str]:
    """The newest checkpoint and the command that goes on from it."""
    newest = Checkpoints(RunFolder(run), keep=1).newest()
    if newest is None:
        return ["Safe: no checkpoint yet; start again with the same command."]
    return [
        f"Safe: checkpoint of step {newest.step}, {show_seconds(newest.age)} old.",
        f"Resume: paceline train --resume {quote(_short(run))}{options}",
    ]


def killed_by(code: int) -> str:
    """An exit code as the system reports it, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by signal {-code}, {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _short(path: Path) -> str:
    near = os.path.relpath(path)
    return str(path) if near.startswith("..") else near
