"""Which ranks share a host."""

import socket
from collections.abc import Sequence
from pathlib import Path

from paceline.collectives.schedule import Hosts


def machine_id() -> str:
    """The same for all processes of a machine, in whichever container or network namespace, and for no others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def host_id() -> str:
    """The same for all processes that no network lies between: one machine, and one network namespace on it."""
    try:
        network = str(Path("/proc/self/ns/net").stat().st_ino)
    except OSError:
        network = socket.gethostname()
    return f"{machine_id()}/{network}"


def number_hosts(names: Sequence[str]) -> Hosts:
    """Number the hosts of all ranks, given by any names, from 0 on in the order of ranks."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [numbers[name] for name in names]
