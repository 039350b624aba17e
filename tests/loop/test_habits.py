"""What real loops do, with two workers: each ends with the parameters of the same loop by hand."""

import os
import subprocess
import sys
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
COMPILED = ("plain+compiled", "accumulate-and-clip+compiled")


def test_what_loops_do_ends_as_by_hand(tmp_path: Path) -> None:
    """With tied weights, two parameter groups, momentum, and parameters that are frozen or not used."""
    script = str(Path(__file__).parent / "habits.py")
    shown = run_ranks(script, ",".join(map(str, free_ports(len(HABITS)))), *HABITS, cwd=tmp_path)
    for out in shown:
        told = [line for line in out.splitlines() if line.partition(":")[0] in HABITS]
        assert told == [f"{name}: equal" for name in HABITS]


def test_a_compiled_model_ends_as_the_plain_one(tmp_path: Path) -> None:
    """In new interpreters: a compiler in a fork of the tests closes files that are no longer its own."""
    script = str(Path(__file__).parent / "habits.py")
    words = [sys.executable, script, ",".join(map(str, free_ports(len(COMPILED)))), *COMPILED]
    common = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    ranks = [
        subprocess.Popen(
            words,
            cwd=tmp_path,
            env={**common, "RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    for one in ranks:
        out, err = one.communicate(timeout=100)
        assert one.returncode == 0, err
        assert [f"{name}: equal" in out.splitlines() for name in COMPILED] == [True, True]
