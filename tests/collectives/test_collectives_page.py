"""If this fails, the schedule that the page shows to newcomers does not reduce."""

import re
from pathlib import Path
from typing import Any

import torch

from paceline.collectives import SCHEDULES
from paceline.shm.operations import OPERATIONS
from schedule_reference import reduce_all

PAGE = Path(__file__).parents[2] / "docs" / "collectives.md"


def test_the_schedule_on_the_page_reduces() -> None:
    (source,) = [
        block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "def line" in block
    ]
    names: dict[str, Any] = {}
    exec(compile(source, PAGE.name, "exec"), names)
    for workers in range(1, 6):
        tensors = [torch.full((3,), 2.0**rank) for rank in range(workers)]
        results = reduce_all(names["line"]([0] * workers), tensors, OPERATIONS["sum"])
        assert all(result.tolist() == [2.0**workers - 1] * 3 for result in results)


def test_the_page_lists_every_schedule() -> None:
    assert set(re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(), re.M)) == set(SCHEDULES), (
        "the table on the page needs a row for each schedule"
    )
