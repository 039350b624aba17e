"""A link between two network namespaces that delivers every packet late, also where the kernel has no netem.

    python benchmarks/_delay_link.py 0.005 one,eth0,10.77.0.1/24 two,eth0,10.77.0.2/24

Each end is a TUN device that this process makes, with that name and address, in that namespace. It hands packets over
after so many seconds, in both directions, says "ready" when both ends are up, and removes them when it is ended. TUN
devices carry packets whose checksums the kernel has filled in, so there is no offloading to be turned off. Root only.
"""

import ctypes
import fcntl
import os
import select
import stat
import struct
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

DEVICE = Path("/dev/net/tun")
NUMBER = os.makedev(10, 200)
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
"""As sched.h and if_tun.h have them."""
LARGEST = 65_000
"""Bytes of a packet: few packets, for a process in Python is slower than a network card."""


@dataclass
class End:
    """One device, and what has come out of it and is still under way to the other."""

    device: int
    under_way: deque[tuple[float, bytes]] = field(default_factory=deque)

    def take(self, delay: float) -> None:
        """Read what is there; nothing more is an end, not an error."""
        try:
            while True:
                packet = os.read(self.device, LARGEST + 100)
                self.under_way.append((time.monotonic() + delay, packet))
        except BlockingIOError:
            return

    def hand_over(self, other: "End") -> float | None:
        """Deliver what is due; the seconds until the next packet is, None where none is under way."""
        while self.under_way:
            left = self.under_way[0][0] - time.monotonic()
            if left > 0:
                return left
            os.write(other.device, self.under_way.popleft()[1])
        return None


def make_end(namespace: str, name: str, address: str) -> End:
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", namespace).open() as network:
        if libc.setns(network.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    device = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    for words in (["address", "add", address, "dev", name], ["link", "set", name, "mtu", str(LARGEST), "up"]):
        subprocess.run(["ip", "-n", namespace, *words], check=True)
    return End(device)


def relay(delay: float, one: End, other: End) -> None:
    """Carry packets both ways until this process is ended."""
    while True:
        waits = [left for left in (one.hand_over(other), other.hand_over(one)) if left is not None]
        select.select([one.device, other.device], [], [], min(waits, default=None))
        one.take(delay)
        other.take(delay)


def main() -> None:
    delay, *ends = sys.argv[1:]
    if not DEVICE.exists():
        DEVICE.parent.mkdir(exist_ok=True)
        os.mknod(DEVICE, 0o600 | stat.S_IFCHR, NUMBER)
    one, other = (make_end(*end.split(",")) for end in ends)
    print("ready", flush=True)
    relay(float(delay), one, other)


if __name__ == "__main__":
    main()
