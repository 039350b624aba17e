"""How many workers, on how many hosts, and where they meet: checked before anything starts."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from paceline.errors import UsageError
from paceline.runtimes.live.addresses import LOOPBACK, check_reachable, resolve
from paceline.runtimes.live.launcher.rendezvous import Rendezvous
from paceline.runtimes.live.local_secret import NEEDED
from paceline.runtimes.live.process_info import Role, local_servers, secret_path
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.timeouts import HANG, SILENCE

DEFAULT_PORT = 29500
MOST_WORKERS = 512
"""Workers on one host: each takes a few hundred megabytes."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How many workers, on how many hosts, and where they meet."""

    nodes: int = 1
    workers: int = 2
    """Workers on each node."""
    address: str | None = None
    """The address of node rank 0; one node needs none."""
    port: int | None = None
    """Where node rank 0 listens; one node takes a free port."""
    node_rank: int = 0
    servers: int = 0
    """Servers of the whole run, beside the workers: number k is on node k % nodes."""
    secret_file: Path | None = None
    """What only the run's processes know, where the user gave it; else the launcher of one node makes it."""
    wait: float = 300.0
    """Seconds to wait for the other nodes at the start."""
    silence: float = SILENCE
    """Seconds without a word from another node's launcher after which its host counts as lost."""
    hang: float = HANG
    """Seconds that a process may stand still before it is ended."""
    resume: Path | None = None
    """The run folder that the run goes on in, where it does."""
    again: str = ""
    """Options of the command that one which resumes this run must repeat, each after a space."""

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise UsageError(f"--nodes {self.nodes} is too small: at least 1 node must train")
        if self.workers < 1:
            raise UsageError(f"--workers {self.workers} is too small: at least 1 worker a node must train")
        if self.workers > MOST_WORKERS:
            raise UsageError(
                f"--workers {self.workers} is too large: at most {MOST_WORKERS} processes start on one host; "
                "simulate that many, or spread them with --nodes"
            )
        if not 0 <= self.node_rank < self.nodes:
            raise UsageError(
                f"--node-rank {self.node_rank} lies outside --nodes {self.nodes}: "
                f"ranks are 0 to {self.nodes - 1}"
            )
        if self.nodes > 1 and not self.address:
            raise UsageError(
                f"--nodes {self.nodes} needs --address, the address of the host with --node-rank 0"
            )
        if self.nodes > 1 and self.secret_file is None:
            raise UsageError(f"--nodes {self.nodes} {NEEDED}")
        if self.port is not None and not 0 < self.port < 65536:
            raise UsageError(f"--port {self.port} is not a port: it must lie between 1 and 65535")
        assert 0 < self.wait < math.inf
        assert 1 < self.silence < math.inf
        assert 0 < self.hang < math.inf

    @property
    def endpoint(self) -> tuple[str, int]:
        """Where the launchers meet; port 0 is any free one."""
        if self.nodes > 1:
            return self.address or LOOPBACK, self.port or DEFAULT_PORT
        return self.address or LOOPBACK, self.port or 0

    def secret(self, folder: Path) -> Path:
        """The file with the run's secret: the user's own, or one that is made in the launch folder."""
        if self.secret_file is not None:
            return self.secret_file.absolute()
        path = secret_path(folder)
        Secret.new().write(path)
        return path

    def meeting(self, say: Callable[[str], None], secret: Secret) -> Rendezvous:
        """Check the address and take the port, before anything starts."""
        address, port = self.endpoint
        if self.nodes > 1 and self.node_rank == 0:
            check_reachable(address, port)
        resolve(address, port)
        return Rendezvous(
            secret=secret,
            address=address,
            port=port,
            node_rank=self.node_rank,
            nodes=self.nodes,
            workers=self.workers,
            servers=self.servers,
            wait=self.wait,
            silence=self.silence,
            say=say,
        )

    @property
    def options(self) -> str:
        """What a command on this host needs to take the same place again."""
        repeated = f" --secret-file {quote(str(self.secret_file))}" if self.secret_file else ""
        repeated += self.again
        if self.nodes == 1:
            return repeated
        address, port = self.endpoint
        return f" -n {self.nodes} -np {self.workers} -a {address} -p {port} -nr {self.node_rank}{repeated}"

    @property
    def seats(self) -> list[tuple[Role, int]]:
        """The role and the rank or number of every process of this host, by local rank: workers, then servers."""
        first = self.node_rank * self.workers
        workers: list[tuple[Role, int]] = [("worker", first + local) for local in range(self.workers)]
        return workers + [
            ("server", number) for number in local_servers(self.node_rank, self.nodes, self.servers)
        ]
