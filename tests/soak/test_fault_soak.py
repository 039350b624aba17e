"""A few seeds of the soak in ``benchmarks/fault_soak.py``: real runs, real signals, every invariant checked."""

import re
from pathlib import Path

import pytest

from command import run_python

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

SEEDS = {
    161: "stop rank-0 at the first step + 0.06 s",
    255: "kill launcher-0 at checkpoint 30; flip checkpoint before the resume",
    262: "cut link host-0 at checkpoint 1",
}


@pytest.mark.timeout(400)
def test_fixed_seeds_violate_no_invariant() -> None:
    """If this failed, a fault would hang a run, leave something behind, lose a checkpoint or change a result."""
    words = ["--seeds", ",".join(map(str, SEEDS)), "--jobs", "3", "--slack", "2"]
    done = run_python(str(BENCHMARKS / "fault_soak.py"), *words, seconds=380)
    assert done.returncode == 0, done.stdout + done.stderr
    total = re.search(r"(\d+) scenarios, (\d+) faults injected of (\d+) drawn", done.stdout)
    assert total, done.stdout
    assert total[2] == total[3], f"a fault was not injected:\n{done.stdout}"
    if skipped := re.search(r"seed 262: skipped, (.*)", done.stdout):
        pytest.skip(f"all but the two hosts: {skipped[1]}")
    assert total[1] == str(len(SEEDS))


def test_a_seed_is_always_the_same_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this failed, a seed in a report could not be played again, or a kind of fault would never be tried."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from _fault_scenarios import scenario

    for seed, words in SEEDS.items():
        assert str(scenario(seed)).endswith(words)
    assert len({fault.kind for seed in range(300) for fault in scenario(seed).faults}) == 8
