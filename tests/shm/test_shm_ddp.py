"""DDP does not care what carries its gradients; and thousands of mixed calls in a row all give what they should."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from crew import run_script


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_script("shm_ddp.py", tmp_path_factory.mktemp("ddp"))


def test_two_ranks_train_to_the_same_bits_over_shared_memory_and_gloo(apart: dict[str, Any]) -> None:
    for result in apart["2"]:
        assert result["value"] == dict.fromkeys(result["value"], 0.0)


def test_three_ranks_differ_by_the_order_of_adding_only(apart: dict[str, Any]) -> None:
    for result in apart["3"]:
        assert max(result["value"].values()) < 1e-6, result["value"]


def test_a_soak_of_mixed_calls_finds_nothing_wrong() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "shm_soak.py"
    command = [sys.executable, str(script), "--calls", "1500", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "all right" in done.stdout
