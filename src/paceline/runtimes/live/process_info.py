"""What a worker or server process knows of itself: its rank, its host and who launched it."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from paceline.errors import UsageError
from paceline.runtimes.live.slurm import slurm_variables

VARIABLE = "PACELINE_PROCESS"
"""Where our launcher says, as JSON, what torchrun's variables do not."""
SECRET_FILE = "PACELINE_SECRET_FILE"  # noqa: S105  the name of a variable
"""Where the user names the file of the run's secret, if another launcher starts the processes."""
Role = Literal["worker", "server", "joined"]
"""What a process does; one that "joined" is a worker whose rank its launcher does not know."""


def host_name() -> str:
    return socket.gethostname()


@dataclass(frozen=True, kw_only=True)
class ProcessInfo:
    """One worker's rank and host among all workers, as its launcher has set it; or one server's among all servers."""

    role: Role = "worker"
    rank: int = 0
    workers: int = 1
    """Of the whole run, without the servers."""
    servers: int = 0
    local_rank: int = 0
    local_workers: int = 1
    """On this host; for a server, the servers on this host."""
    node_rank: int = 0
    nodes: int = 1
    host: str = field(default_factory=host_name)
    address: str = "127.0.0.1"
    port: int = 0
    known_by: str = "RANK"
    """The variable in which the launcher says the rank."""
    launch: Path | None = None
    """The launch folder, for heartbeats and failure notes; None where paceline is not the launcher."""
    launcher: int | None = None
    secret_file: Path | None = None
    """Where the run's secret is; None where the processes of one host agree on one."""
    secret_of: int | None = None
    """For which process they agree on it; None is their parent."""
    again: dict[str, Any] = field(default_factory=dict, hash=False)
    """The settings of a command on this host that resumes the run."""
    resume: Path | None = None
    """The run folder that the run goes on in, where our launcher has chosen it."""
    free_port: int = 0
    """A port at ``address`` that the run itself does not use, as a script's own process group may."""

    def __post_init__(self) -> None:
        for value, name, size, of in (
            (self.rank, "RANK", self.servers if self.role == "server" else self.workers, "WORLD_SIZE"),
            (self.local_rank, "LOCAL_RANK", self.local_workers, "LOCAL_WORLD_SIZE"),
            (self.node_rank, "GROUP_RANK", self.nodes, "GROUP_WORLD_SIZE"),
        ):
            if not 0 <= value < size:
                raise UsageError(
                    f"{name}={value} lies outside {of}={size}: the launcher must count ranks from 0"
                )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "ProcessInfo | None":
        """Read torchrun's variables, which our launcher sets too, and ours, or Slurm's; None without a launcher."""
        known_by = "RANK"
        if "RANK" not in environ:
            if not (slurm := slurm_variables(environ)):
                return None
            environ, known_by = {**environ, **slurm}, "SLURM_PROCID"
        for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            if not environ.get(name):
                raise UsageError(
                    f"RANK is set and {name} is not: start workers with 'paceline train' or torchrun, or unset RANK"
                )
        rank, workers = _count(environ, "RANK"), _count(environ, "WORLD_SIZE")
        local_rank = _count(environ, "LOCAL_RANK", 0)
        local_workers = _count(environ, "LOCAL_WORLD_SIZE", local_rank + 1)
        node_rank = _count(environ, "GROUP_RANK", rank // max(local_workers, 1))
        counted = cls(
            rank=rank,
            workers=workers,
            local_rank=local_rank,
            local_workers=local_workers,
            node_rank=node_rank,
            nodes=_count(environ, "GROUP_WORLD_SIZE", max(node_rank + 1, workers // max(local_workers, 1))),
            address=environ["MASTER_ADDR"],
            port=_count(environ, "MASTER_PORT"),
            secret_file=named_secret_file(environ),
            known_by=known_by,
        )
        ours = msgspec.json.decode(environ.get(VARIABLE, "{}"))
        paths = {name: Path(ours[name]) for name in ("launch", "secret_file", "resume") if ours.get(name)}
        return replace(counted, **{**ours, **paths, "servers": 0}).with_servers(ours.get("servers", 0))

    def file(self, suffix: str) -> Path:
        """The file of the launch folder by which this process tells its launcher something."""
        assert self.launch is not None
        return self.launch / f"{file_stem(self.rank, self.role)}.{suffix}"

    def with_servers(self, servers: int) -> "ProcessInfo":
        """The same process where ``servers`` of all processes are servers.

        Server k is on node k % nodes, and a node's servers come after its workers. Ranks must be numbered node by node.
        """
        if servers == 0:
            return self
        _check_size(self, servers)
        mine = local_servers(self.node_rank, self.nodes, servers)
        local_workers = self.local_workers - len(mine)
        index = self.local_rank - local_workers
        known = replace(self, workers=self.workers - servers, servers=servers, rank=0, local_rank=0)
        if index >= 0:
            return replace(known, role="server", rank=mine[index], local_rank=index, local_workers=len(mine))
        before = sum(len(local_servers(node, self.nodes, servers)) for node in range(self.node_rank))
        return replace(
            known, rank=self.rank - before, local_rank=self.local_rank, local_workers=local_workers
        )


def named_secret_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    return Path(environ[SECRET_FILE]).absolute() if environ.get(SECRET_FILE) else None


def file_stem(rank: int, role: Role = "worker") -> str:
    if role == "joined":
        return f"joined-{host_name()}-{os.getpid()}"
    return f"{'server' if role == 'server' else 'rank'}-{rank}"


def show_process(rank: int, role: Role, host: str) -> str:
    if role == "joined":
        return f"the worker on {host} that joined"
    return f"{'server' if role == 'server' else 'rank'} {rank} on {host}"


def local_servers(node_rank: int, nodes: int, servers: int) -> range:
    return range(node_rank, servers, nodes)


def proc_stat(process: int) -> list[str]:
    """What Linux says of a process's main thread, from its state on (field 3 of proc(5)); empty if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{process}/task/{process}/stat").read_text().rpartition(")")[2].split()
    return []


def job_roots(info: ProcessInfo) -> list[int]:
    """The process that has started all of this host's workers and servers, where it is no other program's."""
    if info.launcher is not None:
        return [info.launcher]
    return [os.getppid()] if info.workers > 1 or info.servers else []


def _check_size(info: ProcessInfo, servers: int) -> None:
    here = len(local_servers(info.node_rank, info.nodes, servers))
    more = "start more processes, or use fewer servers"
    if info.workers <= servers:
        raise UsageError(f"WORLD_SIZE={info.workers} leaves no worker beside {servers} servers; {more}")
    if info.local_workers < here:
        raise UsageError(
            f"LOCAL_WORLD_SIZE={info.local_workers} is too small for the {here} servers of this host; {more}"
        )
    if info.launch is None and info.rank != info.node_rank * info.local_workers + info.local_rank:
        raise UsageError(
            f"RANK={info.rank} is not LOCAL_RANK={info.local_rank} of host {info.node_rank} with "
            f"{info.local_workers} processes per host: with servers, the launcher must count ranks host by host"
        )


def _count(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise UsageError(f"{name}={text} is not a number: the launcher must set it to a whole number from 0")
    return int(text)
