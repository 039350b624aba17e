"""What real loops do, with two workers: each ends with the parameters of the same loop by hand."""

from pathlib import Path

from loop.pairs import run_ranks
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
)
"""Of habits.py; what follows the plus is a model that remembers less (activation checkpointing)."""


def test_what_loops_do_ends_as_by_hand(tmp_path: Path) -> None:
    """With tied weights, two parameter groups, momentum, and parameters that are frozen or not used."""
    script = str(Path(__file__).parent / "habits.py")
    shown = run_ranks(script, ",".join(map(str, free_ports(len(HABITS)))), *HABITS, cwd=tmp_path)
    for out in shown:
        told = [line for line in out.splitlines() if line.partition(":")[0] in HABITS]
        assert told == [f"{name}: equal" for name in HABITS]
