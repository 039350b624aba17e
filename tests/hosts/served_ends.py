"""A server or a worker of the transport's tests, as a process on a host of its own."""

import sys
import time

import torch

from paceline.runtimes.flat import CONTROL
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.server.server_socket import ServerSocket
from paceline.runtimes.live.wire.messages import Hello, Welcome
from paceline.runtimes.live.wire.shared_flat import SharedFlat
from paceline.runtimes.live.worker.server_comm import ServerClient, ServerLost
from paceline.strategies.messages import Model, Push

SECRET, LENGTH = Secret(b"a secret of the tests"), 100_000


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def serve(address: str) -> None:
    """Answer one worker, and say when it has been silent for three seconds."""
    with ServerSocket(SECRET, address, torch.empty(LENGTH), 0, 1) as server:
        say(server.endpoint)
        known = False
        while True:
            parcel = server.receive(0.1)
            if parcel is None and known and time.monotonic() - server.heard(0) > 3:
                say("silent")
                return
            if parcel is not None and isinstance(parcel.message, Hello):
                known = True
                server.bind(parcel)
                server.send(0, Welcome(0, False, ""))
            elif parcel is not None:
                server.send(0, Model(parcel.message.grad + 1, 0, 0, 0, 0.0))


def work(endpoint: str) -> None:
    """Push, be answered, then wait in vain."""
    memory = SharedFlat()
    params, grad = (
        memory.zeros(CONTROL + LENGTH, torch.float32, torch.device("cpu"))[CONTROL:] for _ in "12"
    )
    memory.seal()
    with ServerClient(SECRET, [endpoint], memory) as sockets:
        sockets.send(0, Hello(0))
        sockets.receive(10)
        sockets.start_heartbeat(0)
        sockets.send(0, Push(grad, 0, 0, 1))
        sockets.receive(10)
        assert torch.equal(params, grad + 1)
        say("served")
        try:
            sockets.receive(60)
        except ServerLost as lost:
            say(str(lost))


if __name__ == "__main__":
    {"serve": serve, "work": work}[sys.argv[1]](sys.argv[2])
