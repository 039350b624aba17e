"""Addresses and ports: what the user gave, checked before anything starts."""

import errno
import ipaddress
import socket
from socket import AF_INET6
from typing import NamedTuple

import psutil
import zmq

from paceline.errors import UsageError

LOOPBACK = "127.0.0.1"


class Endpoint(NamedTuple):
    """A resolved address."""

    family: socket.AddressFamily
    address: str
    port: int


def resolve(address: str, port: int) -> Endpoint:
    """The first address that a name stands for, or a UsageError."""
    try:
        family, _, _, _, found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise UsageError(
            f"--address {address} does not resolve on {socket.gethostname()}; "
            "give the IP address of node rank 0"
        ) from None
    return Endpoint(family, str(found[0]), port)


def tcp(address: str, port: int | str) -> str:
    """An address and a port as ZeroMQ writes them."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def bind(socket: "zmq.Socket[bytes]", address: str, port: int) -> int:
    """Listen on this host's own address and on no other; port 0 takes a free one. Returns the port."""
    endpoint = resolve(address, port)
    socket.ipv6 = endpoint.family == AF_INET6
    try:
        socket.bind(tcp(endpoint.address, port or "*"))
    except zmq.ZMQError as error:
        raise _refusal(error, address, port) from None
    bound = bytes(socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
    return int(bound.rpartition(":")[2])


def _refusal(error: zmq.ZMQError, address: str, port: int) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"port {port} on {address} is in use; choose another with --port, the same on every host"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(
            f"--address {address} is not an address of {socket.gethostname()}; "
            "node rank 0 must run where --address points"
        )
    if error.errno == errno.EACCES:
        return UsageError(
            f"port {port} needs special rights; choose one above 1023 with --port, the same on every host"
        )
    return UsageError(
        f"cannot listen on {address}, port {port}: {error.strerror}; choose another with --address and --port"
    )


def check_reachable(address: str, port: int) -> None:
    """Refuse a host name that means loopback here, as Debian's /etc/hosts has it: others cannot reach it."""
    found = ipaddress.ip_address(resolve(address, port).address.partition("%")[0])
    if found.is_loopback and address != "localhost" and address != str(found):
        raise UsageError(
            f"--address {address} means {found} on this host, where no other host can reach it; "
            "give the IP address that the others use"
        )


def own_address(address: str, port: int) -> str | None:
    """The address that this host has in the eyes of another; None where there is no route."""
    endpoint = resolve(address, port)
    with socket.socket(endpoint.family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((endpoint.address, port))  # a datagram socket sends nothing when it connects
        except OSError:
            return None
        return str(probe.getsockname()[0]).partition("%")[0]


def interface_towards(address: str, port: int) -> str | None:
    """The network interface whose address this host uses to reach another; None where there is no route."""
    endpoint = resolve(address, port)
    own = own_address(address, port)
    for name, addresses in psutil.net_if_addrs().items():
        if any(
            entry.family == endpoint.family and entry.address.partition("%")[0] == own for entry in addresses
        ):
            return name
    return None
