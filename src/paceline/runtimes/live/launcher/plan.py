"""How many workers, on how many hosts, and where their launchers find each other: checked before anything starts."""

from dataclasses import dataclass, field
from pathlib import Path

from paceline.errors import UsageError
from paceline.runtimes.live.addresses import LOOPBACK
from paceline.runtimes.live.process_info import Role, local_servers
from paceline.runtimes.live.secret import NEEDED
from paceline.runtimes.live.timeouts import HANG, SILENCE, WAIT_FOR_NODES

DEFAULT_PORT = 29500
MOST_WORKERS = 512
"""Workers on one host: each takes a few hundred megabytes."""


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """What one host's launcher starts."""

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
    """Seconds to wait for the other nodes at the start."""
    silence: float = SILENCE
    """Seconds without a beat of another node's launcher after which its host counts as lost."""
    hang: float = HANG
    """Seconds that a process may make no progress before it is ended."""
    resume: Path | None = None
    """The run folder that the run goes on in, where it does."""
    again: dict[str, object] = field(default_factory=dict)
    """Settings of the command that one which resumes this run must repeat."""

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

    @property
    def processes(self) -> list[tuple[Role, int]]:
        first = self.node_rank * self.workers
        workers: list[tuple[Role, int]] = [("worker", first + local) for local in range(self.workers)]
        return workers + [
            ("server", number) for number in local_servers(self.node_rank, self.nodes, self.servers)
        ]
