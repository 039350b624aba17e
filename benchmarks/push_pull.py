"""Push a gradient and pull the model, 2 workers and 1 server, against the same through torch.distributed.rpc.

The server adds every gradient to its parameters and answers with them. All sides run in the same three processes, one
thread each, in turns; a round is timed from a barrier to the last answer that the slower worker gets. Every exchange
ends with the parameters of one version in the worker's own memory, where its model uses them.

RPC goes over TCP, as it does between hosts; on one host it would take the other process's memory (--rpc-memory). Over
the network ours is encrypted and RPC's is not.
"""

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
from torch import Tensor
from torch._C._distributed_c10d import Store, TCPStore

from _ports import free_ports
from paceline.clusters.cluster import Cluster, Host, Link
from paceline.runtimes.flat import CONTROL
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.server.server_socket import ServerSocket
from paceline.runtimes.live.wire.messages import Hello, Welcome
from paceline.runtimes.live.wire.shared_flat import SharedFlat
from paceline.runtimes.live.worker.server_comm import ServerClient
from paceline.strategies.messages import Model, Push
from paceline.studies.calibrate.measure import measure_cipher

WORKERS = 2
SIDES = ("rpc", "memory", "network")
LEAST = {"memory": 3.0, "network": 1.0}
"""How many times as fast as rpc; over the network, as rpc over TCP."""
OVER_TCP = {"_transports": ["uv"], "_channels": ["mpt_uv", "basic"]}


class Kept:
    """What the server of rpc keeps: a function that is called from afar finds it through its class."""

    params: Tensor
    lock = threading.Lock()


def push_pull(grad: Tensor) -> Tensor:
    """Called from several threads at once: without the lock and the copy an answer would be of no version at all."""
    with Kept.lock:
        Kept.params.add_(grad)
        return Kept.params.clone()


def welcome(socket: ServerSocket, shared: bool) -> None:
    """Two workers say Hello and are known from then on."""
    for _ in range(WORKERS):
        parcel = socket.receive(60)
        assert parcel is not None
        rank = parcel.message.rank
        assert socket.bind(parcel) is shared
        socket.send(rank, Welcome(rank, shared, ""))


def serve(socket: ServerSocket, params: Tensor, pushes: int) -> None:
    for version in range(pushes):
        parcel = socket.receive(60)
        assert parcel is not None
        params.add_(parcel.message.grad)
        assert socket.send(parcel.sender.rank, Model(params, version, 0, 0, 0.0))


def server(store: Store, elements: int, rounds: int, repeats: int) -> None:
    secret, shape = Secret.new(), torch.empty(elements)
    Kept.params = torch.zeros(elements)
    params = {side: torch.zeros(elements) for side in SIDES[1:]}
    sockets = {side: ServerSocket(secret, "127.0.0.1", shape, 0, 1) for side in SIDES[1:]}
    known = [secret.text.decode(), *(socket.endpoint for socket in sockets.values())]
    store.set("known", json.dumps(known))
    for side, socket in sockets.items():
        welcome(socket, shared=side == "memory")
    for turn in range(rounds + 1):
        for side in in_turn(turn):
            dist.barrier()
            if side != "rpc":
                serve(sockets[side], params[side], WORKERS * repeats)
            dist.barrier()
    for socket in sockets.values():
        socket.close()


def in_turn(turn: int) -> tuple[str, ...]:
    return SIDES if turn % 2 else SIDES[::-1]


def greet(secret: Secret, endpoint: str, rank: int, elements: int, shared: bool) -> Callable[[], Tensor]:
    """Make a worker known to a server; what it returns pushes a gradient of ones and pulls the parameters."""
    memory = SharedFlat()
    params, grad = (
        memory.zeros(CONTROL + elements, torch.float32, torch.device("cpu"))[CONTROL:] for _ in range(2)
    )
    grad.fill_(1)
    sockets = ServerClient(secret, [endpoint], memory)
    sockets.send(0, memory.hello(rank) if shared else Hello(rank))
    assert isinstance(sockets.receive(60).message, Welcome)
    memory.seal()

    def exchange() -> Tensor:
        sockets.send(0, Push(grad, 0, 0, 1))
        sockets.receive(60)
        return params

    return exchange


def worker(store: Store, rank: int, elements: int, rounds: int, repeats: int) -> None:
    secret, *endpoints = json.loads(store.get("known"))
    grad, own = torch.ones(elements), torch.zeros(elements)
    exchanges: dict[str, Callable[[], Tensor]] = {
        "rpc": lambda: own.copy_(rpc.rpc_sync("server", push_pull, args=(grad,)))
    }
    for side, endpoint in zip(SIDES[1:], endpoints, strict=True):
        exchanges[side] = greet(Secret(secret.encode()), endpoint, rank, elements, shared=side == "memory")
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    for turn in range(rounds + 1):
        for side in in_turn(turn):
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(repeats):
                params = exchanges[side]()
            took = time.perf_counter() - begun
            dist.barrier()
            # The slower worker is answered last: it sees every push but those of a faster one that are to come.
            assert repeats * (turn + 1) <= params[0] <= WORKERS * repeats * (turn + 1)
            if turn:  # the first round warms up
                found[side].append(took / repeats)
    print(json.dumps(found), flush=True)


def process(
    rank: int, port: int, rpc_port: int, elements: int, rounds: int, repeats: int, rpc_memory: bool
) -> None:
    """Rank 0 serves; the others are the workers 0 and 1."""
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORKERS + 1)
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://127.0.0.1:{rpc_port}",
        **({} if rpc_memory else OVER_TCP),  # type: ignore[arg-type]
    )
    name = f"worker{rank - 1}" if rank else "server"
    rpc.init_rpc(name, rank=rank, world_size=WORKERS + 1, rpc_backend_options=options)  # type: ignore[no-untyped-call]
    if rank:
        worker(store, rank - 1, elements, rounds, repeats)
    else:
        server(store, elements, rounds, repeats)
    rpc.shutdown()
    dist.destroy_process_group()


def measure(elements: int, rounds: int, repeats: int, rpc_memory: bool) -> list[dict[str, Any]]:
    port, rpc_port = free_ports(2)
    command = [sys.executable, __file__, "--port", str(port), "--rpc-port", str(rpc_port)]
    command += ["--bytes", str(4 * elements), "--rounds", str(rounds), "--repeats", str(repeats)]
    command += ["--rpc-memory"] * rpc_memory
    crew = [
        subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(WORKERS + 1)
    ]
    said = [one.communicate()[0] for one in crew]
    assert not any(one.returncode for one in crew)
    found = [json.loads(text) for text in said[1:]]
    times = {side: [max(both) for both in zip(*(one[side] for one in found), strict=True)] for side in SIDES}
    least = {**LEAST, "network": None} if rpc_memory else LEAST
    return [row(side, times, least.get(side)) for side in SIDES]


def predicted(size: int) -> float:
    """Seconds that the server's process takes for all pushes and all answers, by the rate that calibrate measures."""
    fast = Link(bandwidth=1e12, latency=0.0)
    hosts = tuple(Host(name=name, link=fast, workers=name != "server") for name in ("server", "0", "1"))
    cluster = Cluster.of(hosts, cipher=measure_cipher()).encrypted([0])
    return 2 * WORKERS * size / cluster.hosts[0].link.bandwidth


def row(side: str, times: dict[str, list[float]], least: float | None) -> dict[str, Any]:
    ratios = [theirs / ours for theirs, ours in zip(times["rpc"], times[side], strict=True)]
    ratio = statistics.median(ratios)
    return {
        "side": side,
        "ms": 1e3 * statistics.median(times[side]),
        "ms_spread": [1e3 * min(times[side]), 1e3 * max(times[side])],
        "ratio": ratio,
        "ratio_spread": [min(ratios), max(ratios)],
        "least": least,
        "met": least is None or ratio >= least,
    }


def show(rows: list[dict[str, Any]]) -> None:
    print(f"{'way':9}{'ms':>8}{'low':>8}{'high':>8}{'ratio':>8}{'low':>7}{'high':>7}{'least':>7}")
    for one in rows:
        low, high = one["ms_spread"]
        least = f"{one['least']:>7g}  {'met' if one['met'] else 'MISSED'}" if one["least"] else ""
        ratio = f"{one['ratio']:>8.2f}{one['ratio_spread'][0]:>7.2f}{one['ratio_spread'][1]:>7.2f}"
        print(f"{one['side']:9}{one['ms']:>8.2f}{low:>8.2f}{high:>8.2f}{ratio}{least}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=10, help="pushes of each worker in a round")
    parser.add_argument("--rpc-memory", action="store_true", help="let RPC use the other process's memory")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rpc-port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = options.bytes // 4, options.rounds, options.repeats, options.rpc_memory
    if options.rank is not None:
        process(options.rank, options.port, options.rpc_port, *sizes)
        return 0
    rows = measure(*sizes)
    echo = {"bytes": options.bytes, "rounds": options.rounds, "repeats": options.repeats}
    echo |= {"rpc": "memory" if options.rpc_memory else "tcp", "predicted_ms": 1e3 * predicted(options.bytes)}
    if options.json:
        document = {"schema": 1, **echo, "workers": WORKERS, "servers": 1, "threads": 1, "rows": rows}
        print(json.dumps(document, indent=2))
    else:
        print(
            f"push and pull of {options.bytes:,} bytes, {WORKERS} workers, 1 server, 1 thread per process, "
            f"{options.rounds} rounds of {options.repeats} in turns; milliseconds a push and pull"
        )
        show(rows)
        print(f"network, as predicted from the rate of encryption: {echo['predicted_ms']:.2f} ms")
    return 0 if all(one["met"] for one in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
