"""Addresses and ports: what the user gave, checked before anything starts."""

import errno
import ipaddress
import resource
import socket

import psutil

from paceline.errors import UsageError

LOOPBACK = "127.0.0.1"
_MOST_DESCRIPTORS = 65_536


def resolve(address: str, port: int) -> tuple[socket.AddressFamily, str]:
    try:
        family, _, _, _, found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise UsageError(
            f"address {address} does not resolve on {socket.gethostname()}; give the IP address of node rank 0"
        ) from None
    return family, str(found[0])


def tcp(address: str, port: int) -> str:
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def cannot_listen(error: OSError, address: str, port: int) -> UsageError:
    why = {
        errno.EADDRINUSE: f"port {port} on {address} is in use; choose another port, the same on every host",
        errno.EADDRNOTAVAIL: f"{address} is not an address of {socket.gethostname()}; "
        "node rank 0 must run on the host that has the address",
    }
    other = f"cannot listen on {address}, port {port}: {error.strerror}; choose another address or a port above 1023"
    return UsageError(why.get(error.errno or 0, other))


def check_reachable(address: str, port: int) -> None:
    """Refuse a host name that means loopback here, as Debian's /etc/hosts has it: others cannot reach it."""
    found = ipaddress.ip_address(resolve(address, port)[1].partition("%")[0])
    if found.is_loopback and address not in ("localhost", str(found)):
        raise UsageError(
            f"address {address} means {found} on this host, where no other host can reach it; "
            "give the IP address that the others use"
        )


def own_address(address: str, port: int) -> str | None:
    family, there = resolve(address, port)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((there, port))  # a datagram socket sends nothing when it connects
        except OSError:
            return None
        return str(probe.getsockname()[0]).partition("%")[0]


def interface_towards(address: str, port: int) -> str | None:
    family, own = resolve(address, port)[0], own_address(address, port)
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.family == family and entry.address.partition("%")[0] == own for entry in addresses):
            return name
    return None


def free_port(address: str) -> int:
    """A port that nobody listens on; 0 where the address is another host's."""
    family, own = resolve(address, 0)
    try:
        with socket.create_server((own, 0), family=family) as found:
            return int(found.getsockname()[1])
    except OSError:
        return 0


def raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
