"""If these fail, a schedule over Gloo is no all-reduce, or one rank's mistake hangs the others."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gloo_ranks import values

from command import start_python
from ports import free_ports

WORKERS = 3


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    script = str(Path(__file__).with_name("gloo_ranks.py"))
    port = str(free_ports(1)[0])
    ranks = [start_python(script, str(rank), str(WORKERS), port) for rank in range(WORKERS)]
    try:
        outputs = [rank.communicate(timeout=100) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert not any(rank.returncode for rank in ranks), "\n".join(error for _, error in outputs)
    return [json.loads(output) for output, _ in outputs]


def test_every_schedule_gives_what_torch_gives(found: list[dict[str, Any]]) -> None:
    assert [one["differ"] for one in found] == [[]] * WORKERS


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (
            "sizes",
            "rank 1 asks for sum of 5 elements of torch.float32 on cpu by ring, and rank 0 for sum of 4",
        ),
        ("types", "rank 1 asks for mean of 4 elements of torch.int32"),
        ("operations", "rank 1 asks for max of 4"),
        ("schedules", "by tree, and rank 0"),
        ("unknown here", "by rings, and rank 0"),
        ("unknown", "unknown schedule 'rings'; did you mean 'ring'?"),
        ("operation", "unknown operation 'summ'; did you mean 'sum'?"),
        ("no such", "operation 'mean' does not work on torch.bool: it has sum, max, min"),
        ("sparse", "rank 1 asks for sum of sparse_coo by ring, and rank 0 for sum of 9 elements"),
        ("all sparse", "schedules move dense tensors, not sparse_csr"),
        ("a list", "rank 1 asks for sum of a list by ring"),
        ("torch's operation", "unknown operation"),
        ("workers", "a schedule for 2 workers does not fit a group of 3"),
    ],
)
def test_a_mistake_is_told_alike_on_every_rank(found: list[dict[str, Any]], case: str, words: str) -> None:
    told = {one["mistakes"][case] for one in found}
    assert len(told) == 1
    assert words in told.pop()


def test_a_part_of_the_ranks_can_reduce_alone(found: list[dict[str, Any]]) -> None:
    first, second, third = (values(rank, 10, torch.float32) for rank in range(3))
    mean = ((first + third) / 2).tolist()
    assert [one["part"] for one in found] == [mean, second.tolist(), mean]
