"""If these fail, the bytes in a record are not the bytes on the wire."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.collectives.traffic import broadcast_bytes, ring_bytes


@given(workers=st.integers(1, 40), root=st.integers(0, 39), size=st.integers(0, 10**9))
def test_a_broadcast_reaches_everybody_once(workers: int, root: int, size: int) -> None:
    root %= workers
    traffic = [broadcast_bytes(size, workers, rank, root) for rank in range(workers)]
    assert sum(sent for sent, _ in traffic) == (workers - 1) * size
    assert [received for _, received in traffic] == [0 if rank == root else size for rank in range(workers)]
    assert traffic[root][0] == (workers - 1).bit_length() * size


@given(workers=st.integers(2, 40), chunk=st.integers(0, 10**8))
def test_a_ring_sends_every_chunk_but_one_twice(workers: int, chunk: int) -> None:
    assert ring_bytes(chunk * workers, workers) == 2 * (workers - 1) * chunk


def test_one_worker_sends_nothing() -> None:
    assert ring_bytes(1000, 1) == 0
    assert broadcast_bytes(1000, 1, 0) == (0, 0)
