"""A worker's outermost layer: whatever happens inside becomes an exit code and a note of what happened."""

import atexit
import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from paceline.errors import Diverged, RunFailed, UsageError, describe, users_line
from paceline.records.folder import RunFolder
from paceline.runtimes.live.failure_report import join, sentence, what_next
from paceline.runtimes.live.failures import Failure, Kind, lost_peer
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.launch_folder import LaunchFolder, read_servers
from paceline.runtimes.live.process_info import ProcessInfo, file_stem, local_servers
from paceline.runtimes.live.safe_checkpoints import safe
from paceline.runtimes.live.signals import StopRequest, die_with
from paceline.runtimes.live.stacks import write_stack_when_asked
from paceline.runtimes.live.timeouts import PATIENCE
from paceline.runtimes.live.worker.server_client import Expelled
from paceline.shm import InvalidCall, StoreTampered


class Ended(Protocol):
    """What work gives back."""

    @property
    def ending(self) -> str:
        """Whether it was "interrupted", "wrong" by a check, "missed" its target, or "abandoned"; else all is well."""


Work = Callable[[Heartbeat, StopRequest], Ended]


def run_guarded(place: ProcessInfo, work: Work) -> int:
    """Do a worker's work and return its exit code.

    0 is done, 1 failed, 2 a user's mistake, 3 a failed check, 130 interrupted. The launcher is told through notes in
    the launch folder and tells the user. Under another launcher nobody reads notes, so each worker prints its own
    cause. Interrupted workers, and those with a failed check, return 0 to our own launcher: it would take anything
    else for a failure and end the others while they still save. Under our own launcher this does not return but ends
    the process.
    """
    code = _run(place, work)
    if place.launch is not None:
        leave(code)
    return code


def leave(code: int) -> NoReturn:
    """End the process without taking torch apart, which costs a second and may stick after a failure.

    Exit handlers run and the standard streams are flushed; other threads are not waited for.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _run(place: ProcessInfo, work: Work) -> int:
    die_with(place.launcher)
    folder = LaunchFolder(place.launch) if place.launch is not None else None
    write_stack_when_asked(place)
    with Heartbeat(place) as heartbeat:
        notary = _Notary(place, heartbeat, folder)
        code = _work(notary, place, heartbeat, work)
        notary.leave_folder()
        return code


def _work(notary: "_Notary", place: ProcessInfo, heartbeat: Heartbeat, work: Work) -> int:
    with StopRequest(notary.end_hard, _patience(place)) as stopping:
        try:
            ending = work(heartbeat, stopping).ending
        except (Exception, SystemExit) as error:
            return notary.failed(error)
    match ending:
        case "interrupted":
            return notary.ended("interrupted", 130)
        case "wrong" | "missed":
            return notary.ended("check", 3)
        case "abandoned":
            return notary.ended("abandoned", 1)
    return 0


def _patience(place: ProcessInfo) -> Mapping[int, float]:
    """A worker whose launcher has died leaves a run that goes on with servers elsewhere, and must not stop it."""
    held = local_servers(place.node_rank, place.nodes, place.servers)
    if place.launch is None or not place.servers or held:
        return PATIENCE
    return {**PATIENCE, signal.SIGTERM: 0.0}


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""A disk that takes no more is no defect of any code: a traceback would say nothing."""


@dataclass(frozen=True)
class _Notary:
    place: ProcessInfo
    heartbeat: Heartbeat
    folder: LaunchFolder | None = None

    def failed(self, error: BaseException) -> int:
        if isinstance(error, UsageError | InvalidCall):
            self._tell(self._note("mistake", str(error)))
            return 2
        if isinstance(error, Expelled):
            self._tell(self._note("expelled", str(error)))
            return 1
        if isinstance(error, Diverged):
            self._tell(self._note("diverged", str(error)))
            return 1
        if isinstance(error, RunFailed | StoreTampered):  # which says all that there is to say
            self._tell(self._note("error", str(error)))
            return 1
        if lost_peer(error):
            self._tell(self._note("lost-peer", describe(error)))
            return 1
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            self._tell(
                self._note("error", f"{error.strerror}: {error.filename or 'its disk'}; make room there")
            )
            return 1
        text = "".join(traceback.format_exception(error))
        note = self._note("error", describe(error), where=users_line(error), text=text)
        self._tell(note)
        return 1

    def ended(self, kind: Kind, code: int) -> int:
        note = self._note(kind, "")
        if not self._leave(note) and kind == "interrupted" and self._speaks() and note.run:
            gone = [self._gone()] if self._launcher_gone() else []
            self._print([*gone, *self._way_back(Path(note.run))])
        return code if self.place.launch is None else 0

    def end_hard(self, signum: int) -> None:
        """Called from a thread, while the main thread may be stuck."""
        self._tell(self._note("stopped", f"could not stop in time after {signal.Signals(signum).name}"))
        self.leave_folder()
        os._exit(130 if signum == signal.SIGINT else 1)

    def _note(self, kind: Kind, message: str, where: str = "", text: str = "") -> Failure:
        pulse = self.heartbeat.pulse()
        who = file_stem(self.place.rank, self.place.role)
        if text and pulse.run is not None and _save(RunFolder(pulse.run).failure(who), text):
            text = ""
        return Failure(
            rank=self.place.rank,
            role=self.place.role,
            host=self.place.host,
            kind=kind,
            step=pulse.step,
            message=message,
            where=where,
            traceback=text,
            run=str(pulse.run) if pulse.run else None,
        )

    def _tell(self, note: Failure) -> None:
        """Leave it to the launcher to tell; where there is none, tell it here."""
        if self._leave(note):
            return
        saved = f" (traceback in {note.run})" if note.kind == "error" and not note.traceback else ""
        lines = [f"{note.traceback}paceline: {sentence(note)}{saved}"]
        if self._launcher_gone():
            if not self._speaks():
                return
            lines = [self._gone(), *(() if note.kind in ("lost-peer", "stopped") else lines)]
        if note.run and (note.kind in ("stopped", "diverged") or self._launcher_gone()):
            lines += [what_next(line, note) for line in self._way_back(Path(note.run))]
        self._print(lines)

    def _way_back(self, run: Path) -> list[str]:
        """What is safe and how to go on; a host without servers that goes has left a run that lives elsewhere."""
        held = local_servers(self.place.node_rank, self.place.nodes, self.place.servers)
        if self.place.launch is not None and self.place.servers and not held:
            return join(run, False, read_servers(self.place.launch), self.place.secret_file)
        lines = safe(run, self.place.options)
        if self.place.launch is None and self.place.nodes > 1:  # who started all hosts must do so again
            same = "Resume: give your launcher the same command with"
            lines = [line.replace("Resume: paceline train", same) for line in lines]
        return lines

    def _print(self, lines: list[str]) -> None:
        with suppress(OSError):
            sys.stderr.write("\n".join(lines) + "\n")
            sys.stderr.flush()

    def _speaks(self) -> bool:
        """Whether this is the one of its host's workers that speaks where the launcher cannot."""
        return self.place.role == "worker" and self.place.local_rank == 0

    def _gone(self) -> str:
        return f"paceline: the launcher (process {self.place.launcher}) has gone; its workers end"

    def _launcher_gone(self) -> bool:
        return self.place.launcher is not None and os.getppid() != self.place.launcher

    def _leave(self, note: Failure) -> bool:
        """Leave the note for our launcher; False where there is none, or it has gone."""
        if self.place.launch is None or self._launcher_gone():
            return False
        try:
            note.write(self.place.launch)
        except OSError:
            return False
        return True

    def leave_folder(self) -> None:
        """The last one to go removes the launch folder, where the launcher has not lived to do so."""
        if self.folder is None:
            return
        if self._launcher_gone():
            self.folder.remove_if_last()
        else:
            self.folder.close()


def _save(path: Path, text: str) -> bool:
    try:
        path.write_text(text)
    except OSError:
        return False
    return True
