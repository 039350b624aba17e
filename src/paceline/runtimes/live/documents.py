"""What processes of a run tell each other before and after the tensors: JSON documents, through the run's store."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from paceline.errors import UsageError
from paceline.runtimes.live.addresses import LOOPBACK, raise_descriptor_limit, resolve
from paceline.runtimes.live.checked import port_number
from paceline.runtimes.live.local_secret import run_secret
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.run_store import RunStore
from paceline.runtimes.live.store_server import StoreServer

_PORT = "paceline/port"
_EVERYWHERE = "0.0.0.0"  # noqa: S104  only whoever has the secret gets an answer there


class Documents:
    """One process's part in the run's store. All workers must make the same calls in the same order.

    Our launcher keeps the store. Under another one rank 0 does, and tells its port through the launcher's own store:
    whoever tampers with that can keep the run from starting, and nothing else, for the key is the secret's.
    """

    def __init__(self, place: ProcessInfo, timeout: timedelta) -> None:
        """Meet the others; raises if they do not come in time. Servers come too, and exchange nothing."""
        raise_descriptor_limit()
        self._rank, self._workers, self._exchanges = place.rank, place.workers, 0
        self._server: StoreServer | None = None
        with run_secret(place) as secret:
            self.secret = secret
            if place.launch is None:
                announced = self._announce(place, timeout)
                address = LOOPBACK if place.nodes == 1 else place.address
                self.store = RunStore(address, port_number(announced.get(_PORT)), secret, timeout)
            else:
                self.store = RunStore(place.address, place.port, secret, timeout)
            self.store.set(f"here/{_number(place)}", "")
            self.store.wait([f"here/{number}" for number in range(place.workers + place.servers)])

    def _announce(self, place: ProcessInfo, timeout: timedelta) -> Store:
        """The launcher's own store, where rank 0 tells the port of the run's store, which it keeps."""
        host = f"[{place.address}]" if ":" in place.address else place.address
        where = f"tcp://{host}:{place.port}?rank={_number(place)}&world_size={place.workers + place.servers}"
        store: Store = next(iter(rendezvous(where, timeout=timeout)))[0]
        if _number(place) == 0:
            self._server = StoreServer(self.secret, _own_address(place), 0)
            store.set(_PORT, str(self._server.port))
        return store

    def exchange(self, document: Any) -> list[Any]:
        """Put one document into the store, and take every worker's out, by rank."""
        before = self._key(self._rank)
        self._exchanges += 1
        self.store.set(self._key(self._rank), json.dumps(document))
        documents = [json.loads(text) for text in self.store.read(self._keys())]
        self.store.delete_key(before)  # all have come to this exchange, so all have read the one before
        return documents

    def part(self) -> None:
        """Say goodbye. Rank 0 waits for all, because its store must outlive the others' last use of it."""
        self._exchanges += 1
        self.store.set(self._key(self._rank), "left")
        if self._rank == 0:
            self.store.wait(self._keys())

    def close(self) -> None:
        """Close the connection, and the store where it is kept here; say what was refused there."""
        self.store.close()
        if self._server is not None:
            self._server.close()
            if refusals := self._server.refusals():
                with suppress(OSError):
                    sys.stderr.write(f"paceline: {refusals}\n")

    def _key(self, rank: int) -> str:
        return f"paceline/{self._exchanges}/{rank}"

    def _keys(self) -> list[str]:
        return [self._key(rank) for rank in range(self._workers)]


def _number(place: ProcessInfo) -> int:
    """Workers come first, then servers."""
    return place.rank + (place.workers if place.role == "server" else 0)


def _own_address(place: ProcessInfo) -> str:
    """Where rank 0 listens: a name may mean loopback on its own host, where no other host reaches it."""
    if place.nodes == 1:
        return LOOPBACK
    address = resolve(place.address, place.port).address
    return _EVERYWHERE if address.startswith("127.") else address


def check_equal(asked: Sequence[Mapping[str, Any]]) -> None:
    """Refuse workers that were not all asked for the same; ``asked`` is what each was, by rank."""
    for rank, other in enumerate(asked):
        if differing := [key for key in asked[0] if other[key] != asked[0][key]]:
            key = differing[0]
            raise UsageError(
                f"rank {rank} was started for something else than rank 0: {key} is {other[key]} there and "
                f"{asked[0][key]} on rank 0; start every host with the same options"
            )
