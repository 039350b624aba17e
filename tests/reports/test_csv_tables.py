import csv
import tracemalloc
from pathlib import Path

import pytest

from paceline.records.events import EventWriter, read_events, read_metrics
from paceline.records.files import write_json
from paceline.records.folder import RunFolder
from paceline.records.spans import Span, StepRecord
from paceline.records.summary import read_summary
from paceline.reports.csv_tables import PARTS, tables, write_csv

GOLDEN = Path(__file__).parents[1] / "golden"
ROOT = Path(__file__).parents[2]


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_tables_of_a_run_with_servers_hold_all_that_was_recorded(tmp_path):
    folder = RunFolder(GOLDEN / "served")
    files = write_csv(folder, tmp_path)
    assert {path.stem: count for path, count in files.items()} == {
        "steps": 128,
        "metrics": 3,
        "system": 4,
        "totals": 2,
        "staleness": 3,
        "updates": 120,
    }
    steps, summary = read(tmp_path / "steps.csv"), read_summary(folder)
    for rank, totals in enumerate(summary.totals):
        own = [row for row in steps if row["rank"] == str(rank)]
        assert sum(row["is_step"] == "1" for row in own) == totals.steps
        assert sum(int(row["samples"]) for row in own) == totals.samples
        for kind, seconds in totals.seconds.items():
            assert sum(float(row[f"{kind}_seconds"]) for row in own) == pytest.approx(seconds)
    for row in steps:
        assert float(row["length_seconds"]) == pytest.approx(sum(float(row[part]) for part in PARTS))
    used = [row["staleness_updates"] for row in read(tmp_path / "updates.csv")]
    counts = {
        int(row["staleness_updates"]): int(row["gradients"]) for row in read(tmp_path / "staleness.csv")
    }
    assert counts == summary.servers[0].staleness == {int(one): used.count(one) for one in set(used)}
    assert [float(row["accuracy"]) for row in read(tmp_path / "metrics.csv")] == [
        row.metrics["accuracy"] for row in read_metrics(folder.metrics)
    ]
    assert {row["rank"] for row in read(tmp_path / "system.csv")} == {"0", "1"}
    assert float(read(tmp_path / "totals.csv")[1]["typical_step_seconds"]) == summary.totals[1].typical.total


def test_hidden_communication_is_in_no_part_of_a_step(tmp_path):
    folder = RunFolder(GOLDEN / "all-reduce")
    write_csv(folder, tmp_path)
    rows = [row for row in read(tmp_path / "steps.csv") if row["rank"] == "0"]
    hidden = [sum(span.length for span in record.hidden) for record in read_events(folder.events(0))]
    assert [float(row["hidden_seconds"]) for row in rows] == hidden
    assert not (tmp_path / "updates.csv").exists(), "a run without servers has no such table"


def test_a_run_that_goes_on_has_no_totals_and_a_prediction_has_a_row_for_each_value(tmp_path):
    folder, out = RunFolder(tmp_path / "run"), tmp_path / "out"
    out.mkdir()
    folder.path.mkdir()
    write_json(folder.prediction, {"row": {"step": 0.25, "made": None}, "sums": [[8, 0.5]]})
    (out / "totals.csv").write_text("of an earlier export")
    assert write_csv(folder, out) == {out / "prediction.csv": 4}
    assert read(out / "prediction.csv") == [
        {"name": "row.step", "value": "0.25"},
        {"name": "row.made", "value": ""},
        {"name": "sums.0.0", "value": "8"},
        {"name": "sums.0.1", "value": "0.5"},
    ]
    assert not (out / "totals.csv").exists()


def test_memory_does_not_grow_with_the_run(tmp_path):
    folder, out = RunFolder(tmp_path / "run"), tmp_path / "out"
    folder.path.mkdir()
    out.mkdir()
    peaks = []
    for steps in (500, 8000):
        folder.events(0).unlink(missing_ok=True)
        with EventWriter(folder.events(0)) as writer:
            for step in range(steps):
                writer.append(
                    StepRecord(step, 32, [Span("forward", step, 0.5), Span("backward", step + 0.5, 0.5)])
                )
        tracemalloc.start()
        write_csv(folder, out)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] + 100_000


def test_every_column_is_documented():
    page = (ROOT / "docs" / "export.md").read_text()
    missing = [
        column
        for table in tables(RunFolder(GOLDEN / "all-reduce")).values()
        for column in table.columns
        if f"`{column}`" not in page and column not in PARTS and not column.startswith("typical_")
    ]
    assert missing == ["test_loss", "accuracy"] or missing == []
