"""The processes of one host: which are planned, how each is started, and what its launcher knows of it."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from paceline.errors import UsageError
from paceline.records.folder import RunFolder
from paceline.runtimes.live.addresses import LOOPBACK
from paceline.runtimes.live.failures import Failure, FailureKind, LaunchKind, killed_by, read_note
from paceline.runtimes.live.heartbeat import Progress, read_progress
from paceline.runtimes.live.process_info import VARIABLE, ProcessInfo, local_servers, proc_stat, show_process
from paceline.runtimes.live.secret import NEEDED
from paceline.runtimes.live.timeouts import HANG, SILENCE, WAIT_FOR_NODES

DEFAULT_PORT = 29500
MOST_WORKERS = 512


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    nodes: int = 1
    workers: int = 2
    """Workers on each node."""
    address: str | None = None
    port: int | None = None
    node_rank: int = 0
    servers: int = 0
    """Servers of the whole run, beside the workers: number k is on node k % nodes."""
    secret_file: Path | None = None
    """The run's secret, where the user gave it; else the launcher of one node makes it."""
    wait: float = WAIT_FOR_NODES
    silence: float = SILENCE
    hang: float = HANG
    resume: Path | None = None
    again: dict[str, object] = field(default_factory=dict)
    """Settings of the command that one which resumes this run must repeat."""
    kind: LaunchKind = "training"

    def __post_init__(self) -> None:
        several = f"a run on {self.nodes} nodes"
        rules = {
            f"{self.nodes} nodes are too few: at least 1 node must train": self.nodes >= 1,
            f"{self.workers} workers are too few: at least 1 worker a node must train": self.workers >= 1,
            f"{self.workers} workers are too many: at most {MOST_WORKERS} processes start on one host; simulate that "
            "many, or spread them over several nodes": self.workers <= MOST_WORKERS,
            f"node rank {self.node_rank} lies outside {self.nodes} nodes: ranks are 0 to {self.nodes - 1}": (
                0 <= self.node_rank < self.nodes
            ),
            f"{several} needs an address, that of the host of node rank 0": self.nodes == 1 or self.address,
            f"{several} {NEEDED}": self.nodes == 1 or self.secret_file,
            f"{self.port} is not a port: it must lie between 1 and 65535": (
                self.port is None or 0 < self.port < 65536
            ),
        }
        for sentence, holds in rules.items():
            if not holds:
                raise UsageError(sentence)

    @property
    def endpoint(self) -> tuple[str, int]:
        return self.address or LOOPBACK, self.port or (DEFAULT_PORT if self.nodes > 1 else 0)

    @property
    def settings(self) -> dict[str, object]:
        """What a command on this host needs to take the same part again."""
        secret: dict[str, object] = {"secret_file": self.secret_file} if self.secret_file else {}
        if self.nodes == 1:
            return secret | self.again
        address, port = self.endpoint
        place = {"nodes": self.nodes, "workers": self.workers, "address": address, "port": port}
        return place | {"node_rank": self.node_rank} | secret | self.again

    def variables(
        self, launch: Path, port: int = 0, secret_file: Path | None = None, free_port: int = 0
    ) -> list[dict[str, str]]:
        """What each process of this host reads as its ``ProcessInfo``; a node's servers come after its workers."""
        sizes = [
            self.workers + len(local_servers(node, self.nodes, self.servers)) for node in range(self.nodes)
        ]
        first, here = sum(sizes[: self.node_rank]), sizes[self.node_rank]
        ours = {
            "launch": launch,
            "launcher": os.getpid(),
            "secret_file": secret_file,
            "again": self.settings,
            "resume": self.resume,
            "servers": self.servers,
            "free_port": free_port,
        }
        shared = {
            "WORLD_SIZE": sum(sizes),
            "LOCAL_WORLD_SIZE": here,
            "GROUP_RANK": self.node_rank,
            "GROUP_WORLD_SIZE": self.nodes,
            "MASTER_ADDR": self.endpoint[0],
            "MASTER_PORT": port,
            VARIABLE: msgspec.json.encode(ours, enc_hook=str).decode(),
        }
        own = [{"RANK": first + local, "LOCAL_RANK": local} for local in range(here)]
        return [{name: str(value) for name, value in {**shared, **ranks}.items()} for ranks in own]


Start = Callable[[Sequence[str], Sequence[Mapping[str, str]]], Iterable[int]]
"""Starts a command once for each environment, in a session of its own and with this process's streams; their ids."""


def start(command: Sequence[str], environs: Sequence[Mapping[str, str]]) -> Iterator[int]:
    for environ in environs:
        yield os.posix_spawn(
            command[0], list(command), environ, setsid=True, setsigdef=(signal.SIGPIPE, signal.SIGXFSZ)
        )


@dataclass(eq=False)
class Process:
    info: ProcessInfo
    pid: int = 0
    """Its process id, which is that of its session and group too; 0 before it is started."""
    ended_at: float | None = None
    code: int | None = None
    """As subprocess has it: negative for a signal."""
    killed: bool = False
    """Whether this launcher ended it by SIGKILL: then it is no cause."""
    judged: bool = False
    """Whether it is known what its failure means for the run."""
    spared: bool = False
    """Whether its failure did not end the run."""
    left_early: bool = False
    """Whether it has ended with exit code 0 while it had still something to do."""

    @property
    def alive(self) -> bool:
        return self.pid > 0 and self.ended_at is None

    def __str__(self) -> str:
        return show_process(self.info.rank, self.info.role, self.info.host)

    @property
    def failed(self) -> bool:
        return bool(self.code) or self.left_early

    @property
    def is_done(self) -> bool:
        return self.code == 0 and self.progress().phase == "done"

    def progress(self) -> Progress:
        return read_progress(self.info)

    def failure(self, failed_at: float | None) -> Failure:
        """Its note, or how it ended where it left none; ``failed_at`` is when the run failed, if it has."""
        code, ended = self.code, self.ended_at
        assert code is not None
        assert ended is not None
        if (note := read_note(self.info)) is not None:
            return note
        # A SIGKILL that this launcher did not send is a cause, however late it is seen: memory may have run out.
        stopped = self.killed or (code == -signal.SIGTERM and ended > (failed_at or ended))
        kind: FailureKind = "stopped" if stopped else "killed" if code < 0 else "exited"
        how = killed_by(code) if code else "exit code 0, before the run was over"
        return Failure.of(self.info, kind, self.progress().step, how, at=ended, code=max(code, 1))

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
    stopped: bool
    ticks: int
    """Processor time that its main thread has used: others may sample or beat while that one hangs."""
    disk: bool = False
    """Whether it waits in the system, as for a disk; not even SIGKILL ends that."""


def activity(pid: int) -> Activity:
    found = proc_stat(pid)
    if not found:
        return Activity(False, 0)
    return Activity(found[0] in "Tt", int(found[11]) + int(found[12]), found[0] == "D")


class HostProcesses:
    def __init__(self, plan: LaunchPlan, folder: Path) -> None:
        self._plan, self._began = plan, time.time()
        infos = map(ProcessInfo.from_environment, plan.variables(folder))
        self.all = [Process(info) for info in infos if info is not None]
        self.workers = [process for process in self.all if process.info.role == "worker"]
        self.serves = len(self.workers) < len(self.all)

    def alive(self) -> list[Process]:
        return [process for process in self.all if process.alive]

    def notes(self) -> dict[Process, Failure]:
        found = {process: read_note(process.info) for process in self.all}
        return {process: note for process, note in found.items() if note is not None}

    def run_folder(self) -> Path | None:
        known = (process.progress().run for process in self.all)
        return next((run for run in known if run is not None), self._plan.resume)

    def trained(self) -> bool:
        return any(process.progress().step for process in self.all)

    def workers_left(self) -> bool:
        return any(worker.alive for worker in self.workers)

    def ended_well(self) -> bool:
        """Whether the run has, as this host knows it, when all of its processes have ended."""
        if not self._plan.servers:
            return not any(process.failed for process in self.all)
        if any(note.kind == "abandoned" for note in self.notes().values()):
            return False
        if any(worker.code == 0 and not worker.left_early for worker in self.workers):
            return True
        if self._plan.nodes > 1:
            return self.serves
        # A worker that joined may have finished what all of the others left.
        run = self.run_folder()
        with suppress(FileNotFoundError):
            return run is not None and RunFolder(run).summary.stat().st_mtime >= self._began
        return False
