"""A live run with a server under siege: 1,000 hostile store values and 10,000 hostile frames, no effect but a count.

Values come over connections of their own: as a client of torch's TCPStore would set them, by our own protocol without
a handshake and with a wrong key. Frames are noise over plain TCP, requests with a wrong key, and, with the right key,
requests that are malformed. Quiet and besieged stretches of the same run take turns. Exits with 1 if the run ends,
writes elsewhere, shows a stranger's text, grows, or takes less than 70 % of its quiet steps; the besiegers compute on
the same machine.
"""

import argparse
import os
import random
import re
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from _fault_hosts import local_rank
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.store_server import Op, StoreRequest
from paceline.runtimes.live.wire.channel import PROLOGUE, Packet, connect
from paceline.runtimes.live.wire.noise import Handshake

VALUES, FRAMES = 1_000, 10_000
LEAST_RATE, MOST_GROWTH = 0.7, 64 * 2**20
TEXT = b"\x1b[31mthe stranger was here"
HOSTILE = {
    b"stop/asked": b"",
    b"board/stop": b"asked",
    b"failure": b'{"rank":0,"host":"x","kind":"error","message":"' + TEXT + b'"}',
    b"paceline/4/0": b'"/stranger"',
    b"served/run": b'{"name":"/stranger"}',
}
TRAIN = "--strategy ssp --workers 1 --servers 1 --batch-size 4 -i 100000000 --evaluate-every never"


class Siege:
    """Everything that is sent, spread over so many stretches."""

    def __init__(self, store: int, server: int, secret: Secret, stretches: int, per_second: float) -> None:
        self._ports, self._stretches, self._per_second = (store, server), stretches, per_second
        self._keys = {store: secret.key("store"), server: secret.key("wire")}
        self._random = random.Random(0)
        self.values = self.frames = self.malformed = 0
        self.connections = dict.fromkeys(self._ports, 0)

    def one_stretch(self) -> None:
        """A share of all attacks, in turns against both ports."""
        for number in range(VALUES // self._stretches):
            self._value(self._ports[0], *self._random.choice(list(HOSTILE.items())), number % 3)
        share = FRAMES // self._stretches // 2
        for port in self._ports:
            noise, wrong = share // 4, share // 40 * 10
            self._noise(port, noise)
            self._wrong_key(port, wrong)
            self._malformed(port, share - noise - wrong)

    def _pace(self, sent: int = 1) -> None:
        """Strangers are not to take the cores that the run needs: it is not their speed that is measured."""
        time.sleep(sent / self._per_second)

    def _value(self, port: int, key: bytes, value: bytes, how: int) -> None:
        self.values += 1
        self.connections[port] += 1
        self._pace()
        if how == 0:
            self._plain(port, _as_tcp_store(key, value))
            return
        request = StoreRequest(1, Op.SET, (key,), (value,)).pack()
        greeting = b"" if how == 1 else Handshake(bytes(32), PROLOGUE).write()
        self._plain(port, PROLOGUE + greeting + request)

    def _noise(self, port: int, frames: int) -> None:
        for _ in range(frames):
            self.frames += 1
            self.connections[port] += 1
            self._pace()
            self._plain(port, self._random.randbytes(self._random.randrange(1, 2000)))

    def _wrong_key(self, port: int, frames: int) -> None:
        for _ in range(frames // 10):
            self.connections[port] += 1
            self._pace(10)
            self._plain(port, PROLOGUE + Handshake(bytes(32), PROLOGUE).write() + bytes(280))
            self.frames += 10

    def _malformed(self, port: int, frames: int) -> None:
        channel = connect(f"tcp://127.0.0.1:{port}", self._keys[port])
        bodies = 2 if port == self._ports[1] else 1
        for number in range(frames):
            noise = self._random.randbytes(self._random.randrange(0, 60))
            channel.send(Packet(noise, memoryview(noise * (number % bodies))), 1, patience=10.0)
            self.frames, self.malformed = self.frames + 1, self.malformed + 1
            if number % 50 == 0:
                self._pace(50)
        channel.close()

    def _plain(self, port: int, data: bytes) -> None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as stranger:
            stranger.sendall(data)


def _as_tcp_store(key: bytes, value: bytes) -> bytes:
    """What torch's own store takes for "validate me, then set this"."""
    return struct.pack("<BI", 0, 0x3C85F7CE) + b"".join(
        [b"\x01", struct.pack("<Q", len(key)), key, struct.pack("<Q", len(value)), value]
    )


def listening(process: psutil.Process) -> int:
    (port,) = [
        each.laddr.port for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN
    ]
    return int(port)


def steps(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("runs/*/events/rank-0.jsonl"))


def wait_for(
    condition: Callable[[], object], launcher: "subprocess.Popen[str]", seconds: float = 120
) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if launcher.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"the run has ended, or does not go on: {launcher.communicate()}")
        time.sleep(0.05)


def rate(folder: Path, launcher: "subprocess.Popen[str]", until: Callable[[], bool]) -> float:
    """Steps a second from one written batch of records to the first one after ``until``."""
    first = steps(folder)
    wait_for(lambda: steps(folder) > first, launcher)
    first, began = steps(folder), time.monotonic()
    wait_for(until, launcher, 300)
    last = steps(folder)
    wait_for(lambda: steps(folder) > last, launcher)
    return (steps(folder) - first) / (time.monotonic() - began)


def besiege(
    folder: Path, launcher: "subprocess.Popen[str]", siege: Siege, stretches: int, quiet: float
) -> list[float]:
    """The rate under siege over the quiet rate before it, stretch by stretch."""
    ratios = []
    for number in range(stretches):
        end = time.monotonic() + quiet
        calm = rate(folder, launcher, lambda end=end: time.monotonic() > end)  # type: ignore[misc]
        attack = threading.Thread(target=siege.one_stretch)
        attack.start()
        troubled = rate(folder, launcher, lambda attack=attack: not attack.is_alive())  # type: ignore[misc]
        ratios.append(troubled / calm)
        print(f"stretch {number + 1}: quiet {calm:7,.0f} steps/s, under siege {troubled:7,.0f} steps/s")
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stretches", type=int, default=4)
    parser.add_argument("--per-second", type=float, default=500.0, help="hostile values and frames a second")
    parser.add_argument("--quiet", type=float, default=8.0, help="seconds of each quiet stretch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-siege-") as name:
        folder = Path(name)
        secret = Secret.new()
        secret.write(folder / "secret")
        command = [sys.executable, "-m", "paceline", "train", *TRAIN.split(), "--secret-file", "secret"]
        launcher = subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            return _judge(folder, launcher, secret, options)
        finally:
            if launcher.poll() is None:
                os.killpg(launcher.pid, signal.SIGKILL)
            launcher.communicate()


def _judge(
    folder: Path, launcher: "subprocess.Popen[str]", secret: Secret, options: argparse.Namespace
) -> int:
    wait_for(lambda: steps(folder) > 5, launcher)
    process = psutil.Process(launcher.pid)
    server = max(process.children(), key=lambda child: local_rank(child.pid) or 0)
    siege = Siege(listening(process), listening(server), secret, options.stretches, options.per_second)
    before = [each.memory_info().rss for each in (process, server)]
    ratios = besiege(folder, launcher, siege, options.stretches, options.quiet)
    growth = [each.memory_info().rss - old for each, old in zip((process, server), before, strict=True)]
    launcher.send_signal(signal.SIGINT)
    out, error = launcher.communicate(timeout=120)
    outside, inside = _told(error)
    at_server = sum(
        int(number.replace(",", ""))
        for line in re.findall(r"refused at the socket: .*", out)
        for number in re.findall(r" ([\d,]*\d)", line)
    )
    expected = sum(siege.connections.values()) + siege.malformed
    ratio = statistics.median(ratios)
    print(
        f"sent: {siege.values:,} hostile values and {siege.frames:,} hostile frames, "
        f"over {sum(siege.connections.values()):,} connections"
    )
    print(
        f"refused: {outside:,} connections and {inside:,} malformed requests at the store, {at_server:,} at the server"
    )
    print(f"rate under siege: {ratio:.0%} of the quiet rate (median of {options.stretches})")
    print(f"memory: launcher {growth[0] / 2**20:+.1f} MiB, server {growth[1] / 2**20:+.1f} MiB")
    found = {
        f"the run ended with {launcher.returncode} instead of 130": launcher.returncode != 130,
        "something was written elsewhere": Path("/stranger").exists()
        or len(list(folder.glob("runs/*"))) != 1,
        "a stranger's text was shown": "the stranger was here" in out + error,
        "memory grew": max(growth) > MOST_GROWTH,
        "steps took longer": ratio < LEAST_RATE,
        f"not everything was counted, but {expected:,} attempts": outside + inside + at_server != expected,
    }
    for effect in [effect for effect, true in found.items() if true]:
        print(f"EFFECT: {effect}")
    return int(any(found.values()))


def _told(error: str) -> tuple[int, int]:
    """Connections and requests that the store has refused, as the user is told."""
    (line,) = re.findall(r"^paceline: refused: .*$", error, re.M) or ["refused:"]
    found = [re.search(rf"([\d,]+) {what}", line) for what in ("connections", "malformed")]
    outside, inside = (int(each[1].replace(",", "")) if each else 0 for each in found)
    return outside, inside


if __name__ == "__main__":
    sys.exit(main())
