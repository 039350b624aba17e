"""What every collective gives, against the slow way and against Gloo; and what scripts do with a group."""

from typing import Any

import pytest
from crew import fork_script


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return fork_script("shm_cases.py", tmp_path_factory.mktemp("cases"))


@pytest.fixture(scope="module")
def uses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return fork_script("shm_uses.py", tmp_path_factory.mktemp("uses"))


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


def test_two_ranks_train_to_the_same_bits_over_shared_memory_and_gloo(uses: dict[str, Any]) -> None:
    """DDP does not care what carries its gradients."""
    for result in uses["ddp"]["2"]:
        assert result["value"] == dict.fromkeys(result["value"], 0.0)


def test_three_ranks_differ_by_the_order_of_adding_only(uses: dict[str, Any]) -> None:
    for result in uses["ddp"]["3"]:
        assert max(result["value"].values()) < 1e-6, result["value"]


def test_nothing_was_said_that_needs_reading(cases: dict[str, Any], uses: dict[str, Any]) -> None:
    lines = (cases["stderr"] + uses["stderr"]).splitlines()
    assert not [line for line in lines if "Exception" in line or "Error" in line]
