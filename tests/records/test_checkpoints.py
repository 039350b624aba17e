import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from paceline.records.checkpoints import Checkpoints
from paceline.records.files import DamagedFile, listing
from paceline.records.folder import RunFolder
from paceline.records.tensors import RunIdentity

RUN = RunIdentity(run="0123456789abcdef", settings="0" * 64)


def checkpoints_in(path: Path, keep: int, run: RunIdentity = RUN) -> Checkpoints:
    return Checkpoints(RunFolder(path), run, keep)


def steps_in(folder: RunFolder) -> list[str]:
    return sorted(path.name for path in folder.checkpoints.iterdir())


def test_what_is_saved_is_loaded(tmp_path):
    checkpoints = checkpoints_in(tmp_path, keep=2)
    path = checkpoints.save(7, 1, {"params": torch.arange(3.0)})
    assert path == RunFolder(tmp_path).checkpoint(7, 1)
    assert checkpoints.load(7, 1)["params"].tolist() == [0, 1, 2]


def test_pruning_keeps_the_last_of_each_worker_and_no_empty_folder(tmp_path):
    folder = RunFolder(tmp_path)
    checkpoints = checkpoints_in(tmp_path, keep=2)
    for step in (90, 100, 1000):
        for rank in (0, 1):
            checkpoints.save(step, rank, {"step": step})
            checkpoints.prune(rank)
    assert steps_in(folder) == ["step-00000100", "step-00001000"]
    assert checkpoints.valid_steps(0) == ([1000, 100], [])


def test_a_damaged_file_is_named_and_the_one_before_it_is_offered(tmp_path):
    checkpoints = checkpoints_in(tmp_path, keep=5)
    for step in (1, 2, 3, 4):
        checkpoints.save(step, 0, {"params": torch.ones(9)})
    cut, altered = RunFolder(tmp_path).checkpoint(4, 0), RunFolder(tmp_path).checkpoint(3, 0)
    cut.write_bytes(cut.read_bytes()[:-1])
    data = bytearray(altered.read_bytes())
    data[-1] ^= 1
    altered.write_bytes(data)
    steps, refused = checkpoints.valid_steps(0)
    assert steps == [2, 1]
    assert refused[0].startswith(f"{cut} is cut short or was altered")
    assert refused[1].startswith(f"{altered} is cut short or was altered: its checksum does not match; ")


def test_what_an_abandoned_run_saved_later_is_forgotten(tmp_path):
    """If it stayed, pruning would keep it in place of the good one, and a crash could pair files of two runs."""
    folder = RunFolder(tmp_path)
    checkpoints = checkpoints_in(tmp_path, keep=1)
    for step, ranks in ((10, (0, 1)), (20, (0, 1)), (30, (0,))):
        for rank in ranks:
            checkpoints.save(step, rank, {"step": step})
    folder.checkpoint(30, 0).write_bytes(b"damaged")
    checkpoints.forget_after(10, 0)
    assert checkpoints.valid_steps(0) == ([10], [])
    assert checkpoints.valid_steps(1) == ([20, 10], []), "every worker removes its own files only"
    assert steps_in(folder) == ["step-00000010", "step-00000020"]
    checkpoints.prune(0)
    assert checkpoints.valid_steps(0) == ([10], [])


def test_files_of_a_worker_that_has_gone_are_removed_with_the_steps_that_nobody_keeps(tmp_path):
    """If this failed, a run that lost a worker would keep its old checkpoints for ever, whatever --keep says."""
    checkpoints = checkpoints_in(tmp_path, keep=2)
    for step in (10, 20, 30, 40):
        for rank in (0, 1, 2) if step < 40 else (0, 2):
            checkpoints.save(step, rank, {"step": step})
    checkpoints.prune(0)
    checkpoints.prune_gone(0, members=(0, 2))
    assert checkpoints.valid_steps(1)[0] == [30], "a step that is kept stays whole"
    assert checkpoints.valid_steps(2)[0] == [40, 30, 20, 10], "a worker that is there removes its own"
    checkpoints.prune(2)
    assert steps_in(RunFolder(tmp_path)) == ["step-00000030", "step-00000040"]


def test_another_workers_files_and_strange_names_do_not_matter(tmp_path):
    checkpoints = checkpoints_in(tmp_path, keep=1)
    checkpoints.save(5, 1, 1)
    (RunFolder(tmp_path).checkpoints / "step-old").mkdir()
    (RunFolder(tmp_path).checkpoints / "step-00000005" / "rank-x.safetensors").write_text("")
    assert checkpoints.valid_steps(0) == ([], [])
    assert checkpoints.valid_steps(1) == ([5], [])


def test_what_a_crash_left_is_ignored_and_swept_by_its_own_worker(tmp_path):
    checkpoints = checkpoints_in(tmp_path, keep=2)
    folder = checkpoints.save(3, 0, 1).parent
    mine, other = folder / ".rank-0.safetensors.12ab34cd.tmp", folder / ".rank-1.safetensors.12ab34cd.tmp"
    mine.write_bytes(b"half"), other.write_bytes(b"half")
    assert checkpoints.valid_steps(0) == ([3], [])
    checkpoints.prune(0)
    assert not mine.exists()
    assert other.exists(), "another worker may be writing this very moment"


def test_a_server_makes_room_for_a_new_file_and_keeps_one_that_others_may_need(tmp_path):
    checkpoints = checkpoints_in(tmp_path, keep=1)
    for step in (1, 2, 3):
        checkpoints.prune(0, room=1)
        checkpoints.save(step, 0, step)
    assert checkpoints.valid_steps(0)[0] == [3, 2], "another server may not have written step 3 yet"


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"run": "f" * 16}, "run ffffffffffffffff, rank 1, step 20"),
        ({"rank": 0}, "run 0123456789abcdef, rank 0, step 20"),
        ({"step": 10}, "run 0123456789abcdef, rank 1, step 10"),
        ({"settings": "1" * 64}, "other settings"),
    ],
)
def test_a_whole_file_of_somebody_else_is_refused_by_name(other, told, tmp_path):
    """If this failed, a file that was copied or mixed up would be trained on, and the replicas come apart."""
    checkpoints = checkpoints_in(tmp_path / "mine", keep=3)
    (tmp_path / "mine").mkdir(), (tmp_path / "other").mkdir()
    for step in (10, 20):
        checkpoints.save(step, 1, {"params": torch.zeros(3)})
    strange = {"rank": 1, "step": 20, **other}
    rank, step = strange.pop("rank"), strange.pop("step")
    run = replace(RUN, **strange)
    path = checkpoints_in(tmp_path / "other", keep=3, run=run).save(step, rank, {"params": torch.ones(3)})
    path.replace(RunFolder(tmp_path / "mine").checkpoint(20, 1))
    steps, (refused,) = checkpoints.valid_steps(1)
    assert steps == [10]
    assert f"step-00000020/rank-1.safetensors belongs to {told}, not to run" in refused
    assert refused.endswith("; this checkpoint is not used")
    with pytest.raises(DamagedFile, match="belongs to"):
        checkpoints.load(20, 1)


def test_a_folder_that_another_worker_removes_meanwhile_holds_nothing(tmp_path, monkeypatch):
    """If this failed, two workers that prune at the same moment would end the run."""
    folder = tmp_path / "step-00000001"
    folder.mkdir()

    def open_too_late(path):
        folder.rmdir()
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "scandir", open_too_late)
    assert listing(folder, "rank-*") == []


def test_many_workers_may_save_and_prune_at_once(tmp_path):
    checkpoints = checkpoints_in(tmp_path, keep=2)
    errors: list[Exception] = []

    def work(rank: int) -> None:
        try:
            for step in range(1, 13):
                checkpoints.save(step, rank, {"step": step})
                checkpoints.prune(rank)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert steps_in(RunFolder(tmp_path)) == ["step-00000011", "step-00000012"]
    assert all(checkpoints.valid_steps(rank) == ([12, 11], []) for rank in range(4))
