"""Times from a record must be those of an unhindered worker, for its own mini-batch."""

import pytest

from command import run_json
from paceline.cli.main import main
from paceline.costs.recorded import typical_step
from paceline.errors import UsageError
from paceline.records.folder import RunFolder

CLUSTER = "hosts=2,bandwidth=1 Gbit/s,latency=50 us,data=1 ms,forward=10 ms,backward=20 ms,apply=2 ms,checkpoint=5 ms"


@pytest.fixture
def recorded(tmp_path) -> RunFolder:
    options = ("--cluster", CLUSTER, "--no-gradients", "--slow", "0=3", "--epochs", "2", "--batch-size", "16")
    document = run_json("simulate", *options, cwd=tmp_path)
    return RunFolder(tmp_path / document["run"]["folder"])


def test_the_fastest_workers_whole_batches_are_typical(recorded):
    step, samples, checkpoint = typical_step(recorded)
    assert samples == 16
    parts = (step.data, step.forward, step.backward, step.apply, checkpoint)
    assert parts == pytest.approx((0.001, 0.010, 0.020, 0.002, 0.005), abs=1e-8)


@pytest.mark.parametrize(("batch", "seconds"), [("16", 0.033), ("32", 0.064)])
def test_other_batches_take_their_multiple(batch, seconds, recorded, tmp_path):
    options = (
        "--times",
        str(recorded.path),
        "--workers",
        "1",
        "--no-gradients",
        "-i",
        "10",
        "--batch-size",
        batch,
    )
    document = run_json("simulate", *options, "--checkpoint-every", "never", cwd=tmp_path)
    assert document["summary"]["seconds"] == pytest.approx(10 * seconds, rel=1e-6)


def test_times_are_given_once(recorded, capsys):
    assert main(["simulate", "--times", str(recorded.path), "--cluster", CLUSTER]) == 2
    assert "contradict each other" in capsys.readouterr().err


def test_a_folder_without_steps_is_refused(tmp_path):
    with pytest.raises(UsageError, match="fewer than 2 recorded steps"):
        typical_step(RunFolder(tmp_path))
