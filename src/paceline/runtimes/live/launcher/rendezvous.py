"""Where the launchers of one run meet: the run's store, which the launcher of node rank 0 keeps.

The workers use the same store to find each other, and launchers leave their failures in it for other hosts.
"""

import json
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import torch.distributed as dist

from paceline.errors import RunFailed, UsageError
from paceline.runtimes.live.addresses import raise_descriptor_limit
from paceline.runtimes.live.checked import shown, whole_number
from paceline.runtimes.live.launcher.bulletin import Bulletin, alive_key
from paceline.runtimes.live.run_store import RunStore
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.store_server import StoreServer

_SILENCE = 2.0
_AGAIN = 30.0


class Rendezvous:
    """The launchers of a run: ranks are as given, and nobody waits in vain without a word."""

    def __init__(
        self,
        *,
        secret: Secret,
        address: str,
        port: int,
        node_rank: int,
        nodes: int,
        workers: int,
        servers: int = 0,
        wait: float,
        silence: float,
        say: Callable[[str], None],
    ) -> None:
        """Open the store, if this is node rank 0; a port in use is a UsageError. Nothing waits yet."""
        raise_descriptor_limit()
        self.address, self.port, self.node_rank, self.nodes, self.workers = (
            address,
            port,
            node_rank,
            nodes,
            workers,
        )
        self.servers = servers
        self._wait, self._silence, self._say = wait, silence, say
        self.hosts: list[str] = []
        """The host of every node, once all are here."""
        self.bulletin: Bulletin
        self._token = uuid4().hex
        self._server = StoreServer(secret, address, port) if node_rank == 0 else None
        if self._server is not None:
            self.port = self._server.port
        self.store = RunStore(address, self.port, secret, timedelta(seconds=min(wait, 60.0)))

    def gather(self) -> None:
        """Wait until every launcher is here, and check that all were started for the same run."""
        deadline = time.monotonic() + self._wait
        self._reach(deadline)
        self._gather(deadline)
        if self.node_rank:
            self._say(
                f"node rank {self.node_rank} of {self.nodes} has joined; the host at {self.address} reports on the run"
            )
        self.bulletin = Bulletin(self.store, self.node_rank, self.nodes, self._silence)

    def _reach(self, deadline: float) -> None:
        """Wait for the store in small pieces of time, so that Ctrl-C is heard."""
        note = _Reminder(
            self._say, f"waiting for node rank 0 at {self.address}, port {self.port}", self._wait
        )
        while not self.store.reached(1.0):
            if time.monotonic() > deadline:
                raise RunFailed(
                    f"node rank 0 did not answer at {self.address}, port {self.port}, within "
                    f"{self._wait:g} s; start the same command with --node-rank 0 there, "
                    "and see that no firewall closes the port"
                )
            note.remind()

    def _gather(self, deadline: float) -> None:
        """Sign in; node rank 0 starts the run when all have, and all check that the run counts on them."""
        me = {
            "token": self._token,
            "host": socket.gethostname(),
            "nodes": self.nodes,
            "workers": self.workers,
            "servers": self.servers,
        }
        try:
            if self.store.check(["started"]):
                raise UsageError(
                    f"the run at {self.address}, port {self.port}, has started already; choose another --port"
                )
            self.store.set(alive_key(self.node_rank), "0")
            self.store.set(_seat(self.node_rank), json.dumps(me))
            self._await_all(deadline)
            if self.node_rank == 0:
                seats = self.store.read([_seat(rank) for rank in range(self.nodes)])
                self.store.set("started", json.dumps([json.loads(seat) for seat in seats]))
            self._check([_checked(seat) for seat in json.loads(self.store.get("started"))])
        except dist.DistError as error:
            if isinstance(error, dist.DistStoreError):
                raise RunFailed(
                    f"node rank 0 at {self.address}, port {self.port}, did not start the run"
                ) from None
            raise RunFailed(f"lost contact with node rank 0 at {self.address}, port {self.port}") from None

    def _await_all(self, deadline: float) -> None:
        note = _Reminder(
            self._say, f"waiting for other nodes at {self.address}, port {self.port}", self._wait
        )
        while missing := [rank for rank in range(self.nodes) if not self.store.check([_seat(rank)])]:
            if time.monotonic() > deadline:
                ranks = ", ".join(map(str, missing))
                raise RunFailed(
                    f"node rank {ranks} of {self.nodes} did not come to {self.address}, port {self.port}, "
                    f"within {self._wait:g} s; start the same command with that --node-rank on its host"
                )
            refused = f"; {refusals}" if self._server and (refusals := self._server.refusals()) else ""
            note.remind(f": node rank {', '.join(map(str, missing))} of {self.nodes}{refused}")
            time.sleep(0.05)

    def _check(self, seats: list[dict[str, Any]]) -> None:
        mine = seats[self.node_rank]
        if mine["token"] != self._token:
            raise UsageError(
                f"--node-rank {self.node_rank} was also given on {mine['host']}; give every host its own"
            )
        self.hosts = [seat["host"] for seat in seats]
        for what, values, options in (
            ("--nodes is", "nodes", ""),
            ("--workers is", "workers", ""),
            ("the number of servers is", "servers", " --strategy and --servers"),
        ):
            for rank, seat in enumerate(seats):
                if seat[values] != seats[0][values]:
                    raise UsageError(
                        f"{what} {seat[values]} on {seat['host']} (node rank {rank}) and {seats[0][values]} on "
                        f"{seats[0]['host']} (node rank 0); give the same{options} on every host"
                    )

    def lost(self) -> int | None:
        """The rank of a node whose launcher has gone silent, or None."""
        return self.bulletin.silent_node() if self.nodes > 1 else None

    def leave(self) -> None:
        """Sign out, if this launcher ever signed in; say what the store has refused."""
        if hasattr(self, "bulletin"):
            self.bulletin.leave()
        self.store.close()
        if self._server is not None:
            self._server.close()
            if refusals := self._server.refusals():
                self._say(refusals)


class _Reminder:
    """Says what is waited for, after a moment and then now and again."""

    def __init__(self, say: Callable[[str], None], what: str, limit: float) -> None:
        self._say, self._what, self._limit = say, what, limit
        self._next = time.monotonic() + _SILENCE

    def remind(self, detail: str = "") -> None:
        if time.monotonic() >= self._next:
            self._say(f"{self._what}{detail} (gives up after {self._limit:g} s)")
            self._next = time.monotonic() + _AGAIN


def _seat(rank: int) -> str:
    return f"node-{rank}"


def _checked(seat: Any) -> dict[str, Any]:
    """What another launcher told of itself, fit to be compared and shown."""
    if not isinstance(seat, dict):
        raise RunFailed("another launcher told nothing of itself; start the same version on every host")
    texts = {name: shown(str(seat.get(name)), 255) for name in ("token", "host")}
    return texts | {name: whole_number(seat.get(name)) for name in ("nodes", "workers", "servers")}
