"""What averages that overlap with training send, however often a run is evaluated."""

import pytest

from command import run_json

SPEC = "local-sgd:period=16,overlap=16"


def sent_in_steps(tmp_path, *options: str) -> list[int]:
    words = ("simulate", "--model", "mlp", "--iterations", "96", "--strategy", SPEC, *options)
    document = run_json(*words, cwd=tmp_path)
    return [total["step_sent"] for total in document["summary"]["totals"]]


@pytest.mark.parametrize("every", ["5 steps", "23 steps"])
def test_an_average_that_an_evaluation_waits_for_is_counted_all_the_same(every, tmp_path):
    """If this failed, a study would say that overlapped averages cost fewer bytes the more often they are looked at."""
    assert sent_in_steps(tmp_path, "--evaluate-every", every) == sent_in_steps(
        tmp_path, "--evaluate-every", "96 steps"
    )
