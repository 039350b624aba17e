"""Whoever is not invited, and whatever does not fit, is refused, counted and survived while the work goes on."""

import os
import socket
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
import zmq
from served_transport import LENGTH, SECRET, a_server, a_worker

from paceline.runtimes.live.served import wire
from paceline.runtimes.live.served.control import Hello
from paceline.runtimes.live.served.keys import Secret, server_keys, worker_keys
from paceline.runtimes.live.served.server_socket import ServerSocket
from paceline.runtimes.live.served.wire import PIECE
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
            assert parcel.worker == 0
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


def knock(server: ServerSocket, data: bytes) -> None:
    """Say something over plain TCP, and go."""
    address = server.endpoint.removeprefix("tcp://").split(":")
    with socket.create_connection((address[0], int(address[1]))) as stranger:
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
        b"\x01\x00" * 50,
        b"\xff" * 300,
        os.urandom(2000),
    ],
    ids=["silence", "http", "pickle", "curve", "null", "old", "ones", "noise"],
)
def test_what_speaks_no_zeromq_is_a_stranger(data: bytes) -> None:
    with a_server() as server, working(server) as work:
        for _ in range(3):
            knock(server, data)
        until(lambda: sum(server.refused.values()) >= 3, work)
        assert set(server.refused) <= {"stranger", "wrong key"}
        assert sum(server.refused.values()) == 3


@contextmanager
def client(server: ServerSocket, keys: tuple[bytes, bytes, bytes] | None) -> Any:
    """A client of ZeroMQ, with or without CURVE, that tries once."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger, dealer.reconnect_ivl = 0, -1
        if keys:
            dealer.curve_serverkey, dealer.curve_publickey, dealer.curve_secretkey = keys
        dealer.connect(server.endpoint)
        yield dealer


def right_keys() -> tuple[bytes, bytes, bytes]:
    return server_keys(SECRET).public, *worker_keys(SECRET)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (None, "stranger"),
        ((server_keys(Secret(b"x" * 20)).public, *worker_keys(Secret(b"x" * 20))), "wrong key"),
        ((server_keys(SECRET).public, *zmq.curve_keypair()), "wrong key"),
        ((server_keys(SECRET).public, *server_keys(SECRET)), "wrong key"),
    ],
    ids=["no curve", "another secret", "only the server's key", "the server's own keys"],
)
def test_a_client_without_the_secret_gets_nothing_through(
    keys: tuple[bytes, bytes, bytes] | None, reason: str
) -> None:
    with a_server() as server, working(server) as work, client(server, keys) as stranger:
        with suppress(zmq.Again):  # it may have been turned away already
            stranger.send_multipart(wire.pack(Hello(5)), zmq.NOBLOCK)
        until(lambda: server.refused[reason] > 0, work)
        assert server.receive(0.1) is None
        assert server.refused == {reason: 1}


def good_push() -> list[Any]:
    return wire.pack(Push(torch.zeros(LENGTH), 0, 0, 1))


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([b""], "malformed"),
        ([os.urandom(100)], "malformed"),
        ([good_push()[0][:20], *good_push()[1:]], "malformed"),
        (good_push()[:-1], "wrong length"),
        ([*good_push(), b"more"], "malformed"),
        ([good_push()[0], bytes(PIECE + 1), *good_push()[2:]], "too large"),
        (wire.pack(Push(torch.zeros(LENGTH + 1), 0, 0, 1)), "wrong length"),
        (wire.pack(Push(torch.zeros(LENGTH, dtype=torch.float64), 0, 0, 1)), "wrong type"),
        (wire.pack(Push(torch.zeros(LENGTH), 0, 0, 1), place=lambda _: 4096), "no shared memory"),
        (wire.pack(Model(torch.zeros(LENGTH), 0, 0, 0, 0.0)), "unexpected kind"),
        (wire.pack(Push(torch.zeros(LENGTH), -5, 0, 1)), "out of range"),
    ],
)
def test_frames_that_do_not_fit_are_refused_even_from_a_member(frames: list[Any], reason: str) -> None:
    with a_server() as server, working(server) as work, client(server, right_keys()) as member:
        member.send_multipart(wire.pack(Hello(7)))
        parcel = server.receive(5)
        assert parcel is not None
        server.bind(parcel.channel, 7)
        member.send_multipart(frames)
        until(lambda: server.refused[reason] > 0, work)
        assert server.refused == {reason: 1}
        member.send_multipart(wire.pack(Join()))
        parcel = server.receive(5)
        assert parcel is not None
        assert (parcel.worker, parcel.message) == (7, Join()), "it may still do better"


def test_a_frame_that_is_far_too_large_ends_its_connection_before_it_takes_memory() -> None:
    with a_server() as server, working(server) as work, client(server, right_keys()) as member:
        member.send_multipart(wire.pack(Hello(7)))
        parcel = server.receive(5)
        assert parcel is not None
        server.bind(parcel.channel, 7)
        member.send(bytes(3 * PIECE))
        until(lambda: not server.reply(parcel.channel, Join()), work)


def test_noise_in_parallel_does_not_stop_the_work() -> None:
    """Many members' worth of nonsense, at once with good work: every piece is counted."""
    with a_server() as server, working(server) as work, client(server, right_keys()) as member:
        for _ in range(300):
            member.send_multipart([os.urandom(50)])
        until(lambda: server.refused["malformed"] >= 300, work)
        assert server.refused == {"malformed": 300}
