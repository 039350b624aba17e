"""What the live tests share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults import Faulty


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Faulty]]:
    """Starts trainings of the job that can be made to hang, each in the folder ``home``; none outlives the test."""
    started: list[Faulty] = []

    def begin(*options: str, home: str = "home", **variables: str) -> Faulty:
        started.append(Faulty(tmp_path / home, *options, **variables))
        return started[-1]

    yield begin
    for run in started:
        run.end()
