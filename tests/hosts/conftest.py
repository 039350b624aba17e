"""Two hosts on one machine: network namespaces, a cable between them, host names that resolve nowhere."""

import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psutil
import pytest

from command import start_python

PREFIX = "paceline-"
CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000
"""As sched.h has them; Python has names for them from 3.12 on."""
_NUMBERS = count()


@dataclass
class Host:
    """One of the two; whatever is started on it is ended with the test."""

    namespace: str
    name: str
    address: str
    interface: str
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    def start(self, *words: str, cwd: Path | None = None, **variables: str) -> "subprocess.Popen[str]":
        """Run ``python *words`` on this host, under its own host name."""
        # The hosts share one machine: threads of one would spin on the cores that the other needs.
        env = {"OMP_NUM_THREADS": "1", **variables}
        if cwd is not None:
            cwd.mkdir(exist_ok=True)
        self.started.append(start_python(*words, cwd=cwd, env=env, first=self._enter))
        return self.started[-1]

    def _enter(self) -> None:
        """Move this process, and whatever it starts, to this host."""
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/run/netns", self.namespace).open() as network:
            if libc.setns(network.fileno(), CLONE_NEWNET) or libc.unshare(CLONE_NEWUTS):
                raise OSError(ctypes.get_errno(), f"cannot enter {self.namespace}")
        socket.sethostname(self.name)

    def unplug(self) -> None:
        """Cut the cable."""
        ip("-n", self.namespace, "link", "set", self.interface, "down")

    def end(self) -> None:
        """End everything that was started here, and the host itself."""
        for process in self.started:
            if process.poll() is None:
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
                process.kill()
            process.communicate()
        ip("netns", "del", self.namespace)


def ip(*words: str) -> None:
    """Run one ip command."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """node-a and node-b, 10.77.0.1 and 10.77.0.2."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and the ip command")
    _sweep()
    tag = f"{os.getpid()}-{next(_NUMBERS)}"
    hosts = tuple(
        Host(f"{PREFIX}{tag}-{letter}", f"node-{letter}", f"10.77.0.{number}", f"p{letter}{tag}"[:15])
        for number, letter in ((1, "a"), (2, "b"))
    )
    made: list[Host] = []
    try:
        for host in hosts:
            try:
                ip("netns", "add", host.namespace)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"this machine makes no network namespaces: {error.stderr.decode().strip()}")
            made.append(host)
        _connect(*hosts)
        yield hosts
    finally:
        for host in made:
            host.end()


def _connect(one: Host, other: Host) -> None:
    ends = ["name", one.interface, "netns", one.namespace, "type", "veth"]
    ip("link", "add", *ends, "peer", "name", other.interface, "netns", other.namespace)
    for host in (one, other):
        ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", host.interface)
        for interface in ("lo", host.interface):
            ip("-n", host.namespace, "link", "set", interface, "up")


def _sweep() -> None:
    """Remove what a test process that was killed has left."""
    names = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    for name in (line.split()[0] for line in names if line.startswith(PREFIX)):
        owner = name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
