"""Whoever is not invited, and whatever does not fit, is refused, counted and survived while the work goes on."""

import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
from served_transport import LENGTH, SECRET, a_server, a_worker

from paceline.errors import UsageError
from paceline.runtimes.live.server.server_socket import ServerSocket
from paceline.runtimes.live.wire import listener
from paceline.runtimes.live.wire.channel import (
    OTHER_VERSION,
    PROLOGUE,
    RECORD,
    REFUSED,
    Channel,
    Packet,
    connect,
)
from paceline.runtimes.live.wire.encoding import pack
from paceline.runtimes.live.wire.listener import MOST_UNPROVEN
from paceline.runtimes.live.wire.messages import Hello
from paceline.runtimes.live.wire.noise import MESSAGE, Handshake
from paceline.runtimes.live.wire.shared_flat import SharedFlat
from paceline.runtimes.live.worker.server_comm import ServerClient
from paceline.strategies.messages import Join, Model, Push


@contextmanager
def working(server: ServerSocket) -> Any:
    """A good worker that pushes and is answered before, while and after something happens."""
    with a_worker(server) as (worker, params, grad):

        def work() -> None:
            grad.add_(1)
            worker.send(0, Push(grad, 1, 1, 1))
            parcel = server.receive(5)
            assert parcel is not None
            assert parcel.sender.rank == 0
            assert torch.equal(parcel.message.grad, grad)
            server.send(0, Model(grad * 2, 1, 1, 1, 0.0))
            worker.receive(5)
            assert torch.equal(params, grad * 2)

        work()
        yield work
        work()


def until(condition: Callable[[], bool], work: Callable[[], None]) -> None:
    """Work until it is so, for a few seconds at most."""
    end = time.monotonic() + 8
    while not condition():
        assert time.monotonic() < end, "was never counted"
        work()


def reach(server: ServerSocket) -> socket.socket:
    host, port = server.endpoint.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)))


def knock(server: ServerSocket, data: bytes) -> None:
    """Say something over plain TCP, and go."""
    with reach(server) as stranger:
        stranger.sendall(data)
        stranger.settimeout(0.3)
        with suppress(OSError):
            while stranger.recv(1000):
                pass


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET / HTTP/1.0\r\n\r\n",
        b"\x80\x04\x95" + bytes(100),
        b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(200),
        b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(200),
        b"\xff" * 300,
        os.urandom(2000),
        PROLOGUE,
        PROLOGUE + os.urandom(MESSAGE),
    ],
    ids=["silence", "http", "pickle", "curve", "null", "ones", "noise", "half", "made up"],
)
def test_what_speaks_another_protocol_is_a_stranger(data: bytes) -> None:
    with a_server() as server, working(server) as work:
        for _ in range(3):
            knock(server, data)
        until(lambda: sum(server.refused.values()) >= 3, work)
        assert set(server.refused) <= {"stranger", "wrong key"}
        assert sum(server.refused.values()) == 3


def test_a_client_with_another_secret_hears_so_and_gets_nothing_through() -> None:
    with a_server() as server, working(server) as work, reach(server) as stranger:
        stranger.sendall(PROLOGUE + Handshake(bytes(32), PROLOGUE).write())
        assert stranger.recv(1000) == REFUSED
        assert stranger.recv(1000) == b""
        until(lambda: server.refused["wrong key"] > 0, work)
        assert server.refused == {"wrong key": 1}


def test_a_worker_of_another_version_hears_so() -> None:
    """If this failed, it would try for 15 seconds and then know of no reason."""
    with a_server() as server, reach(server) as member:
        member.sendall(b"paceline wire 9\n" + bytes(MESSAGE))
        assert member.recv(1000) == OTHER_VERSION
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            with other.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(OTHER_VERSION)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        endpoint = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(
            UsageError, match=r"server 0 at .* runs another version of paceline; install the same"
        ):
            ServerClient(SECRET, [endpoint], SharedFlat())
        thread.join()


def test_what_was_recorded_from_a_member_opens_nothing() -> None:
    """If this failed, whoever reads the network could push a gradient again, or end a worker with an old Goodbye."""
    with a_server() as server, working(server) as work:
        handshake = Handshake(SECRET.key("wire"), PROLOGUE)
        first = PROLOGUE + handshake.write()
        with reach(server) as member:
            member.sendall(first)
            handshake.read(member.recv(MESSAGE))
            sealing, _ = handshake.split()
            recorded = b"".join(map(sealing.seal, (b"", struct.pack("<IQ", 5, 0), b"\6\0lo!")))
            member.sendall(recorded)
            until(lambda: server.refused["malformed"] == 1, work)
        with reach(server) as stranger:
            stranger.sendall(first)
            assert len(stranger.recv(MESSAGE)) == MESSAGE
            stranger.sendall(recorded)
            until(lambda: server.refused["wrong key"] == 1, work)
        assert server.refused == {"malformed": 1, "wrong key": 1}


@pytest.mark.parametrize("how", ["changed", "repeated", "left out"])
def test_records_cannot_be_tampered_with(how: str) -> None:
    with a_server() as server, working(server) as work, reach(server) as member:
        handshake = Handshake(SECRET.key("wire"), PROLOGUE)
        member.sendall(PROLOGUE + handshake.write())
        handshake.read(member.recv(MESSAGE))
        sealing, _ = handshake.split()
        proof = sealing.seal(b"")
        records = [sealing.seal(part) for _ in "12" for part in (struct.pack("<IQ", 5, 0), b"\6\0lo!")]
        member.sendall(proof + records[0] + records[1])
        until(lambda: server.refused["malformed"] == 1, work)
        bad = {
            "changed": records[2][:-1] + bytes([records[2][-1] ^ 1]),
            "repeated": records[0],
            "left out": records[3] + bytes(20),
        }[how]
        member.sendall(bad)
        member.settimeout(5)
        assert member.recv(100) == b"", "the connection must end"
        assert server.refused == {"malformed": 1}


def test_connections_that_prove_nothing_are_bounded() -> None:
    """If this failed, anybody on the network could take all descriptors of a server."""
    with a_server() as server, working(server) as work:
        strangers = [reach(server) for _ in range(MOST_UNPROVEN + 20)]
        try:
            until(lambda: server.refused["stranger"] >= 20, work)
            assert server.refused == {"stranger": 20}
            with a_worker(server, rank=3):
                pass
        finally:
            for stranger in strangers:
                stranger.close()


def test_a_member_that_is_late_to_speak_is_a_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this failed, a worker would lose its first server while it waits for its second."""
    monkeypatch.setattr(listener, "HANDSHAKE", 0.3)
    with a_server() as server:
        channel = connect(server.endpoint, SECRET.key("wire"))
        time.sleep(1)
        channel.send(pack(Hello(7)), most=1)
        parcel = server.receive(5)
        assert parcel is not None
        assert parcel.message == Hello(7)
        assert not server.refused
        channel.close()


def test_strangers_do_not_shut_a_member_out_between_its_two_messages() -> None:
    """If this failed, a flood of connections would end the run of whoever is about to prove itself."""
    with a_server() as server, reach(server) as member:
        handshake = Handshake(SECRET.key("wire"), PROLOGUE)
        member.sendall(PROLOGUE + handshake.write())
        handshake.read(member.recv(MESSAGE))
        strangers = [reach(server) for _ in range(MOST_UNPROVEN + 20)]
        try:
            until(lambda: server.refused["stranger"] >= 20, lambda: time.sleep(0.05))
            hello = pack(Hello(7)).header
            sealing, _ = handshake.split()
            member.sendall(b"".join(map(sealing.seal, (b"", struct.pack("<IQ", len(hello), 0), hello))))
            parcel = server.receive(5)
            assert parcel is not None
            assert parcel.message == Hello(7)
        finally:
            for stranger in strangers:
                stranger.close()


def member_of(server: ServerSocket) -> Channel:
    """A connection with the secret that the server knows as worker 7."""
    channel = connect(server.endpoint, SECRET.key("wire"))
    channel.send(pack(Hello(7)), most=1)
    parcel = server.receive(5)
    assert parcel is not None
    server.bind(parcel)
    return channel


def good_push() -> Packet:
    return pack(Push(torch.zeros(LENGTH), 0, 0, 1))


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        ((b"", memoryview(b"")), "malformed"),
        ((b"\1\0" + os.urandom(100), memoryview(b"")), "malformed"),
        ((good_push().header[:20], good_push().body), "malformed"),
        ((good_push().header, good_push().body[:-1]), "wrong length"),
        ((good_push().header, memoryview(bytes(LENGTH * 4 + 1))), "wrong length"),
        (pack(Push(torch.zeros(LENGTH + 1), 0, 0, 1)), "wrong length"),
        (pack(Push(torch.zeros(LENGTH, dtype=torch.float64), 0, 0, 1)), "wrong type"),
        (pack(Push(torch.zeros(LENGTH), 0, 0, 1), find=lambda _: 4096), "no shared memory"),
        (pack(Model(torch.zeros(LENGTH), 0, 0, 0, 0.0)), "unexpected kind"),
        (pack(Push(torch.zeros(LENGTH), -5, 0, 1)), "out of range"),
    ],
)
def test_messages_that_do_not_fit_are_refused_even_from_a_member(packet: Any, reason: str) -> None:
    with a_server() as server, working(server) as work:
        member = member_of(server)
        member.send(Packet(*packet), most=1, patience=5)
        until(lambda: server.refused[reason] > 0, work)
        assert server.refused == {reason: 1}
        member.send(pack(Join()), most=1)
        parcel = server.receive(5)
        assert parcel is not None
        assert (parcel.sender.rank, parcel.message) == (7, Join()), "it may still do better"
        member.close()


def test_a_message_that_is_far_too_large_ends_its_connection_before_it_takes_memory() -> None:
    with a_server(length=RECORD) as server:
        member = member_of(server)
        with pytest.raises(OSError):  # noqa: PT011
            member.send(Packet(b"", memoryview(bytes(2**30))), most=1, patience=5)
        assert not server.send(7, Model(torch.zeros(1), 0, 0, 0, 0.0))
        member.close()


def test_noise_in_parallel_does_not_stop_the_work() -> None:
    """Many members' worth of nonsense, at once with good work: every piece is counted."""
    with a_server() as server, working(server) as work:
        member = member_of(server)
        for _ in range(300):
            member.send(Packet(b"\0\0" + os.urandom(50), memoryview(b"")), most=1, patience=5)
        until(lambda: server.refused["malformed"] >= 300, work)
        assert server.refused == {"malformed": 300}
        member.close()
