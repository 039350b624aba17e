"""A few seeds of the soak in ``benchmarks/fault_soak.py``: real runs, real signals, and every invariant checked."""

from pathlib import Path

import pytest

from command import run_python

SCRIPT = str(Path(__file__).parents[2] / "benchmarks" / "fault_soak.py")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [1])
def test_a_seed_violates_no_invariant(seed: int) -> None:
    """If this failed, a fault would hang a run, leave something behind, lose a checkpoint or change a result."""
    done = run_python(SCRIPT, "--only", str(seed), "--slack", "2", seconds=380)
    if "skipped" in done.stdout:
        pytest.skip(done.stdout.splitlines()[0])
    assert done.returncode == 0, done.stdout + done.stderr
