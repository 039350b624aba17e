"""What real loops do, with two workers: each ends with the parameters of the same loop by hand."""

from collections.abc import Sequence
from pathlib import Path

from command import start_python
from loop.pairs import Start, run_ranks, start_interpreter
from ports import free_ports

HABITS = (
    "plain",
    "accumulate-and-clip",
    "several-backwards",
    "several-forwards",
    "retained-graph",
    "gradient-penalty",
    "schedule",
    "scaler-that-skips",
    "frozen-in-between",
    "whole-model-checkpointed",
    "plain+remembered",
    "plain+reentrant",
    "uneven=3/6",
    "uneven=5/0",
    "uneven-with-a-scaler=3/6",
)
"""Of habits.py; what follows the plus is a model that remembers less (activation checkpointing)."""
COMPILED = ("plain+compiled", "accumulate-and-clip+compiled")


def test_what_loops_do_ends_as_by_hand(tmp_path: Path) -> None:
    """With tied weights, two parameter groups, momentum, and parameters that are frozen or not used."""
    assert_equal(HABITS, tmp_path)


def test_a_compiled_model_ends_as_the_plain_one(tmp_path: Path) -> None:
    """In new interpreters: in forks of the tests, a compiler breaks the connections to the run's store."""
    assert_equal(COMPILED, tmp_path, start=start_interpreter)


def assert_equal(names: Sequence[str], cwd: Path, start: Start = start_python) -> None:
    script = str(Path(__file__).parent / "habits.py")
    ports = ",".join(map(str, free_ports(len(names))))
    for out in run_ranks(script, ports, *names, cwd=cwd, start=start):
        told = [line for line in out.splitlines() if line.partition(":")[0] in names]
        assert told == [f"{name}: equal" for name in names]
