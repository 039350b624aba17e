"""The outermost layer of a worker or server process: whatever happens inside becomes an exit code and a note."""

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol

import torch

from paceline.errors import (
    Diverged,
    RunFailed,
    ScriptExited,
    UsageError,
    describe,
    is_users,
    say_on_stderr,
    users_line,
)
from paceline.records.folder import RunFolder, folder_lost
from paceline.runtimes.live.failures import Failure, FailureKind, join_command, safe, sentence, what_next
from paceline.runtimes.live.heartbeat import Heartbeat, write_stack_when_asked
from paceline.runtimes.live.launch_folder import LaunchFolder, read_servers
from paceline.runtimes.live.process_info import ProcessInfo, file_stem, local_servers
from paceline.runtimes.live.signals import StopRequest, die_with, leave
from paceline.runtimes.live.timeouts import PATIENCE
from paceline.runtimes.live.worker.server_comm import Expelled, ServerLost
from paceline.shm import PeerLost

_KINDS: dict[type, FailureKind] = {
    UsageError: "mistake",
    Expelled: "expelled",
    Diverged: "diverged",
    ScriptExited: "exited",
    RunFailed: "error",
}
"""Exceptions whose message is the whole cause."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""A disk that takes no more is no defect of any code: a traceback would say nothing."""
_LOST_BACKEND = (
    "gloo/transport",
    "application timeout caused pair closure",
    "remote peer",
    "ncclremoteerror",
)
"""What only a collective says, wherever it was called."""
_LOST_CONNECTION = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "socket timeout",
)
"""What any connection says, also one of the script's own."""
_EXCHANGES = ("paceline", "torch.distributed")
"""The packages whose connections are those between workers."""


class HasEnding(Protocol):
    @property
    def ending(self) -> str:
        """Whether it was "interrupted", "wrong" by a check, "missed" its target, or "abandoned"; else all is well.

        "unused" is a script that has never joined the run.
        """


UNUSED = "unused"
Work = Callable[[Heartbeat, StopRequest], HasEnding]
_ENDINGS: dict[str, tuple[FailureKind, int]] = {
    "interrupted": ("interrupted", 130),
    "wrong": ("check", 3),
    "missed": ("check", 3),
    "abandoned": ("abandoned", 1),
}


def run_guarded(info: ProcessInfo, work: Work) -> int:
    """Do a process's work and return its exit code.

    0 is done, 1 failed, 2 a user's mistake, 3 a failed check, 130 interrupted. The launcher reads notes in the launch
    folder and tells the user. Another launcher reads no notes, so each worker prints its own cause. Interrupted
    workers, and those with a failed check, return 0 to our own launcher: it would take anything else for a failure and
    end the others while they still save. Under our own launcher this does not return but ends the process.
    """
    die_with(info.launcher)
    write_stack_when_asked(info)
    heartbeat = Heartbeat(info)
    notes = _Notes(info, heartbeat, LaunchFolder(info.launch) if info.launch else None)
    with StopRequest(notes.end_hard, patience_of(info)) as stopping:
        try:
            ending = work(heartbeat, stopping).ending
            kind, code = _ENDINGS.get(ending, (None, 0))
            if kind:
                notes.tell(notes.note(kind))
            code = 0 if info.launch else code
            if ending != UNUSED:
                heartbeat.enter("done")
        except BaseException as error:
            note = notes.of(error)
            notes.tell(note)
            code = _code_of(error)
    notes.leave_folder()
    if info.launch is not None:
        leave(code)
    return code


def _code_of(error: BaseException) -> int:
    return 2 if isinstance(error, UsageError) else error.code if isinstance(error, RunFailed) else 1


def tell_uncaught(error: BaseException, info: ProcessInfo, heartbeat: Heartbeat) -> int | None:
    """Tell what has ended a script that nobody guards, and return its exit code.

    None for anything but a mistake, a run that failed and a worker that is gone: of that Python shows the traceback.
    """
    if not isinstance(error, (*_KINDS,)) and not lost_peer(error):
        return None
    notes = _Notes(info, heartbeat)
    say_on_stderr(sentence(notes.of(error)))
    return _code_of(error)


def patience_of(info: ProcessInfo) -> Mapping[int, float]:
    """A worker whose launcher has died leaves a run that goes on with servers elsewhere, and must not stop it."""
    return {**PATIENCE, signal.SIGTERM: 0.0} if _served_elsewhere(info) else PATIENCE


def _served_elsewhere(info: ProcessInfo) -> bool:
    here = local_servers(info.node_rank, info.nodes, info.servers)
    return info.launch is not None and info.servers > 0 and not here


def lost_peer(error: BaseException) -> bool:
    """Whether an exception means that another process has ended, and not that something is wrong here."""
    lost = (PeerLost, ServerLost, torch.distributed.DistNetworkError, torch.distributed.DistStoreError)
    if isinstance(error, lost):
        return True
    if not isinstance(error, RuntimeError | ConnectionError):
        return False
    text, script = str(error).lower(), _in_script(error)
    if any(sign in text for sign in _LOST_BACKEND):
        return True
    return any(sign in text for sign in _LOST_CONNECTION) and (script is None or _in_exchange(script))


def _in_exchange(script: TracebackType) -> bool:
    """Whether the last of the user's own frames called what exchanges between workers."""
    found = False
    for frame, _ in traceback.walk_tb(script):
        if frame.f_globals.get("__name__") == "__main__" or is_users(frame.f_code.co_filename):
            found = False
        else:
            module = str(frame.f_globals.get("__name__"))
            found = found or any(f"{module}.".startswith(f"{one}.") for one in _EXCHANGES)
    return found


def _in_script(error: BaseException) -> TracebackType | None:
    """The traceback from a user's own script on; None where there is none."""
    found = error.__traceback__
    while found and not (
        found.tb_frame.f_code.co_name == "<module>" and found.tb_frame.f_globals.get("__name__") == "__main__"
    ):
        found = found.tb_next
    return found


def _formatted(error: BaseException) -> str:
    """As Python does for the user's script, which has no frame where it cannot be compiled."""
    begins = _in_script(error)
    if begins is None and isinstance(error, SyntaxError):
        return "".join(traceback.format_exception_only(error))
    return "".join(traceback.format_exception(type(error), error, begins or error.__traceback__))


@dataclass(frozen=True)
class _Notes:
    """Leaves notes for the launcher; where there is none, or it has gone, they are printed here."""

    info: ProcessInfo
    heartbeat: Heartbeat
    folder: LaunchFolder | None = None

    def of(self, error: BaseException) -> Failure:
        for known, kind in _KINDS.items():
            if isinstance(error, known):
                at = f" ({users_line(error)})" if kind == "mistake" and _in_script(error) else ""
                return replace(self.note(kind, f"{error}{at}"), code=_code_of(error))
        if lost_peer(error):
            return self.note("lost-peer", describe(error))
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            place = error.filename or self.heartbeat.progress().run or "the disk, or what takes its output"
            return self.note("error", f"{error.strerror}: {place}; make room there")
        run = self.heartbeat.progress().run
        if isinstance(error, FileNotFoundError) and run is not None and not run.exists():
            return self.note("error", folder_lost(run))
        return self.note("error", describe(error), where=users_line(error), text=_formatted(error))

    def note(self, kind: FailureKind, message: str = "", where: str = "", text: str = "") -> Failure:
        info, progress = self.info, self.heartbeat.progress()
        if text and progress.run is not None:
            with suppress(OSError):
                path = RunFolder(progress.run).failure(file_stem(info.rank, info.role))
                path.write_text(text, errors="backslashreplace")
                text = ""
        run = str(progress.run) if progress.run else ""
        return Failure.of(info, kind, progress.step, message, where=where, traceback=text, run=run)

    def tell(self, note: Failure) -> None:
        gone = self._launcher_gone()
        if self.info.launch is not None and not gone:
            with suppress(OSError):
                note.write(self.info)
                return
        ended = note.kind in ("interrupted", "check", "abandoned")
        if (gone or ended) and (self.info.role != "worker" or self.info.local_rank != 0):
            return  # the first worker of the host speaks for all
        lines = []
        if gone:
            lines.append(f"paceline: the launcher (process {self.info.launcher}) has gone; its workers end")
        if not ended and not (gone and note.kind in ("lost-peer", "stopped")):
            in_folder = note.kind == "error" and note.run and not note.traceback
            saved = f" (traceback in {note.run})" if in_folder else ""
            lines.append(f"{note.traceback}paceline: {sentence(note)}{saved}")
        if note.run and (gone or note.kind in ("stopped", "diverged", "interrupted")):
            lines += [what_next(line, note) for line in self._what_is_safe(Path(note.run))]
        with suppress(OSError):
            sys.stderr.write("".join(f"{line}\n" for line in lines))
            sys.stderr.flush()

    def _what_is_safe(self, run: Path) -> list[str]:
        info = self.info
        if info.launch is not None and _served_elsewhere(info):
            return join_command(run, False, read_servers(info.launch), info.secret_file)
        lines = safe(run, info.again)
        if info.launch is None and info.nodes > 1:  # another launcher started all hosts and must do so again
            same = "Resume: give your launcher the same command with"
            lines = [line.replace("Resume: paceline train", same) for line in lines]
        return lines

    def end_hard(self, signum: int) -> None:
        self.tell(self.note("stopped", f"could not stop in time after {signal.Signals(signum).name}"))
        self.leave_folder()
        os._exit(130 if signum == signal.SIGINT else 1)

    def leave_folder(self) -> None:
        """The last process to leave removes the launch folder, where the launcher has died before it could."""
        if self.folder is None:
            return
        if self._launcher_gone():
            self.folder.remove_if_last()
        else:
            self.folder.close()

    def _launcher_gone(self) -> bool:
        return self.info.launcher is not None and os.getppid() != self.info.launcher
