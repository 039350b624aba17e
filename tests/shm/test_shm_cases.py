"""What every collective gives, against the slow way and against Gloo; and what scripts do with a group."""

from typing import Any

import pytest
from crew import run_script


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_script("shm_cases.py", tmp_path_factory.mktemp("cases"))


@pytest.fixture(scope="module")
def uses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_script("shm_uses.py", tmp_path_factory.mktemp("uses"))


@pytest.mark.parametrize("ranks", ["1", "2", "3", "4"])
def test_every_operation_type_and_size_gives_what_the_slow_way_gives(
    cases: dict[str, Any], ranks: str
) -> None:
    failed = [result.get("value", result) for result in cases[ranks]["ranks"]]
    assert failed == [{}] * int(ranks)


@pytest.mark.parametrize("ranks", ["2", "4"])
def test_futures_messages_groups_and_waiting_work_as_torch_promises(uses: dict[str, Any], ranks: str) -> None:
    failed = [result.get("value", result) for result in uses[ranks]["ranks"]]
    assert failed == [{}] * int(ranks)


def test_nothing_was_said_that_needs_reading(cases: dict[str, Any], uses: dict[str, Any]) -> None:
    lines = (cases["stderr"] + uses["stderr"]).splitlines()
    assert not [line for line in lines if "Exception" in line or "Error" in line]
