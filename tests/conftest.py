"""What tests share: one thread, and a check that nothing is left behind."""

from collections.abc import Iterator

import psutil
import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Several tests share two cores; and one thread makes sums repeatable."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_orphans() -> Iterator[None]:
    """Fail a test that leaves a process of its own behind."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    _, alive = psutil.wait_procs(left, timeout=5)
    assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE], "processes left behind"
