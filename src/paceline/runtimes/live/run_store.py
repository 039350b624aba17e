"""A connection to the run's store, as torch.distributed takes one."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from math import ceil
from socket import AF_INET6
from time import monotonic
from typing import Self

import torch.distributed as dist
import zmq
from torch.distributed.distributed_c10d import Store
from zmq.utils.monitor import recv_monitor_message

from paceline.errors import UsageError
from paceline.runtimes.live.addresses import resolve, tcp
from paceline.runtimes.live.secret import Secret, member_keys, store_keys
from paceline.runtimes.live.store_requests import (
    LONGEST_VALUE,
    LONGEST_WAIT,
    NUMBER,
    Op,
    Request,
    Status,
    unpack_answer,
)

_ATTEMPTS = 5
"""Handshakes that may fail before the secret is wrong beyond doubt."""
_WATCHED = (
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
)


class Connection:
    """A DEALER socket, and what its monitor has told.

    A connection that stood and was lost stays lost: messages may have gone with it.
    """

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self.socket = socket
        self.events = socket.get_monitor_socket(_WATCHED)
        self.stands = False
        """Whether the handshake has succeeded, ever."""
        self.down_at: float | None = None
        """When the connection was lost, by the monotonic clock."""
        self._failed = 0

    @property
    def turned_away(self) -> bool:
        """Whether the other end has another secret, beyond doubt."""
        return self._failed >= _ATTEMPTS

    def watch(self) -> None:
        """Take in what the monitor has told."""
        while self.events.poll(0):
            self._notice(recv_monitor_message(self.events)["event"])

    def close(self) -> None:
        """Close; what was sent may be lost."""
        self.socket.disable_monitor()
        self.events.close(linger=0)
        self.socket.close(linger=0)

    def _notice(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.stands = True
        elif event == zmq.EVENT_DISCONNECTED:
            if self.stands and self.down_at is None:
                self.down_at = monotonic()
        elif not self.stands:
            self._failed += 1


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
        """Begin to connect; nobody needs to listen there yet."""
        super().__init__()
        self.set_timeout(timeout)
        self._address, self._port, self._secret = address, port, secret
        self._lock, self._numbers = threading.Lock(), count(1)
        self._clones: list[RunStore] = []
        # One context for the process: it is never taken apart, which would wait for connections that torch still has.
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        socket = context.socket(zmq.DEALER)
        endpoint = resolve(address, port)
        socket.linger, socket.maxmsgsize, socket.ipv6 = 0, LONGEST_VALUE, endpoint.family == AF_INET6
        socket.tcp_keepalive, socket.tcp_keepalive_idle = 1, 60  # it may be hours until it is needed again
        socket.curve_serverkey = store_keys(secret).public
        socket.curve_publickey, socket.curve_secretkey = member_keys(secret)
        self._connection = Connection(socket)
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(self._connection.events, zmq.POLLIN)
        socket.connect(tcp(endpoint.address, port))

    def stands(self, seconds: float) -> bool:
        """Whether the store answers, as far as is known after so many seconds."""
        with self._lock:
            deadline = monotonic() + seconds
            while not self._connection.stands:
                self._watch()
                left = deadline - monotonic()
                if left <= 0:
                    break
                self._connection.events.poll(ceil(left * 1000))
            return self._connection.stands

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key, for all to read."""
        self._ask(Op.SET, [key], [value])

    def get(self, key: str) -> bytes:
        """The value of a key; waits for it."""
        return self.read([key])[0]

    def read(self, keys: Sequence[str]) -> list[bytes]:
        """The values of several keys; waits for them."""
        return self._ask(Op.READ, keys, wait=self.timeout)[1]

    def peek(self, keys: Sequence[str]) -> list[bytes] | None:
        """The values of several keys, or None while one of them is missing; waits for nobody."""
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
        return int(self._ask(Op.ADD, [key], [NUMBER.pack(amount)])[1][0])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a key if it is as expected, where "" expects none; return what it is then."""
        return self._ask(Op.COMPARE_SET, [key], [expected, desired])[1][0]

    def delete_key(self, key: str) -> bool:
        """Remove a key; whether there was one."""
        return self._ask(Op.DELETE, [key])[0] is Status.DONE

    def num_keys(self) -> int:
        """How many keys are set."""
        return int(NUMBER.unpack(self._ask(Op.COUNT, [])[1][0])[0])

    def clone(self) -> Self:
        """Another connection to the same store; it is closed with this one."""
        other = type(self)(self._address, self._port, self._secret, self.timeout)
        self._clones.append(other)
        return other

    def close(self) -> None:
        """Close the connection; what was asked and not answered is given up."""
        for other in self._clones:
            other.close()
        with self._lock:
            if not self._connection.socket.closed:
                self._connection.close()

    def _ask(
        self,
        op: Op,
        keys: Sequence[str],
        values: Sequence[str | bytes] = (),
        wait: timedelta = timedelta(0),
    ) -> tuple[Status, list[bytes]]:
        with self._lock:
            seconds = min(wait.total_seconds(), LONGEST_WAIT)
            request = Request(
                next(self._numbers) % 2**32,
                op,
                seconds,
                tuple(key.encode() for key in keys),
                tuple(value.encode() if isinstance(value, str) else bytes(value) for value in values),
            )
            deadline = monotonic() + (seconds or self.timeout.total_seconds())
            self._send(request, deadline)
            return self._answer(request, deadline)

    def _send(self, request: Request, deadline: float) -> None:
        frames = request.pack()
        while True:
            self._watch()
            try:
                self._connection.socket.send_multipart(frames, zmq.NOBLOCK)
                return
            except zmq.Again:
                self._wait(zmq.POLLIN | zmq.POLLOUT, request, deadline)

    def _answer(self, request: Request, deadline: float) -> tuple[Status, list[bytes]]:
        while True:
            with suppress(zmq.Again):
                number, status, values = unpack_answer(self._connection.socket.recv_multipart(zmq.NOBLOCK))
                if number != request.number:
                    continue  # the answer to a question that was given up
                if status is Status.REFUSED:
                    raise ValueError(f"the run's store refuses {_shown(request)}: {values[0].decode()}")
                return status, values
            self._watch()
            self._wait(zmq.POLLIN, request, deadline)

    def _wait(self, what: int, request: Request, deadline: float) -> None:
        left = deadline - monotonic()
        if left <= 0:
            raise dist.DistStoreError(
                f"wait timeout: no answer to {_shown(request)} from the run's store at {self._address}, "
                f"port {self._port}"
            )
        self._poller.modify(self._connection.socket, what)
        self._poller.poll(ceil(left * 1000))

    def _watch(self) -> None:
        if self._connection.socket.closed:
            raise dist.DistNetworkError("the connection to the run's store is closed")
        self._connection.watch()
        if self._connection.down_at is not None:
            raise dist.DistNetworkError(
                f"the run's store at {self._address}, port {self._port}, is lost: connection closed by peer"
            )
        if self._connection.turned_away:
            raise UsageError(
                f"the run's store at {self._address}, port {self._port}, does not take this process's secret; "
                "give the same --secret-file on every host"
            )


def _shown(request: Request) -> str:
    return f"{request.op.name.lower()} {', '.join(key.decode() for key in request.keys[:3])}"
