"""A connection to the run's store, as torch.distributed takes one, and the documents that workers exchange in it."""

import json
import select
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from math import ceil
from time import monotonic
from typing import Any, ClassVar, NoReturn

import msgspec
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store
from torch.distributed.rendezvous import rendezvous

from paceline.errors import RunFailed, UsageError
from paceline.runtimes.live.addresses import LOOPBACK, raise_descriptor_limit, resolve, tcp
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.secret import Secret, run_secret
from paceline.runtimes.live.store_server import MOST_BYTES, Op, StoreAnswer, StoreRequest, StoreServer
from paceline.runtimes.live.timeouts import STORE_CUT
from paceline.runtimes.live.wire.channel import DROPPED, Channel, Destination, MessageLimits, Packet, connect

_PORT = "paceline/port"
_EVERYWHERE = "0.0.0.0"  # noqa: S104  only processes that have the secret get an answer there
_MOST_UNSENT = 16
"""Questions that are queued for a store that accepts nothing; one more is not sent, and has no answer either."""
_LONGEST_POLL = 3600.0


class RunStore(Store):
    """A member's connection to a ``StoreServer``; one question at a time, from any thread.

    Every call waits for the store as long as ``timeout`` says: DistStoreError after that, DistNetworkError at once
    where the connection was lost, which is for good, and a UsageError where the store does not take the secret. Keep a
    reference for as long as torch uses it: torch itself keeps none of the Python object.
    """

    timeout: timedelta

    def __init__(
        self, address: str, port: int, secret: Secret, timeout: timedelta = timedelta(seconds=300)
    ) -> None:
        super().__init__()
        self.set_timeout(timeout)
        self._address, self._port, self.secret = address, port, secret
        self._where = f"the run's store at {address}, port {port}"
        self._endpoint = tcp(resolve(address, port)[1], port)
        self._lock, self._numbers = threading.Lock(), count(1)
        self._channel: Channel | None = None
        self._lost = ""  # why the connection is lost, once it is
        self._answers: deque[StoreAnswer] = deque()
        self._clones: list[RunStore] = []

    def set(self, key: str, value: str | bytes) -> None:
        self._ask(Op.SET, [key], [value])

    def get(self, key: str) -> bytes:
        return self.read([key])[0]

    def read(self, keys: Sequence[str], patience: float | None = None) -> Sequence[bytes]:
        """The values of several keys, once all are set; for ``patience`` seconds instead of the usual timeout."""
        seconds = self.timeout.total_seconds() if patience is None else patience
        return self._ask(Op.READ, keys, wait=seconds) or ()

    def peek(self, keys: Sequence[str]) -> Sequence[bytes] | None:
        """The values of several keys, or None while one of them is missing; does not wait."""
        return self._ask(Op.READ, keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self.read(keys, timeout.total_seconds() if timeout else None)

    def check(self, keys: Sequence[str]) -> bool:
        return self.peek(keys) is not None

    def add(self, key: str, amount: int) -> int:
        return int((self._ask(Op.ADD, [key], [str(amount)]) or (b"0",))[0])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a key if it is as expected, where "" expects none; return what it is then."""
        return (self._ask(Op.COMPARE_SET, [key], [expected, desired]) or (b"",))[0]

    def delete_key(self, key: str) -> bool:
        return self._ask(Op.DELETE, [key]) is not None

    def clone(self) -> "RunStore":
        other = RunStore(self._address, self._port, self.secret, self.timeout)
        self._clones.append(other)
        return other

    def close(self) -> None:
        for other in self._clones:
            other.close()
        with self._lock:
            if self._channel is not None:
                self._channel.close()
            self._lost = self._lost or "closed"

    def _ask(
        self, op: Op, keys: Sequence[str], values: Sequence[str | bytes] = (), wait: float | None = None
    ) -> tuple[bytes, ...] | None:
        encoded = tuple(value.encode() if isinstance(value, str) else bytes(value) for value in values)
        names = tuple(key.encode() for key in keys)
        with self._lock:
            request = StoreRequest(next(self._numbers), op, names, encoded, wait is not None)
            message = request.pack()
            deadline = monotonic() + (self.timeout.total_seconds() if wait is None else wait)
            channel = self._connected(deadline)
            try:
                channel.send(Packet(message, memoryview(b"")), _MOST_UNSENT)
                answer = self._answer(channel, request.number, deadline)
            except OSError as error:
                channel.close()
                self._lost = str(error)
                self._raise_lost()
        question = f"{op.name.lower()} {', '.join(keys[:3])}"
        if answer is None:
            raise dist.DistStoreError(f"wait timeout: no answer to {question} from {self._where}")
        if answer.refusal:
            raise ValueError(f"the run's store refuses {question}: {answer.refusal}")
        return answer.values

    def _answer(self, channel: Channel, number: int, deadline: float) -> StoreAnswer | None:
        poller = select.poll()
        while True:
            while self._answers:
                answer = self._answers.popleft()
                if answer.number == number:  # else it answers a question that was abandoned
                    return answer
            left = deadline - monotonic()
            if left <= 0:
                return None
            poller.register(channel.socket, select.POLLIN | (select.POLLOUT if channel.unsent else 0))
            poller.poll(ceil(min(left, _LONGEST_POLL) * 1000))
            channel.flush()
            channel.read()

    def _connected(self, deadline: float) -> Channel:
        if self._lost:
            self._raise_lost()
        if self._channel is not None:
            return self._channel
        patience, limits = max(0.0, deadline - monotonic()), MessageLimits(2 * MOST_BYTES, 0)
        key, who = self.secret.key("store"), f"{self._where},"
        try:
            self._channel = connect(self._endpoint, key, self._announce, limits, patience, STORE_CUT, who)
        except OSError as error:
            raise dist.DistStoreError(f"wait timeout: {self._where}, does not answer ({error})") from None
        return self._channel

    def _announce(self, _: Channel, message: memoryview, __: int) -> Destination:
        self._answers.append(msgspec.msgpack.decode(message, type=StoreAnswer))
        return DROPPED  # there is no body

    def _raise_lost(self) -> NoReturn:
        raise dist.DistNetworkError(f"{self._where}, is lost: connection closed by peer ({self._lost})")


class MemberStore(RunStore):
    """The run's store as one worker or server uses it; all workers must make the same calls in the same order.

    Our launcher keeps the store. Under another one rank 0 does, and announces its port in the launcher's own store.
    """

    _announced: ClassVar[int] = 0
    """How many stores this process has found by the launcher's, which keeps what was announced before."""

    def __init__(self, info: ProcessInfo, timeout: timedelta) -> None:
        """Wait for all processes of the run. Servers are awaited too, and exchange nothing."""
        raise_descriptor_limit()
        self._rank, self._workers, self._exchanges = info.rank, info.workers, 0
        self._server: StoreServer | None = None
        number = info.rank + (info.workers if info.role == "server" else 0)
        processes = info.workers + info.servers
        with run_secret(info) as secret:
            address, port = info.address, info.port
            if info.launch is None:
                MemberStore._announced += 1
                # Rank 0 keeps the launcher's store alive here until all have read the port.
                announced = self._launcher_store(info, secret, number, processes, timeout)
                port = port_number(announced.get(f"{_PORT}/{MemberStore._announced}"))
                address = LOOPBACK if info.nodes == 1 else address
            super().__init__(address, port, secret, timeout)
            self.set(f"here/{number}", "")
            self.wait([f"here/{each}" for each in range(processes)])

    def _launcher_store(
        self, info: ProcessInfo, secret: Secret, number: int, processes: int, timeout: timedelta
    ) -> Store:
        """The launcher's own store, in which rank 0 announces the port of the run's store, which it keeps."""
        where = f"{tcp(info.address, info.port)}?rank={number}&world_size={processes}"
        try:
            store: Store = default_store() or next(iter(rendezvous(where, timeout=timeout)))[0]
        except dist.DistNetworkError as error:
            if "EADDRINUSE" not in str(error):
                raise
            raise UsageError(
                f"port {info.port} of {info.host}, at which the workers were to find rank 0, is in use; set "
                "MASTER_PORT to a free port, the same for all workers"
            ) from None
        if number == 0:
            own = LOOPBACK
            if info.nodes > 1:  # a name may mean loopback on its own host, where no other host reaches it
                resolved = resolve(info.address, info.port)[1]
                own = _EVERYWHERE if resolved.startswith("127.") else resolved
            self._server = StoreServer(secret, own, 0)
            store.set(f"{_PORT}/{MemberStore._announced}", str(self._server.port))
        return store

    def exchange(self, document: Any) -> list[Any]:
        before = self._key(self._rank)
        self._exchanges += 1
        self.set(self._key(self._rank), json.dumps(document))
        documents = [json.loads(text) for text in self.read(self._keys())]
        self.delete_key(before)  # all workers are at this exchange, so all have read the one before
        return documents

    def leave(self) -> None:
        """Rank 0 waits for all, because its store must outlive the others' last use of it."""
        self._exchanges += 1
        with suppress(
            dist.DistNetworkError
        ):  # the word has arrived: rank 0 has closed the store after reading it
            self.set(self._key(self._rank), "left")
        if self._rank == 0:
            self.wait(self._keys())

    def close(self) -> None:
        super().close()
        if self._server is not None:
            self._server.close()

    def _key(self, rank: int) -> str:
        return f"paceline/{self._exchanges}/{rank}"

    def _keys(self) -> list[str]:
        return [self._key(rank) for rank in range(self._workers)]


def default_store() -> Store | None:
    """The store of the default group of torch.distributed, where a script has formed it already."""
    return PrefixStore("paceline", _get_default_store()) if dist.is_initialized() else None


def port_number(value: bytes) -> int:
    if not value.isdigit() or len(value) > 5 or not 0 < int(value) < 65536:
        raise RunFailed("the store that the launcher keeps has no port of the run's own store; start again")
    return int(value)


def check_equal(asked: Sequence[Mapping[str, Any]]) -> None:
    for rank, other in enumerate(asked):
        for key, first in asked[0].items():
            if other[key] != first:
                raise UsageError(
                    f"rank {rank} was started for something other than rank 0: {key} is {other[key]} there and "
                    f"{first} on rank 0; start every host with the same options"
                )
