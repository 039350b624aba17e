"""Thousands of mixed calls in a row all give what they should."""

import subprocess
import sys
from pathlib import Path


def test_a_soak_of_mixed_calls_finds_nothing_wrong() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "shm_soak.py"
    command = [sys.executable, str(script), "--calls", "1500", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "all right" in done.stdout
