"""The worked case of four asynchronous cores, as the example file states it."""

from pathlib import Path

import pytest

from command import run_json
from paceline.records.folder import RunFolder
from paceline.records.servers import Updated, read_server_log
from paceline.reports.timeline import distance_to_sequential, sequential_updates

EXAMPLE = Path(__file__).parents[2] / "examples" / "async-four-cores.toml"


def updates_of(cluster: Path, tmp_path: Path) -> list[Updated]:
    run_json(
        *("simulate", "--cluster", str(cluster), "--strategy", "async", "--no-gradients"),
        *("--horizon", "0.6 s", "--name", "cores"),
        cwd=tmp_path,
    )
    (folder,) = (tmp_path / "runs").iterdir()
    log = read_server_log(RunFolder(folder).server_events(0))
    return [entry for entry in log if isinstance(entry, Updated)]


def staleness(updates: list[Updated]) -> list[int]:
    return [one.staleness for update in updates for one in update.used]


def test_five_updates_in_the_whole_horizon(tmp_path):
    updates = updates_of(EXAMPLE, tmp_path)
    assert [update.at for update in updates] == pytest.approx([0.35, 0.40, 0.45, 0.55, 0.60])
    assert staleness(updates) == [0, 1, 2, 2, 2]
    assert [one.worker for update in updates for one in update.used] == [0, 1, 2, 0, 1]
    assert distance_to_sequential(staleness(updates), sequential_updates(0.2, 0.6)).bound == 6


def test_three_updates_where_each_core_computes_once(tmp_path):
    once = tmp_path / "once.toml"
    once.write_text(EXAMPLE.read_text().replace("\nstart =", "\nsteps = 1\nstart ="))
    updates = updates_of(once, tmp_path)
    assert [one.version for update in updates for one in update.used] == [0, 0, 0], (
        "all on the first parameters"
    )
    assert staleness(updates) == [0, 1, 2]
    assert distance_to_sequential(staleness(updates), sequential_updates(0.2, 0.6)).bound == 4
