"""Where the hosts of a run put its folder."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec
from paceline.records.folder import RunFolder, create_new, new_folder_name
from paceline.records.tensors import RunIdentity
from paceline.runtimes.config import new_identity, read_config, write_config
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.request import LiveOptions, ProcessTask
from paceline.runtimes.live.worker.records import agree_on_folder
from paceline.runtimes.settings import Settings

SETTINGS = Settings(job=JobSpec(), batch_sizes=(8, 8), epochs=1)


def describe(folder: RunFolder, identity: RunIdentity) -> None:
    write_config(folder, SETTINGS, "live", {}, identity=identity)


class SecondHost:
    """The group of rank 1, which is alone on its host; rank 0 has chosen a folder."""

    rank, workers = 1, 2

    def __init__(self, name: Any, identity: RunIdentity) -> None:
        self.answers = [{"name": name, "run": identity.run}, None]

    def exchange(self, document: Any) -> list[Any]:
        return [self.answers.pop(0), document]


def agree(runs: Path, name: Any, identity: RunIdentity) -> RunFolder:
    place = ProcessInfo(rank=1, workers=2, node_rank=1, nodes=2)
    task = ProcessTask(
        settings=SETTINGS,
        options=LiveOptions(),
        info=place,
        runs=runs,
        heartbeat=None,
        stop_requested=lambda: False,
    )
    workers = [{"node": 0}, {"node": 1}]
    folder, found, lock = agree_on_folder(SecondHost(name, identity), task, "x", workers)
    assert found == identity
    assert lock is not None
    lock.close()
    return folder


def test_the_second_host_makes_the_folder_or_finds_that_it_is_shared(tmp_path):
    mine, name = new_identity(SETTINGS), new_folder_name("x", datetime.now(UTC))
    assert read_config(agree(tmp_path, name, mine)).identity == mine
    assert agree(tmp_path, name, mine).path == tmp_path / name, "hosts may share a file system"


def test_a_folder_of_another_run_is_refused_and_stays_as_it_is(tmp_path):
    """If this failed, two runs of one second would mix on a host that they share."""
    other = new_identity(SETTINGS)
    folder = create_new(tmp_path, "x", lambda draft: describe(draft, other))
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    with pytest.raises(UsageError, match=f"belongs to run {other.run}, and this is run "):
        agree(tmp_path, folder.path.name, new_identity(SETTINGS))
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before


@pytest.mark.parametrize("name", ["/etc/x", "../x", "20261115-184207-x/../../y-abcd", None])
def test_a_name_that_leads_elsewhere_is_refused(name, tmp_path):
    with pytest.raises(UsageError, match="is not the name of a run folder"):
        agree(tmp_path / "runs", name, new_identity(SETTINGS))
    assert list(tmp_path.iterdir()) == []
