"""The processes of one host: how each is started, and what its launcher knows of it."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from paceline.records.folder import RunFolder
from paceline.runtimes.live.failures import Failure, killed_by, read_note
from paceline.runtimes.live.heartbeat import Progress, read_progress
from paceline.runtimes.live.launcher.plan import LaunchPlan
from paceline.runtimes.live.process_info import Role, host_name

Start = Callable[[Sequence[str], Sequence[Mapping[str, str]]], Iterable[int]]
"""Starts a command once for each environment, in a session of its own and with this process's streams; their ids."""


def start(command: Sequence[str], environs: Sequence[Mapping[str, str]]) -> Iterator[int]:
    for environ in environs:
        yield os.posix_spawn(
            command[0], list(command), environ, setsid=True, setsigdef=(signal.SIGPIPE, signal.SIGXFSZ)
        )


@dataclass(eq=False)
class Process:
    role: Role
    rank: int
    pid: int = 0
    """Its process id, which is that of its session and group too; 0 before it is started."""
    ended_at: float | None = None
    """In seconds since the epoch."""
    code: int | None = None
    """As subprocess has it: negative for a signal."""
    killed: bool = False
    """Whether this launcher ended it by SIGKILL: then it is no cause."""
    spared: bool = False
    """Whether its failure did not end the run."""

    @property
    def alive(self) -> bool:
        return self.pid > 0 and self.ended_at is None

    def __str__(self) -> str:
        return f"{'server' if self.role == 'server' else 'rank'} {self.rank} on {host_name()}"

    def reap(self) -> bool:
        """Whether it has ended; the processes that a failed one has started end with it."""
        status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if status is None:
            return False
        if status.si_code != os.CLD_EXITED or status.si_status:
            self.send(signal.SIGKILL)  # its id is still taken, so the group cannot be another's
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.ended_at = time.time()
        return True

    def send(self, signum: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)

    def kill(self) -> None:
        """End it at once, for a reason that is not its own failure."""
        self.killed = True
        self.send(signal.SIGKILL)


class Activity(NamedTuple):
    """What the system says of a process."""

    stopped: bool
    ticks: int
    """Processor time that its main thread has used: others may sample or beat while that one hangs."""
    disk: bool = False
    """Whether it waits in the system, as for a disk; not even SIGKILL ends that."""


def activity(pid: int) -> Activity:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/stat").read_text()
    except OSError:
        return Activity(False, 0)
    state, *rest = text.rpartition(")")[2].split()
    return Activity(state in "Tt", int(rest[10]) + int(rest[11]), state == "D")


class HostProcesses:
    def __init__(self, plan: LaunchPlan, folder: Path) -> None:
        self._plan, self._folder, self._began = plan, folder, time.time()
        self.all = [Process(role, rank) for role, rank in plan.processes]
        self.workers = [process for process in self.all if process.role == "worker"]
        self.serves = len(self.workers) < len(self.all)

    def alive(self) -> list[Process]:
        return [process for process in self.all if process.alive]

    def notes(self) -> dict[Process, Failure]:
        found = {process: read_note(self._folder, process.rank, process.role) for process in self.all}
        return {process: note for process, note in found.items() if note is not None}

    def progress(self, process: Process) -> Progress:
        return read_progress(self._folder, process.rank, process.role)

    def run_folder(self) -> Path | None:
        known = map(self.progress, self.all)
        return next((progress.run for progress in known if progress.run is not None), self._plan.resume)

    def begun(self) -> bool:
        """Whether every worker that is left here has finished a step, so that there is something to save."""
        return all(self.progress(worker).at for worker in self.workers if worker.alive)

    def trained(self) -> bool:
        return any(self.progress(process).step for process in self.all)

    def workers_left(self) -> bool:
        return any(worker.alive for worker in self.workers)

    def over(self) -> bool:
        if any(process.code == 0 for process in self.all):
            return True
        return self._plan.servers > 0 and self._plan.nodes == 1 and not self.workers_left()

    def ended_well(self) -> bool:
        """Whether a run with servers has, as this host knows it, when all of its processes have ended."""
        if any(note.kind == "abandoned" for note in self.notes().values()):
            return False
        if any(worker.code == 0 for worker in self.workers):
            return True
        if self._plan.nodes > 1:
            return self.serves
        # A worker that joined may have finished what all of the others left.
        run = self.run_folder()
        with suppress(FileNotFoundError):
            return run is not None and RunFolder(run).summary.stat().st_mtime >= self._began
        return False

    def failure(self, process: Process, failed_at: float | None) -> Failure | None:
        """How a process failed: as its note says, else as its exit code tells; the run failed at ``failed_at``."""
        note, code = read_note(self._folder, process.rank, process.role), process.code
        if note is not None or code is None:
            return note
        ended = process.ended_at or 0.0
        # A SIGKILL that this launcher did not send is a cause, however late it is seen: memory may have run out.
        stopped = process.killed or (code == -signal.SIGTERM and ended > (failed_at or ended))
        return Failure(
            rank=process.rank,
            role=process.role,
            host=host_name(),
            kind="stopped" if stopped else "killed" if code < 0 else "exited",
            step=self.progress(process).step,
            message=killed_by(code),
            at=ended,
        )
