"""What a worker and a server hold in memory at the most, and whether it fits."""

from dataclasses import replace
from typing import Any

from paceline.clusters.catalogue import DeviceSheet
from paceline.clusters.cluster import Device, Host
from paceline.clusters.profile import Profile
from paceline.collectives.traffic import plan_buckets
from paceline.costs.trace.trace import Trace
from paceline.errors import UsageError
from paceline.records.files import DamagedFile, read_json
from paceline.records.folder import RunFolder
from paceline.runtimes.flat import CONTROL
from paceline.runtimes.virtual.served_coding import served_coding
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


def find_memory(
    request: PredictRequest, profile: Profile | None, sheet: DeviceSheet | None, *, of_script: bool = False
) -> Device:
    """The device, with its memory, of workers whose hosts do not say what memory they have.

    What a script needs is not known, so everything fits.
    """
    if of_script and request.memory is not None:
        raise UsageError(
            f"memory {request.memory} cannot be compared: {request.times} is a run of a script, whose model only the "
            "script has; leave memory out"
        )
    if of_script:
        return Device(name="the machine of the run")
    if sheet is not None:
        found = Device(name=sheet.title, memory=sheet.memory, sheet=sheet)
    elif profile is not None:
        found = Device(name=profile.name, memory=float(profile.machine.get("memory_bytes", 0)))
    else:
        assert request.times is not None, "compute times have a source"
        try:
            size = float(read_json(RunFolder(request.times).env).get("memory_bytes", 0))
        except (OSError, DamagedFile):
            size = 0.0
        found = Device(name="the machine of the run", memory=size)
    if request.memory is None:
        return found
    size = parse_bytes(request.memory)
    if not size:
        raise UsageError(f"memory {request.memory} is too little: give a size such as '24 GiB'")
    return replace(found, memory=size)


def predict_memory(setup: Setup, trace: Trace, usual: Device, *, mixed: bool) -> Memory:
    """Of all hosts, on the one that has least to spare; ``usual`` is the memory of hosts that do not state theirs."""
    setup = setup.apart()
    found = [
        _on_host(setup, trace, group.host, setup.server_groups.count(at), usual, mixed)
        for at, group in enumerate(setup.cluster.groups)
        if group.workers
    ]
    return min(found, key=lambda one: ((one.capacity or float("inf")) - one.needed, -one.needed))


def _on_host(setup: Setup, trace: Trace, host: Host, servers: int, usual: Device, mixed: bool) -> Memory:
    own, name = host.device, usual.name
    sheet = own.sheet or usual.sheet
    # All workers and servers of a host share a CPU's memory; each GPU has its own.
    shared = sheet is None or sheet.kind == "cpu"
    if own.sheet or own.memory:
        name = f"host {host.name}" if shared else own.sheet.title if own.sheet else own.name
    vector, models = float(_vector_bytes(trace)), setup.learners
    at_once = models if setup.program.learner_plan.compute == "together" else 1
    server = _server_bytes(setup, trace) if setup.server_hosts else None
    parts: dict[str, Any] = {
        "parameters": models * (vector + trace.fixed),
        "gradients": models * vector,
        "optimizer": 0.0 if setup.server_hosts else models * float(trace.optimizer),
        "activations": at_once * float(trace.held(mixed=mixed)),
        "workspace": at_once * HOLES * trace.heap if shared else 0.0,
        "exchange": _exchange_bytes(setup, vector, copied=shared),
        "base": LOADED + KERNELS if shared else CONTEXT,
    }
    total: float = sum(parts.values())
    return Memory(
        **parts,
        total=total,
        server=server,
        device=name,
        needed=host.workers * total + servers * (server or 0.0) if shared else total,
        capacity=own.memory or usual.memory or None,
    )


def _vector_bytes(trace: Trace) -> int:
    return (CONTROL + trace.size) * trace.dtype.itemsize


def _exchange_bytes(setup: Setup, vector: float, *, copied: bool) -> float:
    """What a strategy keeps, and copies of what is sent.

    A codec makes some. Between CPUs of several hosts there is one of the vector, with servers two; workers of one host,
    and GPUs, sum in place.
    """
    served, workers = setup.program.served, setup.cluster.workers
    kept = 0.0 if served else setup.pattern.kept * setup.shape.size * setup.shape.dtype.itemsize
    if workers == 1 and not served:
        return kept
    copies = (2 if served else 1) if copied and setup.cluster.host_count > 1 else 0
    if served and setup.coding.compresses:  # which are short
        copies = 0
    return _coding_bytes(setup) + copies * vector + kept


def _coding_bytes(setup: Setup) -> float:
    """What a codec keeps from step to step, and what it takes for the largest part that is reduced or sent at once."""
    shape, coding = setup.shape, setup.coding
    if not coding.compresses:
        return 0.0
    kept = coding.state_bytes(shape.layout, shape.dtype)
    if setup.program.served:
        # And the parameters as the servers know them.
        coded = served_coding(coding, shape.layout, shape.dtype, setup.servers)
        return kept + shape.size * shape.dtype.itemsize + max(one.held for both in coded for one in both)
    layout, element, bucket = shape.layout, shape.dtype.itemsize, setup.pattern.bucket
    if not setup.program.replicated:
        kept += shape.size * element  # the parameters as they were after the last exchange
    if bucket is not None:
        buckets = plan_buckets(shape.parameters, element, bucket, bucket)
        largest = max(buckets, key=lambda one: one.stop - one.start)
        layout = layout.between(largest.start, largest.stop)
    return kept + coding.reduction(layout, shape.dtype, setup.cluster.workers).held


def _server_bytes(setup: Setup, trace: Trace) -> float:
    """Its shard, across hosts also every worker's messages; it begins with the whole model.

    With a codec, wherever they are, every worker's gradient and what it has of the parameters.
    """
    vector, servers = _vector_bytes(trace), setup.servers
    shard = (2 * vector + trace.optimizer) / servers
    apart = setup.cluster.host_count > 1 or setup.coding.compresses
    messages = 2 * setup.cluster.workers * vector / servers if apart else 0.0
    return LOADED + max(shard + messages, 2.0 * vector) + trace.fixed
