"""The outermost layer of a worker or server process: whatever happens inside becomes an exit code and a note."""

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from paceline.errors import Diverged, RunFailed, UsageError, describe, users_line
from paceline.records.folder import RunFolder
from paceline.runtimes.live.failures import Failure, Kind, join_command, sentence, what_next
from paceline.runtimes.live.heartbeat import Heartbeat, write_stack_when_asked
from paceline.runtimes.live.launch_folder import LaunchFolder, read_servers
from paceline.runtimes.live.process_info import ProcessInfo, file_stem, local_servers
from paceline.runtimes.live.safe_checkpoints import safe
from paceline.runtimes.live.signals import StopRequest, die_with, leave
from paceline.runtimes.live.timeouts import PATIENCE
from paceline.runtimes.live.worker.server_comm import Expelled, ServerLost
from paceline.shm import PeerLost

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""A disk that takes no more is no defect of any code: a traceback would say nothing."""
_LOST_PEER = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "gloo/transport",
    "application timeout caused pair closure",
    "remote peer",
    "ncclremoteerror",
    "socket timeout",
)


class HasEnding(Protocol):
    """What work returns."""

    @property
    def ending(self) -> str:
        """Whether it was "interrupted", "wrong" by a check, "missed" its target, or "abandoned"; else all is well."""


Work = Callable[[Heartbeat, StopRequest], HasEnding]
_ENDINGS: dict[str, tuple[Kind, int]] = {
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
    code = _run(info, work)
    if info.launch is not None:
        leave(code)
    return code


def _run(info: ProcessInfo, work: Work) -> int:
    die_with(info.launcher)
    folder = LaunchFolder(info.launch) if info.launch is not None else None
    write_stack_when_asked(info)
    with Heartbeat(info) as heartbeat:
        notes = _Notes(info, heartbeat, folder)
        with StopRequest(notes.end_hard, patience_of(info)) as stopping:
            try:
                ending = work(heartbeat, stopping).ending
            except (Exception, SystemExit) as error:
                code = notes.failed(error)
            else:
                code = notes.ended(*_ENDINGS[ending]) if ending in _ENDINGS else 0
        notes.leave_folder()
        return code


def patience_of(info: ProcessInfo) -> Mapping[int, float]:
    """A worker whose launcher has died leaves a run that goes on with servers elsewhere, and must not stop it."""
    if info.launch is None or not info.servers or _holds_servers(info):
        return PATIENCE
    return {**PATIENCE, signal.SIGTERM: 0.0}


def _holds_servers(info: ProcessInfo) -> bool:
    return len(local_servers(info.node_rank, info.nodes, info.servers)) > 0


def lost_peer(error: BaseException) -> bool:
    """Whether an exception means that another process has ended, and not that something is wrong here."""
    lost = (PeerLost, ServerLost, torch.distributed.DistNetworkError, torch.distributed.DistStoreError)
    if isinstance(error, lost):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError | ConnectionError) and any(sign in text for sign in _LOST_PEER)


@dataclass(frozen=True)
class _Notes:
    """Leaves notes for the launcher; where there is none, or it has gone, they are printed here."""

    info: ProcessInfo
    heartbeat: Heartbeat
    folder: LaunchFolder | None = None

    def failed(self, error: BaseException) -> int:
        match error:
            case UsageError():
                self._tell(self._note("mistake", str(error)))
                return 2
            case Expelled():
                note = self._note("expelled", str(error))
            case Diverged():
                note = self._note("diverged", str(error))
            case RunFailed():  # which says all that there is to say
                note = self._note("error", str(error))
            case _ if lost_peer(error):
                note = self._note("lost-peer", describe(error))
            case OSError() if error.errno in _NO_ROOM:
                note = self._note(
                    "error", f"{error.strerror}: {error.filename or 'its disk'}; make room there"
                )
            case _:
                text = "".join(traceback.format_exception(error))
                note = self._note("error", describe(error), where=users_line(error), text=text)
        self._tell(note)
        return 1

    def ended(self, kind: Kind, code: int) -> int:
        note = self._note(kind, "")
        if not self._leave(note) and kind == "interrupted" and self._speaks() and note.run:
            gone = [self._gone()] if self._launcher_gone() else []
            self._print([*gone, *self._what_is_safe(Path(note.run))])
        return code if self.info.launch is None else 0

    def end_hard(self, signum: int) -> None:
        """Called from a thread, while the main thread may be stuck."""
        self._tell(self._note("stopped", f"could not stop in time after {signal.Signals(signum).name}"))
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

    def _note(self, kind: Kind, message: str, where: str = "", text: str = "") -> Failure:
        info, progress = self.info, self.heartbeat.progress()
        if text and progress.run is not None:
            with suppress(OSError):
                RunFolder(progress.run).failure(file_stem(info.rank, info.role)).write_text(text)
                text = ""
        return Failure(
            rank=info.rank,
            role=info.role,
            host=info.host,
            kind=kind,
            step=progress.step,
            message=message,
            where=where,
            traceback=text,
            run=str(progress.run) if progress.run else None,
        )

    def _tell(self, note: Failure) -> None:
        if self._leave(note):
            return
        saved = f" (traceback in {note.run})" if note.kind == "error" and not note.traceback else ""
        lines = [f"{note.traceback}paceline: {sentence(note)}{saved}"]
        if self._launcher_gone():
            if not self._speaks():
                return
            lines = [self._gone(), *(() if note.kind in ("lost-peer", "stopped") else lines)]
        if note.run and (note.kind in ("stopped", "diverged") or self._launcher_gone()):
            lines += [what_next(line, note) for line in self._what_is_safe(Path(note.run))]
        self._print(lines)

    def _what_is_safe(self, run: Path) -> list[str]:
        """What is safe and how to go on; a host without servers that ends has left a run that goes on elsewhere."""
        info = self.info
        if info.launch is not None and info.servers and not _holds_servers(info):
            return join_command(run, False, read_servers(info.launch), info.secret_file)
        lines = safe(run, info.again)
        if info.launch is None and info.nodes > 1:  # another launcher started all hosts and must do so again
            same = "Resume: give your launcher the same command with"
            lines = [line.replace("Resume: paceline train", same) for line in lines]
        return lines

    def _print(self, lines: list[str]) -> None:
        with suppress(OSError):
            sys.stderr.write("\n".join(lines) + "\n")
            sys.stderr.flush()

    def _speaks(self) -> bool:
        """Whether this is the one of its host's workers that speaks where the launcher cannot."""
        return self.info.role == "worker" and self.info.local_rank == 0

    def _gone(self) -> str:
        return f"paceline: the launcher (process {self.info.launcher}) has gone; its workers end"

    def _launcher_gone(self) -> bool:
        return self.info.launcher is not None and os.getppid() != self.info.launcher

    def _leave(self, note: Failure) -> bool:
        """Leave the note for our launcher; False where there is none, or it has gone."""
        if self.info.launch is None or self._launcher_gone():
            return False
        try:
            note.write(self.info.launch)
        except OSError:
            return False
        return True
