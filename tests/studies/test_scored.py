"""A prediction beside the record of a run: here the run is virtual too, so both must agree."""

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.clusters.cluster import Cluster, Host, Link
from paceline.codecs.context import Layout
from paceline.costs.device import StepCost
from paceline.costs.stated import stated_costs
from paceline.errors import UsageError
from paceline.records.folder import RunFolder
from paceline.records.spans import StepBreakdown
from paceline.runtimes.virtual.recording import FolderRecorder
from paceline.runtimes.virtual.shape import JobShape
from paceline.runtimes.virtual.simulate import simulate
from paceline.runtimes.virtual.simulation import Simulation
from paceline.studies.predict.setup import Setup
from paceline.studies.predict.step import predict_step

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _score import compare_parts, parts_table

LINK = Link(bandwidth=1e9, latency=1e-4)
SETUP = Setup(
    strategy="all-reduce",
    cluster=Cluster.of(tuple(Host(name=name, link=LINK) for name in "ab")),
    cost=StepCost(
        samples=8,
        step=StepBreakdown(data=1e-3, forward=4e-3, backward=8e-3, apply=2e-3),
        ready=(1.0, 0.6, 0.2),
        spread=0.0,
    ),
    shape=JobShape(
        name="made",
        layout=Layout.of_vectors(300_000, 400_000, 500_000),
        train_samples=64,
        test_samples=8,
        buffers=0,
    ),
)


@pytest.fixture
def record(tmp_path: Path) -> RunFolder:
    """Of a virtual run of what ``SETUP`` says."""
    folder = RunFolder(tmp_path)
    prepared = SETUP.prepared(2, 20)
    cluster = replace(SETUP.cluster, times=SETUP.times)
    with closing(FolderRecorder(folder, 2, 20)) as recorder:
        costs = stated_costs(cluster, prepared.settings.batch_sizes, {})
        simulate(Simulation(prepared, cluster, costs, gradients=False, recorder=recorder))
    return folder


def test_every_part_is_as_recorded(record: RunFolder) -> None:
    """What the predictor calls a part is what records call it, hidden transfers and the whole step included."""
    rows = {row.part: row for row in compare_parts(predict_step(SETUP).breakdown, record)}
    for part in ("data", "forward", "backward", "communicate", "apply", "hidden", "step"):
        assert rows[part].recorded > 0
        assert rows[part].error == pytest.approx(0, abs=1e-6)
    assert rows["other"].error is None
    told = ("data", "forward", "backward", "communicate", "wait", "apply", "other")
    assert rows["step"].recorded == pytest.approx(sum(rows[part].recorded for part in told))


def test_a_wrong_part_is_seen_in_its_row(record: RunFolder) -> None:
    """The table is to tell which part of the model was wrong."""
    wrong = replace(predict_step(SETUP).breakdown, backward=12e-3)
    rows = {row.part: row for row in compare_parts(wrong, record)}
    assert rows["backward"].error == pytest.approx(0.5)
    assert rows["forward"].error == pytest.approx(0, abs=1e-6)
    lines = parts_table(list(rows.values())).splitlines()
    assert next(line for line in lines if line.startswith("backward")).split() == [
        *("backward", "12.000", "8.000", "+50", "%")
    ]
    assert not any(line.startswith("other") for line in lines)


def test_a_folder_without_steps_is_refused(tmp_path: Path) -> None:
    """There is nothing to compare with."""
    with pytest.raises(UsageError, match="holds no recorded steps"):
        compare_parts(predict_step(SETUP).breakdown, RunFolder(tmp_path))
