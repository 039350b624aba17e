"""Parts of the shared-memory backend that need no second process."""

import ctypes
import gc
import importlib.util
import os
import subprocess
import sys
import threading
import time
import weakref
from datetime import timedelta
from mmap import mmap
from typing import Any

import pytest
import torch

from paceline.shm import barrier, process_group
from paceline.shm.call import Call
from paceline.shm.local_comm import LocalComm
from paceline.shm.operations import InvalidCall
from paceline.shm.process_group import SharedMemoryGroup
from paceline.shm.work_queue import WorkQueue


def alone() -> LocalComm:
    return LocalComm(None, 0, [os.getpid()], [0], 5.0)


def test_threads_that_talk_to_one_rank_share_its_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a queue each, messages with one tag would overtake each other, and two senders write to one box."""
    made: list[str] = []

    def slow(name: str) -> WorkQueue:
        made.append(name)
        time.sleep(0.05)
        return WorkQueue(name)

    monkeypatch.setattr(process_group, "WorkQueue", slow)
    group = SharedMemoryGroup(alone())
    made.clear()
    threads = [threading.Thread(target=group.send, args=([torch.zeros(3)], 0)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in threads:
        group.recv([torch.empty(3)], 0).wait()
    assert made == ["paceline-shm-send-0", "paceline-shm-recv-0"]
    group.shutdown()


def test_a_system_without_futexes_can_import_and_be_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise TypeError("there is no such library")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.delattr("os.sched_getaffinity")
    spec = importlib.util.spec_from_file_location("barrier_elsewhere", barrier.__file__)
    assert spec is not None
    elsewhere = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(elsewhere)
    assert not elsewhere.supported()
    monkeypatch.setattr(barrier, "_kernel", elsewhere._kernel)
    team = alone()
    team.agree(Call("barrier"))
    tensor = torch.ones(3)
    team.broadcast(tensor, 0)
    assert tensor.eq(1).all()


def test_a_rank_alone_sums_without_moving_anything() -> None:
    """Through the slots, 100 MB would take a quarter of a second; what no sum works on is refused all the same."""
    team, tensor = alone(), torch.arange(300_000.0)
    before = team.barrier.beat
    for op in ("sum", "mean"):
        team.all_reduce(Call("all_reduce", [tensor], op=op))
    assert team.barrier.beat == before
    assert tensor.equal(torch.arange(300_000.0))
    with pytest.raises(InvalidCall, match=r"operation 'mean' does not work on torch\.int64"):
        team.all_reduce(Call("all_reduce", [torch.ones(3, dtype=torch.int64)], op="mean"))


@pytest.mark.parametrize(
    ("allowed", "others_core", "moves"),
    [({0, 1, 2}, 1, [{0, 2}, {0, 1, 2}]), ({0, 1}, 0, []), ({1}, 1, [])],
    ids=["the same core", "another core", "fewer cores than ranks"],
)
def test_a_rank_leaves_the_core_of_one_that_looks_for_it(
    allowed: set[int], others_core: int, moves: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the one that looks would not run until the system moves one of them, after a millisecond or more."""
    asked: list[set[int]] = []
    monkeypatch.setattr(barrier, "_core", lambda: lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: asked.append(cores))
    memory = mmap(-1, 4096)
    first, second = (barrier.Barrier(memory, rank, [os.getpid()] * 2, [0, 1], 5.0) for rank in range(2))
    beat, waits = first._mine
    first._words[beat], first._words[waits] = 1, barrier._LOOKING + others_core
    second.arrive()
    assert asked == moves
    for one in (first, second):
        one.close()


def test_work_added_around_a_close_is_done() -> None:
    """Swallowed with the end that a close left in the queue, it would be waited for in vain; and closing ends too."""
    queue, gate = WorkQueue("closed twice"), threading.Event()
    queue.later(lambda: bool(gate.wait()), [])
    queue.close(0.01)
    queue.close(0.01)
    gate.set()
    for _ in range(100):
        closing = threading.Thread(target=queue.close)
        closing.start()
        queue.later(lambda: None, []).wait(timedelta(seconds=5))
        closing.join(5)
        assert not closing.is_alive()


def test_memory_is_given_back_with_the_last_reference() -> None:
    """In a cycle, hundreds of MB of shared tensors would stay mapped until the garbage collector comes by."""
    gc.disable()
    try:
        team = alone()
        team.zeros(1000, torch.float32)
        gone = weakref.ref(team)
        del team
        assert gone() is None
    finally:
        gc.enable()


def test_the_package_stands_alone() -> None:
    """A script that only wants the backend loads nothing else of ours."""
    look = "import sys, paceline.shm; print(*(name for name in sys.modules if name.startswith('paceline')))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "paceline.shm" in loaded
    assert {name for name in loaded if not name.startswith("paceline.shm")} == {"paceline"}
