"""What a worker and a server hold in memory at the most, and whether there is room for it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from paceline.clusters.cluster import HostGroup
from paceline.costs.trace.trace import Trace
from paceline.runtimes.flat import CONTROL
from paceline.strategies import build_strategy
from paceline.studies.predict.base import Setup
from paceline.studies.predict.prediction import Memory

LOADED = 225e6
"""Resident bytes of a worker that has loaded torch 2.13 for CPUs and paceline, as measured on Linux; those of one host,
being forks of one process, share most of it."""

KERNELS = 50e6
"""What the kernels of a first step add, 30 to 80 MB as measured."""

HOLES = 0.3
"""A CPU's heap (glibc) grows beyond what it holds by such a part of it: by nothing where all blocks are alike, by as
much again at worst. About the mean of what ``benchmarks/memory_predicted.py`` measures."""

CONTEXT = 1e9
"""Bytes of a GPU that no tensor can have: CUDA's context (0.7 GB by reports), handles of cuBLAS and cuDNN, NCCL's
buffers, and what the driver keeps. Ours, and not measured."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """Where tensors are kept."""

    name: str
    """A device, or whatever the workers of a host share."""
    size: float = 0.0
    """Bytes; 0 where nobody says."""
    shared: bool = True
    """Whether all workers and servers of a host share it, as a CPU's; each GPU has its own."""

    @property
    def base(self) -> float:
        """What a worker takes of it before it has a tensor."""
        return LOADED + KERNELS if self.shared else CONTEXT


def room_of(group: HostGroup, usual: Room) -> Room:
    """That of the device of a group's hosts, where the cluster says what it is."""
    device = group.host.device
    if device.sheet is None and not device.memory:
        return usual
    shared = usual.shared if device.sheet is None else device.sheet.kind == "cpu"
    name = f"host {group.name(0)}" if shared else device.sheet.title if device.sheet else device.name
    return Room(name=name, size=device.memory or usual.size, shared=shared)


def predict_memory(setup: Setup, usual: Room, *, mixed: bool) -> Callable[[Trace], Memory]:
    """From a trace to the memory of a step; of all hosts, on the one that has least to spare.

    ``usual`` is the memory of hosts that say nothing of theirs. With ``mixed`` precision, parameters, gradients and the
    optimizer's state stay as they are.
    """
    placed = setup.cluster.place_servers(setup.servers) if _is_served(setup) else ()
    cluster = setup.cluster.split(set(placed))
    servers = Counter(map(cluster.group_at, placed))
    groups = [(group, servers[index]) for index, group in enumerate(cluster.groups) if group.workers]

    def needs(trace: Trace) -> Memory:
        server = _server(setup, trace)
        found = [
            _on_host(setup, trace, room_of(group, usual), (group.host.workers, there), server, mixed)
            for group, there in groups
        ]
        return min(found, key=lambda one: ((one.capacity or float("inf")) - one.needed, -one.needed))

    return needs


def _on_host(
    setup: Setup, trace: Trace, room: Room, there: tuple[int, int], server: float | None, mixed: bool
) -> Memory:
    """``there`` are the workers and servers of the host, a server of ``server`` bytes."""
    workers, servers = there
    vector = float(_vector(trace))
    optimizer = 0.0 if server is not None else float(trace.optimizer)
    activations, workspace = float(trace.held(mixed=mixed)), HOLES * trace.heap if room.shared else 0.0
    exchange = _exchange(setup, room, vector)
    total = 2 * vector + trace.fixed + optimizer + activations + workspace + exchange + room.base
    return Memory(
        parameters=vector + trace.fixed,
        gradients=vector,
        optimizer=optimizer,
        activations=activations,
        workspace=workspace,
        exchange=exchange,
        base=room.base,
        total=total,
        server=server,
        device=room.name,
        needed=workers * total + servers * (server or 0.0) if room.shared else total,
        capacity=room.size or None,
    )


def _vector(trace: Trace) -> int:
    return (CONTROL + trace.size) * trace.dtype.itemsize


def _exchange(setup: Setup, room: Room, vector: float) -> float:
    """Copies of what is sent. Workers of one host, and GPUs, sum in place; whatever a codec makes is a copy.

    Between CPUs of several hosts, Gloo has one of the vector; with servers, a gradient goes and parameters come.
    """
    if setup.cluster.workers == 1 and not _is_served(setup):
        return 0.0
    compression = setup.shape.compression
    strategy = build_strategy(setup.strategy)
    piece = round(min(vector, float(getattr(strategy, "bucket", vector))))
    others = 0 if compression.sums else setup.cluster.workers - 1
    coded = compression.held(piece) + others * compression.message(piece, 1)
    apart = setup.cluster.host_count > 1 and room.shared
    return coded + (vector * (2 if _is_served(setup) else 1) if apart else 0.0)


def _server(setup: Setup, trace: Trace) -> float | None:
    """Parameters, gradients and the optimizer's state of its part; across hosts also every worker's messages.

    It begins with the whole model, to take its part of it.
    """
    if not _is_served(setup):
        return None
    vector, servers = _vector(trace), setup.servers
    part = (2 * vector + trace.optimizer) / servers
    apart = setup.cluster.host_count > 1
    messages = 2 * setup.cluster.workers * vector / servers if apart else 0.0
    return LOADED + max(part + messages, 2.0 * vector) + trace.fixed


def _is_served(setup: Setup) -> bool:
    return build_strategy(setup.strategy).served
