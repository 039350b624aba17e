"""Where the launchers of one run meet: a small store that the launcher of node rank 0 keeps.

The workers use the same store to find each other, and launchers leave their failures in it for other hosts.
"""

import ctypes
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from paceline.errors import Mistake, RunFailed
from paceline.runtimes.live.addresses import listen
from paceline.runtimes.live.bulletin import Bulletin, alive_key

_SILENCE = 2.0
_AGAIN = 30.0


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's C++ side from warning of every host that has no name; where it cannot be, nothing changes."""
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    try:
        level = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        level = ctypes.c_int()
    before, level.value = level.value, 2
    try:
        yield
    finally:
        level.value = before


class Meeting:
    """The rendezvous of the launchers: ranks are as given, and nobody waits in vain without a word."""

    def __init__(
        self,
        *,
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
        """Take the port, if this is node rank 0; a port in use is a Mistake. Nothing waits yet."""
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
        self._store: Any
        self._listener = listen(address, port) if node_rank == 0 else None
        if self._listener is not None:
            self.port = self._listener.getsockname()[1]

    def gather(self) -> None:
        """Wait until every launcher is here."""
        deadline = time.monotonic() + self._wait
        with _quiet():
            self._open(deadline)
            self._gather(deadline)
        if self.node_rank:
            self._say(
                f"node rank {self.node_rank} of {self.nodes} has joined; the host at {self.address} reports on the run"
            )
        self.bulletin = Bulletin(self._store, self._connect, self.node_rank, self.nodes, self._silence)

    def _open(self, deadline: float) -> None:
        if self._listener is None:
            self._wait_for_port(deadline)
            self._store = self._connect()
        else:
            self._store = self._connect(self._listener.detach())

    def _connect(self, listener: int | None = None) -> Any:
        """A connection of its own to the store; with a listening socket, the store itself."""
        return TCPStore(
            self.address,
            self.port,
            None,
            listener is not None,
            timedelta(seconds=min(self._wait, 60.0)),
            wait_for_workers=False,
            master_listen_fd=listener,
        )

    def _wait_for_port(self, deadline: float) -> None:
        """Knock in small pieces of time, so that Ctrl-C is heard."""
        note = _Reminder(
            self._say, f"waiting for node rank 0 at {self.address}, port {self.port}", self._wait
        )
        while True:
            try:
                socket.create_connection((self.address, self.port), timeout=1.0).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise RunFailed(
                        f"node rank 0 did not answer at {self.address}, port {self.port}, within "
                        f"{self._wait:g} s; start the same command with --node-rank 0 there, "
                        "and see that no firewall closes the port"
                    ) from None
            note.remind()
            time.sleep(0.2)

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
            if self._store.check(["started"]):
                raise Mistake(
                    f"the run at {self.address}, port {self.port}, has started already; choose another --port"
                )
            self._store.set(alive_key(self.node_rank), "0")
            self._store.set(_seat(self.node_rank), json.dumps(me))
            self._await_all(deadline)
            if self.node_rank == 0:
                self._store.set("started", json.dumps([self._seated(rank) for rank in range(self.nodes)]))
            self._check(json.loads(self._store.get("started")))
        except dist.DistError as error:
            if isinstance(error, dist.DistStoreError) and "imeout" in str(error):
                raise RunFailed(
                    f"node rank 0 at {self.address}, port {self.port}, did not start the run"
                ) from None
            raise RunFailed(f"lost contact with node rank 0 at {self.address}, port {self.port}") from None

    def _await_all(self, deadline: float) -> None:
        note = _Reminder(
            self._say, f"waiting for other nodes at {self.address}, port {self.port}", self._wait
        )
        while missing := [rank for rank in range(self.nodes) if not self._store.check([_seat(rank)])]:
            if time.monotonic() > deadline:
                ranks = ", ".join(map(str, missing))
                raise RunFailed(
                    f"node rank {ranks} of {self.nodes} did not come to {self.address}, port {self.port}, "
                    f"within {self._wait:g} s; start the same command with that --node-rank on its host"
                )
            note.remind(f": node rank {', '.join(map(str, missing))} of {self.nodes}")
            time.sleep(0.05)

    def _seated(self, rank: int) -> Any:
        return json.loads(self._store.get(_seat(rank)))

    def _check(self, seats: list[dict[str, Any]]) -> None:
        mine = seats[self.node_rank]
        if mine["token"] != self._token:
            raise Mistake(
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
                    raise Mistake(
                        f"{what} {seat[values]} on {seat['host']} (node rank {rank}) and {seats[0][values]} on "
                        f"{seats[0]['host']} (node rank 0); give the same{options} on every host"
                    )

    def lost(self) -> int | None:
        """The rank of a node whose launcher has gone silent, or None."""
        return self.bulletin.silent_node() if self.nodes > 1 else None

    def leave(self) -> None:
        """Sign out, if this launcher ever signed in."""
        if hasattr(self, "bulletin"):
            self.bulletin.leave()
        if self._listener is not None:
            self._listener.close()


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
