"""A worker's memory that servers on its host map: the same tensors at both ends, and nobody else's."""

import ctypes
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from served_transport import flat_memory

from paceline.runtimes.flat import CONTROL
from paceline.runtimes.live.wire.messages import Hello, MessageRefused
from paceline.runtimes.live.wire.shared_flat import SharedFlat, attach
from paceline.shm import segment
from paceline.strategies.base import server_slices

CPU = torch.device("cpu")
CLONE_NEWNET = 0x40000000


def shard(length: int) -> torch.Tensor:
    return torch.empty(length, device="meta")


def test_both_ends_see_the_same_memory() -> None:
    memory, params, grad = flat_memory(1000)
    mapped = attach(memory.hello(0), shard(1000), 0, 1)
    memory.seal()
    assert mapped is not None
    grad.copy_(torch.arange(1000.0))
    offset = memory.mapped.find(grad)
    assert offset is not None
    assert torch.equal(mapped.view(offset, 1000, torch.float32), grad)
    assert mapped.deposit(torch.arange(1000.0) * 2) == memory.mapped.find(params)
    assert torch.equal(params, torch.arange(1000.0) * 2)
    assert grad.eq(torch.arange(1000.0)).all(), "the parameters ran over into the gradients"


@pytest.mark.parametrize(("length", "servers"), [(10, 3), (2, 4), (1, 1), (4096, 2)])
def test_every_server_writes_its_own_part(length: int, servers: int) -> None:
    memory, params, _ = flat_memory(length)
    for rank in range(servers):
        own = server_slices(torch.empty(length), servers)[rank].numel()
        mapped = attach(memory.hello(0), shard(own), rank, servers)
        assert mapped is not None
        mapped.deposit(torch.full((own,), float(rank + 1)))
    memory.seal()
    want = torch.cat(
        [part.fill_(r + 1) for r, part in enumerate(server_slices(torch.empty(length), servers))]
    )
    assert torch.equal(params, want)


def test_only_what_lies_in_the_memory_is_found() -> None:
    memory, params, grad = flat_memory(100)
    memory.seal()
    start = memory.mapped.find(params)
    assert start is not None
    assert memory.mapped.find(params[10:]) == start + 40
    assert memory.mapped.find(grad[::2]) is None
    assert memory.mapped.find(torch.zeros(100)) is None


@pytest.mark.parametrize("offset", [-4, 2, 8192 - 396, 2**40])
def test_a_place_outside_of_the_memory_is_refused(offset: int) -> None:
    """A server that trusted the offset would read its own memory as a gradient."""
    memory, *_ = flat_memory(100)
    mapped = attach(memory.hello(0), shard(100), 0, 1)
    memory.seal()
    assert mapped is not None
    with pytest.raises(MessageRefused, match="outside of the shared memory"):
        mapped.view(offset, 100, torch.float32)
    with pytest.raises(MessageRefused, match="wrong type"):
        mapped.view(0, 100, torch.float64)


def naming(hello: Hello, **other: object) -> Hello:
    """A Hello that names other memory."""
    assert hello.memory is not None
    return replace(hello, memory=replace(hello.memory, **other))


def test_memory_that_is_not_the_workers_is_not_mapped() -> None:
    """On another host the process means nothing, or another one."""
    memory, *_ = flat_memory(100)
    hello = memory.hello(0)
    assert attach(hello, shard(100), 0, 1) is not None
    assert attach(naming(hello, token=bytes(32)), shard(100), 0, 1) is None, "another token"
    assert attach(naming(hello, token=b"no token"), shard(100), 0, 1) is None
    assert attach(naming(hello, token=b""), shard(100), 0, 1) is None
    assert attach(hello, shard(99), 0, 1) is None, "another model"
    assert attach(hello, shard(100), 0, 2) is None, "another number of servers"
    assert attach(hello, torch.empty(100, dtype=torch.float64), 0, 1) is None
    assert attach(Hello(0), shard(100), 0, 1) is None
    assert attach(naming(hello, process=2**40), shard(100), 0, 1) is None
    assert attach(naming(hello, descriptor=2**40), shard(100), 0, 1) is None
    memory.seal()
    assert attach(hello, shard(100), 0, 1) is None, "it is closed"


@pytest.mark.parametrize("size", [0, 1, 5000, 2**40])
def test_a_worker_that_lies_about_its_memorys_size_is_not_believed(size: int) -> None:
    """Touching memory behind a file's end kills a process with SIGBUS."""
    memory, *_ = flat_memory(100)
    length = max(0, size // 4 - CONTROL)
    assert attach(replace(memory.hello(0), size=size), shard(length), 0, 1) is None
    memory.seal()


def test_what_another_process_has_open_is_not_written_to(tmp_path: Path) -> None:
    """A worker could name any file that some process of the server's user has open."""
    memory, *_ = flat_memory(100)
    file = tmp_path / "thesis"
    file.write_bytes(b"x" * 3 * 4096)
    with file.open("r+b") as opened:
        assert attach(naming(memory.hello(0), descriptor=opened.fileno()), shard(100), 0, 1) is None
    assert file.read_bytes() == b"x" * 3 * 4096
    memory.seal()


def attached_by_another(hello: Hello, unshared: int) -> int:
    """Whether another process can map it, once it has left these namespaces; 2 where it may not leave them."""
    if (process := os.fork()) == 0:
        if unshared and ctypes.CDLL(None).unshare(unshared):
            os._exit(2)
        os._exit(attach(hello, shard(100), 0, 1) is not None)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def test_a_worker_across_a_network_talks_over_it() -> None:
    """Namespaces of one machine are hosts: what is measured between them must not take a short cut."""
    memory, *_ = flat_memory(100)
    assert attached_by_another(memory.hello(0), 0) == 1
    found = attached_by_another(memory.hello(0), CLONE_NEWNET)
    memory.seal()
    if found == 2:
        pytest.skip("a network namespace needs root")
    assert found == 0


def test_without_room_it_is_the_workers_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "free_memory", lambda: 1000)
    memory, params, _ = flat_memory(10)
    assert (memory.hello(3), params.numel()) == (Hello(3), 10)
    assert "sharing memory needs" in memory.why
    memory.seal()


def test_parameters_elsewhere_than_in_the_cpus_memory_are_not_shared() -> None:
    memory = SharedFlat()
    assert memory.zeros(20, torch.float32, torch.device("meta")).is_meta
    assert memory.hello(0) == Hello(0)
    assert memory.why == "the parameters lie on meta"
