"""Somebody without the run's secret, who tries what an open store would allow: stranger.py ATTACK ADDRESS PORT..."""

import encodings.idna  # noqa: F401  needed for any address, and not to be read by everybody
import json
import os
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial

from torch.distributed import DistError, TCPStore

from paceline.errors import UsageError
from paceline.runtimes.live.store_server import Op, StoreRequest
from paceline.runtimes.live.wire.channel import PROLOGUE, connect

TEXT = "\x1b[31mthe stranger was here\x1b[0m"
FAILURE = {"rank": 0, "role": "server", "host": TEXT, "kind": "error", "message": TEXT, "step": 1, "at": 1.0}
KEYS = {
    "stop/asked": "",
    "board/stop": "asked",
    "failure": json.dumps({**FAILURE, "where": "", "traceback": TEXT, "run": None}),
    **{f"paceline/{number}/0": '"/stranger"' for number in range(1, 9)},
    "served/run": json.dumps({"name": "/stranger", "asked": {}, "begun": 0.0, "step": None}),
}
"""What would end a run, or lead it astray."""
BIG = 16 * 2**20
PUSHES = 24
HELD = 1500
PATIENCE = 5.0
"""Seconds for whoever is still trying: pushing everything into an open store takes two."""
NOBODY = 65534


def by_torch(address: str, port: int) -> None:
    """As a client of torch's own store, which needs no secret; then fill the memory of whoever keeps it."""
    store = TCPStore(address, port, None, False, timedelta(seconds=0.5), wait_for_workers=False)
    for key, value in KEYS.items():
        store.set(key, value)
    for number in range(PUSHES):
        store.set(f"big-{number}", "x" * BIG)


NOISE = (b"", b"\xff" + bytes(8) + b"\x7f\x03\x00NULL", struct.pack("<BQ", 0, 2**40), os.urandom(999))
"""How nobody in particular begins: without a word, in another protocol, with a length that nobody should believe."""


def by_socket(address: str, port: int, start: bytes) -> None:
    with suppress(OSError), socket.create_connection((address, port), timeout=2) as stranger:
        stranger.sendall(start)
        for _ in range(20):
            stranger.sendall(bytes(2**20))


def by_protocol(address: str, port: int, *, guess: bool) -> None:
    """As a client of the store that has everything but the secret: without a handshake, or with a guessed key."""
    requests = [
        StoreRequest(1, Op.SET, (key.encode(),), (value.encode(),)).pack() for key, value in KEYS.items()
    ]
    if guess:
        try:
            connect(f"tcp://{address}:{port}", os.urandom(32), patience=1.0)
        except UsageError:
            return
        raise AssertionError("a stranger was let in")
    with socket.create_connection((address, port), timeout=2) as stranger:
        stranger.sendall(PROLOGUE + b"".join(requests))
        answer = stranger.recv(4096)
        assert b"another secret" in answer or not answer, "a stranger was answered"


def knock(address: str, ports: list[int]) -> None:
    """Try everything once at every port."""
    threads = [
        threading.Thread(target=_quietly, args=(attempt, address, port), daemon=True)
        for port in ports
        for attempt in (by_torch, *(partial(by_socket, start=start) for start in NOISE))
    ]
    for thread in threads:
        thread.start()
    for port in ports:
        for guess in (False, True):
            by_protocol(address, port, guess=guess)
    end = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


def _quietly(attempt, address: str, port: int) -> None:
    with suppress(DistError, RuntimeError, OSError):
        attempt(address, port)


def hold(address: str, ports: list[int]) -> None:
    """Open many connections and keep them, without a word, for as long as a handshake may take and longer."""
    held = []
    for port in ports:
        for _ in range(HELD):
            with suppress(OSError):
                held.append(socket.create_connection((address, port), timeout=2))
    sys.stdout.write(f"held {len(held)}\n")
    sys.stdout.flush()
    time.sleep(3)


def become_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


if __name__ == "__main__":
    become_nobody()
    {"knock": knock, "hold": hold}[sys.argv[1]](sys.argv[2], [int(port) for port in sys.argv[3:]])
    os._exit(0)  # threads of torch may still wait for an answer
