"""Thousands of mixed calls in a row all give what they should."""

from pathlib import Path

from command import run_python


def test_a_soak_of_mixed_calls_finds_nothing_wrong() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "shm_soak.py"
    done = run_python(str(script), "--calls", "1500", "--seed", "7", seconds=100)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "all right" in done.stdout
