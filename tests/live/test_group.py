"""Workers that were started for different ways to talk say so before they wait for each other in vain."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from paceline.errors import UsageError
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.request import LiveOptions
from paceline.runtimes.live.worker.comm import join_group
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
