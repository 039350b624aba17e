"""A connection to the run's store, as torch.distributed takes one, and the documents that its members exchange."""

import json
import select
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import count
from math import ceil
from time import monotonic
from typing import Any, NoReturn

import msgspec
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from paceline.errors import RunFailed, UsageError, say_on_stderr
from paceline.runtimes.live.addresses import LOOPBACK, raise_descriptor_limit, resolve, tcp
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.secret import Secret, run_secret, store_key
from paceline.runtimes.live.store_server import (
    LONGEST_WAIT,
    MOST_BYTES,
    Op,
    Status,
    StoreAnswer,
    StoreRequest,
    StoreServer,
)
from paceline.runtimes.live.timeouts import STORE_CUT
from paceline.runtimes.live.wire.channel import (
    Channel,
    Destination,
    MessageLimits,
    OtherVersion,
    Packet,
    connect,
)
from paceline.runtimes.live.wire.noise import NotGenuine

_PORT = "paceline/port"
_EVERYWHERE = "0.0.0.0"  # noqa: S104  only whoever has the secret gets an answer there
_NOTHING = memoryview(b"")
_MOST_UNSENT = 16
"""Questions that may wait for a network that takes nothing."""


class RunStore(Store):
    """A member's connection to a ``StoreServer``; it answers one question at a time, to whichever thread.

    Every call waits for the store as long as ``timeout`` says: DistStoreError after that, DistNetworkError at once
    where the connection was lost, which is for good, and a UsageError where the store does not take the secret. Keep a
    reference for as long as torch uses it: torch itself keeps none of the Python object.
    """

    timeout: timedelta
    """As ``set_timeout`` has it."""

    def __init__(
        self, address: str, port: int, secret: Secret, timeout: timedelta = timedelta(seconds=300)
    ) -> None:
        """The first call connects; nobody needs to listen there yet."""
        super().__init__()
        self.set_timeout(timeout)
        self._address, self._port, self._secret = address, port, secret
        self._endpoint = tcp(resolve(address, port).address, port)
        self._lock, self._numbers = threading.Lock(), count(1)
        self._channel: Channel | None = None
        self._lost = ""
        """Why the connection is lost, once it is."""
        self._answers: deque[StoreAnswer] = deque()
        self._clones: list[RunStore] = []

    def reached(self, seconds: float) -> bool:
        """Whether there is a connection to the store, waiting for at most so many seconds."""
        with self._lock:
            try:
                self._connected(monotonic() + seconds)
            except dist.DistStoreError:
                return False
            return True

    def set(self, key: str, value: str | bytes) -> None:
        self._ask(Op.SET, [key], [value])

    def get(self, key: str) -> bytes:
        """The value of a key; waits for it."""
        return self.read([key])[0]

    def read(self, keys: Sequence[str]) -> list[bytes]:
        """The values of several keys; waits for them."""
        return self._ask(Op.READ, keys, wait=self.timeout)[1]

    def peek(self, keys: Sequence[str]) -> list[bytes] | None:
        """The values of several keys, or None while one of them is missing; does not wait."""
        status, values = self._ask(Op.READ, keys)
        return values if status is Status.DONE else None

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Return when all keys are set."""
        self._ask(Op.CHECK, keys, wait=timeout or self.timeout)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are set."""
        return self._ask(Op.CHECK, keys)[0] is Status.DONE

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which begins at 0, and return it."""
        return int(self._ask(Op.ADD, [key], [str(amount)])[1][0])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a key if it is as expected, where "" expects none; return what it is then."""
        return self._ask(Op.COMPARE_SET, [key], [expected, desired])[1][0]

    def delete_key(self, key: str) -> bool:
        """Remove a key; whether there was one."""
        return self._ask(Op.DELETE, [key])[0] is Status.DONE

    def num_keys(self) -> int:
        return int(self._ask(Op.COUNT, [])[1][0])

    def clone(self) -> "RunStore":
        """Another connection to the same store; it is closed with this one."""
        other = RunStore(self._address, self._port, self._secret, self.timeout)
        self._clones.append(other)
        return other

    def close(self) -> None:
        """Close the connection; what was asked and not answered is given up."""
        for other in self._clones:
            other.close()
        with self._lock:
            if self._channel is not None:
                self._channel.close()
            self._lost = self._lost or "closed"

    def _ask(
        self,
        op: Op,
        keys: Sequence[str],
        values: Sequence[str | bytes] = (),
        wait: timedelta = timedelta(0),
    ) -> tuple[Status, list[bytes]]:
        with self._lock:
            seconds = min(wait.total_seconds(), LONGEST_WAIT)
            request = StoreRequest(
                next(self._numbers),
                op,
                tuple(key.encode() for key in keys),
                tuple(value.encode() if isinstance(value, str) else bytes(value) for value in values),
                seconds,
            )
            message = request.pack()
            deadline = monotonic() + (seconds or self.timeout.total_seconds())
            channel = self._connected(deadline)
            try:
                if not channel.send(Packet(message, _NOTHING), _MOST_UNSENT):
                    raise self._late(request)
                return self._answer(channel, request, deadline)
            except OSError as error:
                channel.close()
                self._lost = str(error)
                self._raise_lost()

    def _answer(self, channel: Channel, request: StoreRequest, deadline: float) -> tuple[Status, list[bytes]]:
        poller = select.poll()
        while True:
            while self._answers:
                answer = self._answers.popleft()
                if answer.number != request.number:
                    continue  # the answer to a question that was given up
                if answer.status is Status.REFUSED:
                    raise ValueError(
                        f"the run's store refuses {_shown(request)}: {answer.values[0].decode()}"
                    )
                return answer.status, list(answer.values)
            left = deadline - monotonic()
            if left <= 0:
                raise self._late(request)
            poller.register(channel.socket, select.POLLIN | (select.POLLOUT if channel.unsent else 0))
            poller.poll(ceil(left * 1000))
            channel.flush()
            channel.read()

    def _connected(self, deadline: float) -> Channel:
        if self._lost:
            self._raise_lost()
        if self._channel is not None:
            return self._channel
        patience = max(0.0, deadline - monotonic())
        limits = MessageLimits(2 * MOST_BYTES, 0)
        where = f"the run's store at {self._address}, port {self._port},"
        try:
            self._channel = connect(
                self._endpoint, store_key(self._secret), self._announce, limits, patience, STORE_CUT
            )
        except OtherVersion:
            raise UsageError(
                f"{where} is of another version of paceline; install the same on every host"
            ) from None
        except NotGenuine:
            raise UsageError(
                f"{where} does not take this process's secret; give every host the same secret file"
            ) from None
        except OSError as error:
            raise dist.DistStoreError(f"wait timeout: {where} does not answer ({error})") from None
        return self._channel

    def _announce(self, _: Channel, message: memoryview, __: int) -> Destination:
        def take() -> None:
            self._answers.append(msgspec.msgpack.decode(message, type=StoreAnswer))

        return Destination(None, take)

    def _late(self, request: StoreRequest) -> dist.DistStoreError:
        return dist.DistStoreError(
            f"wait timeout: no answer to {_shown(request)} from the run's store at {self._address}, "
            f"port {self._port}"
        )

    def _raise_lost(self) -> NoReturn:
        raise dist.DistNetworkError(
            f"the run's store at {self._address}, port {self._port}, is lost: connection closed by peer "
            f"({self._lost})"
        )


def _shown(request: StoreRequest) -> str:
    return f"{request.op.name.lower()} {', '.join(key.decode() for key in request.keys[:3])}"


class MemberStore(RunStore):
    """The run's store as one worker or server uses it. All workers must make the same calls in the same order.

    Our launcher keeps the store. Under another one rank 0 does, and announces its port in the launcher's own store:
    whoever tampers with that can keep the run from starting, and nothing else, for the key is the secret's.
    """

    def __init__(self, info: ProcessInfo, timeout: timedelta) -> None:
        """Wait until all processes of the run are here. Servers are awaited too, and exchange nothing."""
        raise_descriptor_limit()
        self._rank, self._workers, self._exchanges = info.rank, info.workers, 0
        self._server: StoreServer | None = None
        with run_secret(info) as secret:
            self.secret = secret
            address, port = info.address, info.port
            if info.launch is None:
                # Rank 0 keeps the launcher's store alive here until all have read the port.
                announced = self._launcher_store(info, timeout)
                port = port_number(announced.get(_PORT))
                address = LOOPBACK if info.nodes == 1 else address
            super().__init__(address, port, secret, timeout)
            self.set(f"here/{_number(info)}", "")
            self.wait([f"here/{number}" for number in range(info.workers + info.servers)])

    def _launcher_store(self, info: ProcessInfo, timeout: timedelta) -> Store:
        """The launcher's own store, in which rank 0 announces the port of the run's store, which it keeps."""
        host = f"[{info.address}]" if ":" in info.address else info.address
        where = f"tcp://{host}:{info.port}?rank={_number(info)}&world_size={info.workers + info.servers}"
        store: Store = next(iter(rendezvous(where, timeout=timeout)))[0]
        if _number(info) == 0:
            self._server = StoreServer(self.secret, _own_address(info), 0)
            store.set(_PORT, str(self._server.port))
        return store

    def exchange(self, document: Any) -> list[Any]:
        """Every worker's JSON document, by rank."""
        before = self._key(self._rank)
        self._exchanges += 1
        self.set(self._key(self._rank), json.dumps(document))
        documents = [json.loads(text) for text in self.read(self._keys())]
        self.delete_key(before)  # all workers are at this exchange, so all have read the one before
        return documents

    def leave(self) -> None:
        """Rank 0 waits for all, because its store must outlive the others' last use of it."""
        self._exchanges += 1
        try:
            self.set(self._key(self._rank), "left")
        except dist.DistNetworkError:
            if self._rank == 0:
                raise
            # The word has arrived: rank 0 has closed the store before this rank got its answer.
        if self._rank == 0:
            self.wait(self._keys())

    def close(self) -> None:
        """Close the connection, and the store where it is kept here; say what was refused there."""
        super().close()
        if self._server is not None:
            self._server.close()
            if refusals := self._server.refusals():
                say_on_stderr(refusals)

    def _key(self, rank: int) -> str:
        return f"paceline/{self._exchanges}/{rank}"

    def _keys(self) -> list[str]:
        return [self._key(rank) for rank in range(self._workers)]


def port_number(value: bytes) -> int:
    """A port, as decimal text."""
    if not value.isdigit() or len(value) > 5 or not 0 < int(value) < 65536:
        raise RunFailed("the store that the launcher keeps has no port of the run's own store; start again")
    return int(value)


def _number(info: ProcessInfo) -> int:
    """Workers come first, then servers."""
    return info.rank + (info.workers if info.role == "server" else 0)


def _own_address(info: ProcessInfo) -> str:
    """Where rank 0 listens: a name may mean loopback on its own host, where no other host reaches it."""
    if info.nodes == 1:
        return LOOPBACK
    address = resolve(info.address, info.port).address
    return _EVERYWHERE if address.startswith("127.") else address


def check_equal(asked: Sequence[Mapping[str, Any]]) -> None:
    """Refuse workers that were started for different runs; ``asked`` is what each was started for, by rank."""
    for rank, other in enumerate(asked):
        if differing := [key for key in asked[0] if other[key] != asked[0][key]]:
            key = differing[0]
            raise UsageError(
                f"rank {rank} was started for something else than rank 0: {key} is {other[key]} there and "
                f"{asked[0][key]} on rank 0; start every host with the same options"
            )
