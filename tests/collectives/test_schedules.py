"""If these fail, a schedule leaves some rank with a wrong result, or says that a rank sends what it does not have."""

import re
from itertools import islice, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paceline.collectives import SCHEDULES, build_schedule
from paceline.collectives.execute import find_operation
from paceline.collectives.schedule import Schedule, chunk_bounds
from paceline.errors import UsageError
from paceline.shm.operations import OPERATIONS, Operation
from schedule_reference import play, reduce_all, schedule_bytes, transfers

EXACT = (torch.int32, torch.int64, torch.uint8, torch.float64)
"""Types in which sums and products of small whole numbers are exact, in whatever order."""

hosts = st.lists(st.integers(0, 3), min_size=1, max_size=9)
names = st.sampled_from(sorted(SCHEDULES))


def of_all(tensors: list[Tensor], operation: Operation) -> Tensor:
    result = tensors[0].clone()
    for tensor in tensors[1:]:
        operation.combine(result, tensor)
    operation.finish(result, len(tensors))
    return result


@given(name=names, hosts=hosts, length=st.integers(0, 40), data=st.data())
def test_every_rank_ends_with_the_result(
    name: str, hosts: list[int], length: int, data: st.DataObject
) -> None:
    dtype = data.draw(st.sampled_from(EXACT))
    operation = data.draw(st.sampled_from([one for one in OPERATIONS.values() if dtype in one.types]))
    seed = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    tensors = [torch.randint(0, 5, (length,), generator=seed).to(dtype) for _ in hosts]
    given_tensors = [tensor.clone() for tensor in tensors]
    expected = of_all(tensors, operation)
    for result in reduce_all(build_schedule(name, hosts), tensors, operation):
        assert torch.equal(result, expected)
    assert all(map(torch.equal, tensors, given_tensors))


@given(
    name=names,
    hosts=hosts,
    length=st.integers(0, 40),
    operation=st.sampled_from(["sum", "mean", "max", "min", "product"]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_all_ranks_have_the_same_bits(
    name: str, hosts: list[int], length: int, operation: str, dtype: torch.dtype
) -> None:
    seed = torch.Generator().manual_seed(len(hosts) * 41 + length)
    tensors = [torch.randn(length, generator=seed).to(dtype) for _ in hosts]
    for rank, tensor in enumerate(tensors):
        tensor[:1] = -0.0 if rank % 2 else 0.0
    schedule, found = build_schedule(name, hosts), find_operation(operation, dtype)
    first, *others = (tensor.view(torch.uint8) for tensor in reduce_all(schedule, tensors, found))
    assert all(torch.equal(first, other) for other in others)
    whole = of_all(tensors, found)
    near = {torch.float32: 1e-5, torch.float16: 0.05, torch.bfloat16: 0.3}[dtype]
    assert torch.allclose(first.view(dtype), whole, atol=near, rtol=near)


def contributions(schedule: Schedule) -> list[list[list[frozenset[int]]]]:
    """After each round, whose numbers are in each chunk of each rank; fails where one would be counted twice."""
    held = [[frozenset([rank])] * schedule.chunks for rank in range(schedule.workers)]
    states = [held]
    for turn in schedule.each_round():
        held = [list(chunks) for chunks in held]
        for transfer in transfers(turn):
            assert 0 <= transfer.start < transfer.stop <= schedule.chunks
            assert transfer.source != transfer.target
            for chunk in range(transfer.start, transfer.stop):
                new = states[-1][transfer.source][chunk]
                if transfer.reduces:
                    assert not new & held[transfer.target][chunk]
                    new |= held[transfer.target][chunk]
                held[transfer.target][chunk] = new
        states.append(held)
    return states


@given(name=names, hosts=hosts)
def test_every_number_arrives_exactly_once(name: str, hosts: list[int]) -> None:
    schedule = build_schedule(name, hosts)
    everybody = frozenset(range(len(hosts)))
    states = contributions(schedule)
    assert all(chunk == everybody for chunks in states[-1] for chunk in chunks)
    for turn, before in zip(schedule.each_round(), states, strict=False):
        for transfer in transfers(turn):
            if not transfer.reduces:
                assert before[transfer.source][transfer.start] == everybody, "only a result replaces"


@given(name=names, hosts=hosts)
def test_a_round_is_one_message_a_pair_at_most(name: str, hosts: list[int]) -> None:
    for turn in build_schedule(name, hosts).each_round():
        assert transfers(turn), "a round in which nothing moves"
        pairs = [(transfer.source, transfer.target) for transfer in transfers(turn)]
        assert len(set(pairs)) == len(pairs)


@given(name=names, workers=st.integers(1, 9), length=st.integers(0, 50))
def test_bytes_are_those_of_the_textbook(name: str, workers: int, length: int) -> None:
    schedule = build_schedule(name, [0] * workers)
    size = 4 * length * workers
    traffic = [schedule_bytes(schedule, size, rank) for rank in range(workers)]
    assert sum(sent for sent, _ in traffic) == sum(received for _, received in traffic)
    power = 1 << (workers.bit_length() - 1)
    if name in ("ring", "pairwise"):
        assert set(traffic) == {(2 * (workers - 1) * size // workers,) * 2}
    elif name in ("tree", "one-to-all", "hierarchical"):
        assert sum(sent for sent, _ in traffic) == 2 * (workers - 1) * size
    elif name == "butterfly" and power == workers:
        assert set(traffic) == {((power.bit_length() - 1) * size,) * 2}
    elif name == "halving-doubling" and power == workers:
        assert set(traffic) == {(2 * (power - 1) * size // power,) * 2}


@pytest.mark.parametrize(("workers", "log"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_rounds_are_those_of_the_textbook(workers: int, log: int) -> None:
    folds = 0 if workers & (workers - 1) == 0 else 2
    floor = workers.bit_length() - 1
    expected = {
        "ring": 2 * (workers - 1),
        "tree": 2 * log,
        "butterfly": floor + folds,
        "halving-doubling": 2 * floor + folds,
        "one-to-all": 2 if workers > 1 else 0,
        "hierarchical": 2 * log,
        "pairwise": 2 * (workers - 1),
    }
    assert expected == {name: build_schedule(name, [0] * workers).round_count for name in expected}


def test_between_hosts_only_the_first_ranks_talk() -> None:
    where = [7, 2, 7, 2, 2, 5]
    crossing = {
        (transfer.source, transfer.target)
        for turn in build_schedule("hierarchical", where).each_round()
        for transfer in transfers(turn)
        if where[transfer.source] != where[transfer.target]
    }
    assert crossing == {(0, 1), (1, 5), (5, 0)}


def test_a_ring_of_four_finds_the_largest_of_each_column() -> None:
    rows = [torch.tensor(row) for row in ([5, 2, 9, 1], [3, 8, 4, 7], [6, 6, 0, 2], [1, 9, 3, 3])]
    states = list(play(build_schedule("ring", [0] * 4), rows, OPERATIONS["max"].into))
    assert len(states) == 6
    assert states[0][1].tolist() == [5, 8, 4, 7]
    assert [row.tolist() for row in states[-1]] == [[6, 9, 9, 7]] * 4


@given(length=st.integers(0, 100), chunks=st.integers(1, 20))
def test_chunks_cover_the_tensor_evenly(length: int, chunks: int) -> None:
    bounds = chunk_bounds(length, chunks)
    sizes = [stop - start for start, stop in pairwise(bounds)]
    assert (bounds[0], bounds[-1]) == (0, length)
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("name", "dtype", "words"),
    [
        ("mean", torch.int32, "'mean' does not work on torch.int32: it has sum, max, min, product"),
        (
            "mean",
            torch.bool,
            "'mean' does not work on torch.bool: it has sum, max, min, product, and, or, xor",
        ),
        ("and", torch.float32, "it has sum, mean, max, min, product"),
        ("sum", torch.uint16, "it has and, or, xor"),
        ("max", torch.complex64, "it has sum, mean, product"),
        ("sum", torch.float8_e4m3fn, "convert the tensor to float32 first"),
        ("summ", torch.float32, "unknown operation 'summ'; did you mean 'sum'?"),
    ],
)
def test_what_a_type_cannot_do_is_told(name: str, dtype: torch.dtype, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        find_operation(name, dtype)


def test_bad_schedules_are_told() -> None:
    with pytest.raises(UsageError, match="did you mean 'ring'"):
        build_schedule("rings", [0, 0])
    with pytest.raises(UsageError, match="at least 1 worker"):
        build_schedule("ring", [])


def test_a_long_ring_is_two_rounds_until_they_are_looked_at() -> None:
    # Two million messages would take seconds and hundreds of megabytes.
    schedule = build_schedule("ring", range(1000))
    assert schedule.round_count == 1998
    assert [turn.times for turn in schedule.rounds] == [999, 999]
    turn = next(islice(schedule.each_round(), 1500, None))
    assert transfers(turn)[7] == (7, 8, 507, 508, False)


@pytest.mark.parametrize(
    ("rounds", "wrong"),
    [
        ("reducing('gather', [1], [0], 0, 1)", "chunk 0 of rank 1 ends with rank 0's part 0 times"),
        (
            "reducing('swap', [0, 1], [1, 0], 0, 1), reducing('again', [0], [1], 0, 1)",
            "chunk 0 of rank 1 ends with rank 0's part 2 times",
        ),
        ("reducing('beyond', [1], [2], 0, 1)", "it names rank 2"),
        ("reducing('below', [-1], [0], 0, 1)", "it names rank -1"),
        ("reducing('swap', [0, 1], [1, 0], 0, 1)", None),
    ],
)
def test_a_schedule_of_ones_own_must_sum_each_part_once(tmp_path, rounds, wrong):
    """If this failed, a mistake in a user's file would be trained with, or priced as if it were an all-reduce."""
    file = tmp_path / "own.py"
    file.write_text(
        "from paceline.collectives.schedule import Schedule, reducing\n\n\n"
        f"def own(hosts):\n    return Schedule('own', len(hosts), 1, ({rounds},))\n"
    )
    if wrong is None:
        assert build_schedule(f"{file}:own", [0, 1]).workers == 2
    else:
        with pytest.raises(UsageError, match=re.escape(wrong)):
            build_schedule(f"{file}:own", [0, 1])
