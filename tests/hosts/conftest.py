"""Two hosts on one machine: network namespaces, a cable between them, host names that resolve nowhere."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psutil
import pytest

PREFIX = "paceline-"
_NUMBERS = count()


@dataclass
class Host:
    """One of the two; whatever is started on it is ended with the test."""

    namespace: str
    name: str
    address: str
    interface: str
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    def start(self, *command: str, cwd: Path | None = None) -> "subprocess.Popen[str]":
        """Run a command on this host, under its own host name."""
        # The hosts share one machine: threads of one would spin on the cores that the other needs.
        rename = f'hostname {self.name}; export OMP_NUM_THREADS=1; exec "$@"'
        inside = [
            "ip",
            "netns",
            "exec",
            self.namespace,
            "unshare",
            "--uts",
            "sh",
            "-c",
            rename,
            "sh",
            *command,
        ]
        pipe = subprocess.PIPE
        if cwd is not None:
            cwd.mkdir(exist_ok=True)
        self.started.append(subprocess.Popen(inside, stdout=pipe, stderr=pipe, text=True, cwd=cwd))
        return self.started[-1]

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
