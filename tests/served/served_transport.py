"""What tests of the transport share: a server and workers on loopback, and the memory of a small model."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from paceline.runtimes.flat import CONTROL
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.server.server_socket import ServerSocket
from paceline.runtimes.live.wire.messages import Hello, Welcome
from paceline.runtimes.live.wire.shared_flat import SharedFlat
from paceline.runtimes.live.worker.server_comm import ServerClient
from paceline.strategies.base import server_slices

SECRET = Secret(b"a secret of the tests")
LENGTH = 300_001
"""More than one piece, and not a whole number of them."""


def a_server(length: int = LENGTH, rank: int = 0, servers: int = 1) -> ServerSocket:
    part = server_slices(torch.empty(length), servers)[rank].numel()
    return ServerSocket(SECRET, "127.0.0.1", torch.empty(part), rank, servers)


def flat_memory(length: int = LENGTH) -> tuple[SharedFlat, Tensor, Tensor]:
    """The memory of a worker, its parameters and its gradients."""
    memory = SharedFlat()
    params, grad = (memory.zeros(CONTROL + length, torch.float32, torch.device("cpu")) for _ in range(2))
    return memory, params[CONTROL:], grad[CONTROL:]


@contextmanager
def a_worker(
    *servers: ServerSocket, rank: int = 0, shared: bool = False
) -> Iterator[tuple[ServerClient, Tensor, Tensor]]:
    """A worker that all servers know, its parameters and its gradients."""
    memory, params, grad = flat_memory()
    try:
        with ServerClient(SECRET, [server.endpoint for server in servers], memory) as sockets:
            for number, server in enumerate(servers):
                sockets.send(number, memory.hello(rank) if shared else Hello(rank))
                parcel = server.receive(5)
                assert parcel is not None
                assert server.bind(parcel) is shared
                server.send(rank, Welcome(rank, shared, ""))
                assert sockets.receive(5).message == Welcome(rank, shared, "")
            yield sockets, params, grad
    finally:
        memory.seal()
