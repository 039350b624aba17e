"""The processes of one host: how each is started, and how one looks at it from outside."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from paceline.runtimes.live.launcher.plan import Launch
from paceline.runtimes.live.process_info import Role, host_name, local_servers


class Child(Protocol):
    """A child of this process."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def wait(self) -> int:
        """Its exit code once it has ended: negative for a signal."""


Start = Callable[[Sequence[str], Sequence[Mapping[str, str]]], Iterator[Child]]
"""Starts a command once for each environment, in a session of its own and with this process's streams."""


def start(command: Sequence[str], environs: Sequence[Mapping[str, str]]) -> Iterator[Child]:
    """Start new programs."""
    return (subprocess.Popen(command, env=environ, start_new_session=True) for environ in environs)


@dataclass(eq=False)
class Process:
    """One worker or server of this host, and what has become of it."""

    role: Role
    rank: int
    child: Child | None = field(default=None, repr=False)
    ended_at: float | None = None
    """When it ended, in seconds since the epoch."""
    code: int | None = None
    """Its exit code as subprocess has it: negative for a signal."""
    killed: bool = False
    """Whether this launcher ended it by SIGKILL: it did not begin anything."""
    spared: bool = False
    """Whether its failure did not end the run."""

    @property
    def pid(self) -> int:
        """Its process id, which is that of its session and group too."""
        assert self.child is not None, "it was never started"
        return self.child.pid

    @property
    def alive(self) -> bool:
        """Whether it runs, as of the last ``reap``."""
        return self.ended_at is None

    def describe(self) -> str:
        """Who it is, for people."""
        return f"{'server' if self.role == 'server' else 'rank'} {self.rank} on {host_name()}"

    def reap(self) -> bool:
        """Whether it has ended; what one that failed has started ends with it."""
        assert self.child is not None
        status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if status is None:
            return False
        if status.si_code != os.CLD_EXITED or status.si_status:
            self.send(signal.SIGKILL)  # its id is still taken, so the group cannot be anybody else's
        self.code = self.child.wait()
        return True

    def send(self, signum: int) -> None:
        """Signal it, with whatever it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)

    def kill(self) -> None:
        """End it at once, for a reason that is not its own failure."""
        self.killed = True
        self.send(signal.SIGKILL)


class Activity(NamedTuple):
    """What the system says of a process."""

    stopped: bool
    """By a signal or a debugger."""
    ticks: int
    """Processor time that its main thread has used: others may sample or beat while that one hangs."""
    disk: bool = False
    """Whether it waits in the system, as for a disk; not even SIGKILL ends that."""


def activity(pid: int) -> Activity:
    """Look at a process; one that is gone is not stopped."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/stat").read_text()
    except OSError:
        return Activity(False, 0)
    state, *rest = text.rpartition(")")[2].split()
    return Activity(state in "Tt", int(rest[10]) + int(rest[11]), state == "D")


def seat_variables(plan: Launch, local_rank: int, address: str, port: int) -> dict[str, str]:
    """The variables of one process, as torchrun has them: ranks count node by node, servers after workers."""
    sizes = [plan.workers + len(local_servers(node, plan.nodes, plan.servers)) for node in range(plan.nodes)]
    return {
        "RANK": str(sum(sizes[: plan.node_rank]) + local_rank),
        "WORLD_SIZE": str(sum(sizes)),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(sizes[plan.node_rank]),
        "GROUP_RANK": str(plan.node_rank),
        "GROUP_WORLD_SIZE": str(plan.nodes),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }
