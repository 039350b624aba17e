"""The launchers of a run find each other in the run's store, which the launcher of node rank 0 keeps.

The workers use the same store to find each other, and launchers leave their failures in it for other hosts.
"""

import json
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from uuid import uuid4

import msgspec
import torch.distributed as dist

from paceline.errors import RunFailed, UsageError, printable
from paceline.runtimes.live.addresses import check_reachable, raise_descriptor_limit, resolve
from paceline.runtimes.live.launcher.peers import LauncherPeers, alive_key
from paceline.runtimes.live.launcher.plan import LaunchPlan
from paceline.runtimes.live.run_store import RunStore
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.store_server import StoreServer
from paceline.runtimes.live.timeouts import FIRST_REMINDER, REMINDERS


@dataclass(frozen=True)
class _Seat:
    """What one launcher tells the others of itself."""

    token: str
    host: str
    nodes: int
    workers: int
    servers: int


class Rendezvous:
    """The launchers of a run; ranks are as given, and a launcher that waits says for whom."""

    peers: LauncherPeers
    """The other launchers, once all are here."""

    def __init__(self, plan: LaunchPlan, secret: Secret, say: Callable[[str], None]) -> None:
        """Open the store, if this is node rank 0; a port in use is a UsageError. Nothing waits yet."""
        raise_descriptor_limit()
        self.plan, self._say = plan, say
        self.address, self.port = plan.endpoint
        if plan.nodes > 1 and plan.node_rank == 0:
            check_reachable(self.address, self.port)
        resolve(self.address, self.port)
        self.hosts: list[str] = []
        """The host of every node, once all are here."""
        self._token = uuid4().hex
        self._server = StoreServer(secret, self.address, self.port) if plan.node_rank == 0 else None
        if self._server is not None:
            self.port = self._server.port
        self.store = RunStore(self.address, self.port, secret, timedelta(seconds=min(plan.wait, 60.0)))

    @property
    def _where(self) -> str:
        return f"at {self.address}, port {self.port}"

    def gather(self) -> None:
        """Wait until every launcher is here, and check that all were started for the same run."""
        plan, deadline = self.plan, time.monotonic() + self.plan.wait
        self._reach(deadline)
        try:
            self._sign_in(deadline)
        except dist.DistStoreError:
            raise RunFailed(f"node rank 0 {self._where}, did not start the run") from None
        except dist.DistError:
            raise RunFailed(f"lost contact with node rank 0 {self._where}") from None
        if plan.node_rank:
            self._say(
                f"node rank {plan.node_rank} of {plan.nodes} has joined; the host at {self.address} reports on the run"
            )
        self.peers = LauncherPeers(self.store, plan.node_rank, plan.nodes, plan.silence)

    def leave(self) -> None:
        """Sign out, if this launcher ever signed in; say what the store has refused."""
        if hasattr(self, "peers"):
            self.peers.leave()
        self.store.close()
        if self._server is not None:
            self._server.close()
            if refusals := self._server.refusals():
                self._say(refusals)

    def _reach(self, deadline: float) -> None:
        note = _Reminder(self._say, f"waiting for node rank 0 {self._where}", self.plan.wait)
        while not self.store.reached(1.0):
            if time.monotonic() > deadline:
                raise RunFailed(
                    f"node rank 0 did not answer {self._where}, within {self.plan.wait:g} s; start the same command "
                    "as node rank 0 there, and see that no firewall closes the port"
                )
            note.remind()

    def _sign_in(self, deadline: float) -> None:
        """Node rank 0 starts the run when all have signed in; all check that the run counts on them."""
        plan = self.plan
        me = _Seat(self._token, socket.gethostname(), plan.nodes, plan.workers, plan.servers)
        if self.store.check(["started"]):
            raise UsageError(f"the run {self._where}, has started already; choose another port")
        self.store.set(alive_key(plan.node_rank), "0")
        self.store.set(_seat_key(plan.node_rank), json.dumps(asdict(me)))
        self._await_all(deadline)
        if plan.node_rank == 0:
            seats = self.store.read([_seat_key(rank) for rank in range(plan.nodes)])
            self.store.set("started", b"[" + b",".join(seats) + b"]")
        try:
            self._check(msgspec.json.decode(self.store.get("started"), type=list[_Seat]))
        except (msgspec.MsgspecError, RecursionError):
            raise RunFailed(
                "another launcher tells nothing of itself; start the same version on every host"
            ) from None

    def _await_all(self, deadline: float) -> None:
        nodes = self.plan.nodes
        note = _Reminder(self._say, f"waiting for other nodes {self._where}", self.plan.wait)
        while missing := [rank for rank in range(nodes) if not self.store.check([_seat_key(rank)])]:
            ranks = ", ".join(map(str, missing))
            if time.monotonic() > deadline:
                raise RunFailed(
                    f"node rank {ranks} of {nodes} did not come to {self._where[3:]}, within {self.plan.wait:g} s; "
                    "start the same command as that node rank on its host"
                )
            refused = f"; {refusals}" if self._server and (refusals := self._server.refusals()) else ""
            note.remind(f": node rank {ranks} of {nodes}{refused}")
            time.sleep(0.05)

    def _check(self, seats: list[_Seat]) -> None:
        self.hosts = [printable(seat.host, 255) for seat in seats]
        mine = self.plan.node_rank
        if seats[mine].token != self._token:
            raise UsageError(
                f"node rank {mine} was also given on {self.hosts[mine]}; give every host its own"
            )
        for what, setting in (
            ("nodes", "the same number"),
            ("workers", "the same number"),
            ("servers", "the same strategy and number of servers"),
        ):
            first = getattr(seats[0], what)
            for rank, seat in enumerate(seats):
                if (count := getattr(seat, what)) != first:
                    raise UsageError(
                        f"the number of {what} is {count} on {self.hosts[rank]} (node rank {rank}) and {first} on "
                        f"{self.hosts[0]} (node rank 0); give {setting} on every host"
                    )


class _Reminder:
    """Says what is waited for, after a moment and then every half minute."""

    def __init__(self, say: Callable[[str], None], what: str, limit: float) -> None:
        self._say, self._what, self._limit = say, what, limit
        self._next = time.monotonic() + FIRST_REMINDER

    def remind(self, detail: str = "") -> None:
        if time.monotonic() >= self._next:
            self._say(f"{self._what}{detail} (gives up after {self._limit:g} s)")
            self._next = time.monotonic() + REMINDERS


def _seat_key(rank: int) -> str:
    return f"node-{rank}"
