"""A worker's memory that servers on its host map: the same tensors at both ends, and nobody else's."""

import struct
from pathlib import Path

import pytest
import torch
from served_transport import flat_memory

from paceline.collectives.shm import segment
from paceline.runtimes.flat import CONTROL
from paceline.runtimes.live.served.memory import SharedFlat, attach
from paceline.runtimes.live.served.shape import Shape, span_of
from paceline.runtimes.live.served.wire import Refused

CPU = torch.device("cpu")


def shape(length: int) -> Shape:
    return Shape(length=length, dtype=torch.float32)


def test_both_ends_see_the_same_memory() -> None:
    memory, params, grad = flat_memory(1000)
    mapped = attach(memory.name, memory.token, shape(1000), 0, 1)
    memory.publish_over()
    assert mapped is not None
    grad.copy_(torch.arange(1000.0))
    offset = memory.find(grad)
    assert offset is not None
    assert torch.equal(mapped.view(offset, 1000, torch.float32), grad)
    assert mapped.deposit(torch.arange(1000.0) * 2) == memory.find(params)
    assert torch.equal(params, torch.arange(1000.0) * 2)
    assert grad.eq(torch.arange(1000.0)).all(), "the parameters ran over into the gradients"


@pytest.mark.parametrize(("length", "servers"), [(10, 3), (2, 4), (1, 1), (4096, 2)])
def test_every_server_writes_its_own_part(length: int, servers: int) -> None:
    memory, params, _ = flat_memory(length)
    for rank in range(servers):
        own = span_of(length, servers, rank).length
        mapped = attach(memory.name, memory.token, shape(own), rank, servers)
        assert mapped is not None
        mapped.deposit(torch.full((own,), float(rank + 1)))
    memory.publish_over()
    want = torch.cat([torch.full((span_of(length, servers, r).length,), r + 1.0) for r in range(servers)])
    assert torch.equal(params, want)


def test_only_what_lies_in_the_memory_is_found() -> None:
    memory, params, grad = flat_memory(100)
    memory.publish_over()
    start = memory.find(params)
    assert start is not None
    assert memory.find(params[10:]) == start + 40
    assert memory.find(grad[::2]) is None
    assert memory.find(torch.zeros(100)) is None


@pytest.mark.parametrize("offset", [-4, 0, 4092, 4098, 4096 + 8192 - 396, 2**40])
def test_a_place_outside_of_the_memory_is_refused(offset: int) -> None:
    """A server that trusted the offset would read its own memory, or the token, as a gradient."""
    memory, *_ = flat_memory(100)
    mapped = attach(memory.name, memory.token, shape(100), 0, 1)
    memory.publish_over()
    assert mapped is not None
    with pytest.raises(Refused, match="outside of the shared memory"):
        mapped.view(offset, 100, torch.float32)
    with pytest.raises(Refused, match="wrong type"):
        mapped.view(4096, 100, torch.float64)


def test_memory_that_is_not_the_workers_is_not_mapped(tmp_path: Path) -> None:
    """On another host the name means nothing, or something else."""
    memory, *_ = flat_memory(100)
    name, token = memory.name, memory.token
    try:
        assert attach(name, token, shape(100), 0, 1) is not None
        assert attach(name, "00" * 32, shape(100), 0, 1) is None, "another token"
        assert attach(name, "no hex", shape(100), 0, 1) is None
        assert attach(name, token, shape(99), 0, 1) is None, "another model"
        assert attach(name, token, shape(100), 0, 2) is None, "another number of servers"
        assert attach(name, token, Shape(length=100, dtype=torch.float64), 0, 1) is None
        assert attach("", "", shape(100), 0, 1) is None
        assert attach(f"../{tmp_path}", token, shape(100), 0, 1) is None
        assert attach(name + "x", token, shape(100), 0, 1) is None
    finally:
        memory.publish_over()
    assert attach(name, token, shape(100), 0, 1) is None, "the name is gone"


def test_a_segment_that_lies_about_its_length_is_not_mapped() -> None:
    """Touching memory behind a file's end kills a process with SIGBUS."""
    name = segment.segment_name("test", "liar", 0)
    mapped = segment.create(name, 4096)
    try:
        struct.pack_into("<8s32sqq", mapped, 0, b"paceline", bytes(32), 100 + CONTROL, 4)
        assert attach(name, "00" * 32, shape(100), 0, 1) is None
        struct.pack_into("<8s32sqq", mapped, 0, b"paceline", bytes(32), -(2**62), 4)
        assert attach(name, "00" * 32, shape(0), 0, 1) is None
        struct.pack_into("<8s32sqq", mapped, 0, b"paceline", bytes(32), 2**62, 4)
        assert attach(name, "00" * 32, shape(2**62 - CONTROL), 0, 1) is None
    finally:
        segment.remove(name)


def test_without_room_it_is_the_workers_own_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(segment, "ROOM", tmp_path / "nowhere")
    memory, params, _ = flat_memory(10)
    assert (memory.name, params.numel()) == ("", 10)
    assert "cannot be used" in memory.why
    memory.publish_over()


def test_parameters_elsewhere_than_in_the_cpus_memory_are_not_shared() -> None:
    memory = SharedFlat("test")
    assert memory.zeros(20, torch.float32, torch.device("meta")).is_meta
    assert memory.name == ""
    assert memory.why == "the parameters lie on meta"


def test_the_segment_is_for_its_owner_alone() -> None:
    memory, *_ = flat_memory(10)
    path = segment.ROOM / memory.name
    assert path.stat().st_mode & 0o777 == 0o600
    memory.publish_over()
    assert not path.exists()
    memory.publish_over()
