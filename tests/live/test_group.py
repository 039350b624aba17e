"""Workers get what the others sent; those that were started for different ways to talk say so, and do not wait."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from command import start_python
from paceline.errors import UsageError
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.request import LiveOptions
from paceline.runtimes.live.worker.comm import join_group, swap
from ports import free_ports


@pytest.mark.parametrize(
    ("backends", "collectives", "says"),
    [
        (("gloo", "shm"), ("native", "native"), "the backend is shm there and gloo on rank 0"),
        ((None, None), ("native", "ring"), "collective is ring there and native on rank 0"),
    ],
)
def test_every_rank_names_both_ways(
    backends: tuple[str | None, str | None], collectives: tuple[str, str], says: str
) -> None:
    (port,) = free_ports(1)

    def come(rank: int) -> str:
        place = ProcessInfo(rank=rank, workers=2, local_rank=rank, local_workers=2, port=port)
        options = LiveOptions(backend=backends[rank], timeout=20.0)
        with pytest.raises(UsageError) as mistake:
            join_group(place, options, collectives[rank])
        return str(mistake.value)

    with ThreadPoolExecutor(2) as threads:
        told = list(threads.map(come, range(2)))
    assert all(f"rank 1 was started for something other than rank 0: {says}" in text for text in told)


def test_every_rank_gets_every_vector() -> None:
    script = str(Path(__file__).with_name("exchange_ranks.py"))
    ranks = start_python(script, ",".join(map(str, free_ports(6))), stderr=subprocess.PIPE)
    try:
        _, errors = ranks.communicate(timeout=100)
    finally:
        ranks.kill()
        ranks.wait()
    assert ranks.returncode == 0, errors


def test_a_swap_is_ready_to_receive_before_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gloo tells the other rank so behind what it sends; if it sent first, the two directions would take turns."""
    calls: list[str] = []

    class Done:
        def wait(self) -> None:
            calls.append("wait")

    for name in ("isend", "irecv"):
        monkeypatch.setattr(dist, name, lambda *_, name=name, **__: calls.append(name) or Done())
    swap(torch.ones(1), 1, torch.ones(1), 1)
    assert calls == ["irecv", "isend", "wait", "wait"]
