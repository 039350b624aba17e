"""What a worker and a server hold in memory at the most, and whether it fits."""

from dataclasses import dataclass, replace
from typing import Any

from paceline.clusters.catalogue import DeviceSheet
from paceline.clusters.cluster import Host
from paceline.clusters.profile import Profile
from paceline.costs.trace.trace import Trace
from paceline.errors import UsageError
from paceline.records.files import DamagedFile, read_json
from paceline.records.folder import RunFolder
from paceline.runtimes.flat import CONTROL
from paceline.studies.predict.prediction import Memory
from paceline.studies.predict.request import PredictRequest
from paceline.studies.predict.setup import Setup
from paceline.units import parse_bytes

LOADED = 225e6
"""Resident bytes of a worker that has loaded torch 2.13 for CPUs and paceline, as measured on Linux; those of one host,
being forks of one process, share most of it."""
KERNELS = 50e6
"""What the kernels of a first step add, 30 to 80 MB as measured."""
HOLES = 0.3
"""A CPU's heap (glibc) grows beyond what it holds by such a fraction: by nothing where all blocks are alike, by as much
again at worst. About the mean of what ``benchmarks/memory_predicted.py`` measures."""
CONTEXT = 1e9
"""Bytes of a GPU that no tensor can have: CUDA's context (0.7 GB by reports), handles of cuBLAS and cuDNN, NCCL's
buffers, and what the driver keeps. Assumed, not measured."""


@dataclass(frozen=True, kw_only=True)
class MemorySize:
    name: str
    size: float = 0.0
    shared: bool = True
    """Whether all workers and servers of a host share it, as a CPU's; each GPU has its own."""


def find_memory(request: PredictRequest, profile: Profile | None, sheet: DeviceSheet | None) -> MemorySize:
    if sheet is not None:
        found = MemorySize(name=sheet.title, size=sheet.memory, shared=sheet.kind == "cpu")
    elif profile is not None:
        found = MemorySize(name=profile.name, size=float(profile.machine.get("memory_bytes", 0)))
    else:
        assert request.times is not None, "compute times have a source"
        try:
            size = float(read_json(RunFolder(request.times).env).get("memory_bytes", 0))
        except (OSError, DamagedFile):
            size = 0.0
        found = MemorySize(name="the machine of the run", size=size)
    if request.memory is None:
        return found
    size = parse_bytes(request.memory)
    if not size:
        raise UsageError(f"memory {request.memory} is too little: give a size such as '24 GiB'")
    return replace(found, size=size)


def predict_memory(setup: Setup, trace: Trace, usual: MemorySize, *, mixed: bool) -> Memory:
    """Of all hosts, on the one that has least to spare; ``usual`` is the memory of hosts that do not state theirs."""
    cluster = setup.cluster.split(setup.server_hosts)
    places = [cluster.group_at(host) for host in setup.server_hosts]
    found = [
        _on_host(setup, trace, group.host, places.count(at), usual, mixed)
        for at, group in enumerate(cluster.groups)
        if group.workers
    ]
    return min(found, key=lambda one: ((one.capacity or float("inf")) - one.needed, -one.needed))


def _on_host(setup: Setup, trace: Trace, host: Host, servers: int, usual: MemorySize, mixed: bool) -> Memory:
    size = _memory_of(host, usual)
    vector = float(_vector_bytes(trace))
    server = _server_bytes(setup, trace) if setup.server_hosts else None
    parts: dict[str, Any] = {
        "parameters": vector + trace.fixed,
        "gradients": vector,
        "optimizer": 0.0 if setup.server_hosts else float(trace.optimizer),
        "activations": float(trace.held(mixed=mixed)),
        "workspace": HOLES * trace.heap if size.shared else 0.0,
        "exchange": _exchange_bytes(setup, size, vector),
        "base": LOADED + KERNELS if size.shared else CONTEXT,
    }
    total: float = sum(parts.values())
    return Memory(
        **parts,
        total=total,
        server=server,
        device=size.name,
        needed=host.workers * total + servers * (server or 0.0) if size.shared else total,
        capacity=size.size or None,
    )


def _memory_of(host: Host, usual: MemorySize) -> MemorySize:
    device, sheet = host.device, host.device.sheet
    if sheet is None and not device.memory:
        return usual
    shared = usual.shared if sheet is None else sheet.kind == "cpu"
    name = f"host {host.name}" if shared else sheet.title if sheet else device.name
    return MemorySize(name=name, size=device.memory or usual.size, shared=shared)


def _vector_bytes(trace: Trace) -> int:
    return (CONTROL + trace.size) * trace.dtype.itemsize


def _exchange_bytes(setup: Setup, size: MemorySize, vector: float) -> float:
    """Copies of what is sent: what a codec makes; between CPUs of several hosts one of the vector, with servers two.

    Workers of one host, and GPUs, sum in place.
    """
    served, workers = setup.program.served, setup.cluster.workers
    if workers == 1 and not served:
        return 0.0
    compression = setup.shape.compression
    bucket = None if served else setup.pattern.bucket
    piece = round(vector if bucket is None else min(vector, float(bucket)))
    others = 0 if compression.sums else workers - 1
    coded = compression.held(piece) + others * compression.message(piece, 1)
    apart = setup.cluster.host_count > 1 and size.shared
    return coded + (vector * (2 if served else 1) if apart else 0.0)


def _server_bytes(setup: Setup, trace: Trace) -> float:
    """Its shard, across hosts also every worker's messages; it begins with the whole model."""
    vector, servers = _vector_bytes(trace), setup.servers
    shard = (2 * vector + trace.optimizer) / servers
    messages = 2 * setup.cluster.workers * vector / servers if setup.cluster.host_count > 1 else 0.0
    return LOADED + max(shard + messages, 2.0 * vector) + trace.fixed
