"""What one host, and several, know of the checkpoints of a run."""

import json

import pytest

from paceline.records.checkpoints import Checkpoints, Commits
from paceline.records.folder import RunLock
from paceline.runtimes.config import read_config
from paceline.runtimes.live.failures import CompleteSteps, complete_steps, decoded, newest_safe, safe
from run_folders import checkpoints_of, saved_run

NOTHING = ["Safe: no checkpoint yet; start again with the same command."]


@pytest.mark.parametrize("servers", [0, 2])
def test_a_step_is_safe_when_every_file_of_it_is_whole(servers, tmp_path):
    folder = saved_run(tmp_path, 4, servers=servers)
    role = "server" if servers else "rank"
    checkpoints_of(folder, role=role).save(8, 0, 1)
    assert safe(tmp_path)[0].startswith("Safe: checkpoint of step 4, ")
    path = checkpoints_of(folder, role=role).save(8, 1, 1)
    assert safe(tmp_path)[0].startswith("Safe: checkpoint of step 8, ")
    path.write_bytes(path.read_bytes()[:-1])
    assert safe(tmp_path)[0].startswith("Safe: checkpoint of step 4, ")
    for file in folder.checkpoints.glob(f"*/{role}-1.safetensors"):
        file.write_bytes(b"")
    assert safe(tmp_path) == NOTHING


def test_what_another_host_holds_counts_when_it_was_recorded_or_told(tmp_path):
    """If this failed, a host would call safe what another never wrote, or two hosts name different steps."""
    folder = saved_run(tmp_path, 4, nodes=2)
    assert not folder.checkpoint(4, 1).exists()
    assert complete_steps(tmp_path) == CompleteSteps(whole=(4,), complete=())
    assert safe(tmp_path) == NOTHING
    commits = Commits(folder, read_config(folder).identity, 0)
    commits.add(4)
    checkpoints_of(folder).save(8, 0, 1)
    here = complete_steps(tmp_path)
    assert here == CompleteSteps(whole=(8, 4), complete=(4,))
    assert newest_safe([here], nodes=2) == 4
    there = decoded(b'{"whole": [8, 4]}', CompleteSteps)
    assert newest_safe([here, there], nodes=2) == newest_safe([there, here], nodes=2) == 8
    assert newest_safe([here, CompleteSteps()], nodes=2) is None
    commits.forget_after(3)
    assert commits.steps() == []


@pytest.mark.parametrize("document", [{}, {"whole": 5}, {"whole": ["x", True, -1, None], "complete": {}}])
def test_what_another_host_tells_is_not_believed_blindly(document):
    assert (decoded(json.dumps(document).encode(), CompleteSteps) or CompleteSteps()) == CompleteSteps()


def test_a_commit_record_of_another_run_or_a_damaged_one_names_no_step(tmp_path):
    folder = saved_run(tmp_path / "one", 4)
    other = saved_run(tmp_path / "two", 4)
    Commits(other, read_config(other).identity, 0).add(4)
    other.commits(0).replace(folder.commits(0))
    commits = Commits(folder, read_config(folder).identity, 0)
    assert commits.steps() == []
    commits.add(4)
    assert commits.steps() == [4]
    folder.commits(0).write_text(folder.commits(0).read_text().replace("4\n", "8\n"))
    assert commits.steps() == []


def test_a_folder_that_cannot_be_resumed_is_not_called_safe(tmp_path):
    folder = saved_run(tmp_path / "run", 4)
    folder.config.write_text(folder.config.read_text().replace('"seed": 1', '"seed": 3'))
    (told,) = safe(folder.path)
    assert told.startswith("Safe: nothing that can be resumed: ")
    assert "was altered since it was written" in told
    assert "is gone" in safe(tmp_path / "nowhere")[0]


def test_every_file_is_verified_once_and_of_one_node_no_more_than_needed(tmp_path, monkeypatch):
    """If this failed, a user would wait for gigabytes to be read twice before the first word of what happened."""
    read = []

    def counted(self, step, rank):
        read.append((step, rank))
        return is_whole(self, step, rank)

    is_whole = Checkpoints.is_whole
    monkeypatch.setattr(Checkpoints, "is_whole", counted)
    alone = saved_run(tmp_path / "alone", 4)
    for rank in (0, 1):
        checkpoints_of(alone).save(8, rank, 1)
    told = []
    assert safe(alone.path, "", lambda mine: told.append(mine) or [])[0].startswith(
        "Safe: checkpoint of step 8"
    )
    assert read == [(8, 0), (8, 1)]
    assert told == [CompleteSteps(whole=(8,), complete=(8,))]
    read.clear()
    first = saved_run(tmp_path / "first", 4, nodes=2)
    checkpoints_of(first).save(8, 0, 1)
    other = CompleteSteps(whole=(4,))
    assert safe(first.path, "", lambda _: [other])[0].startswith("Safe: checkpoint of step 4")
    assert read == [(8, 0), (4, 0)], "another host may lack the newest"


def test_other_hosts_hear_from_one_that_has_nothing_to_resume(tmp_path):
    """If this failed, they would wait for its word until their patience ends."""
    told = []
    assert "is gone" in safe(tmp_path / "nowhere", "", lambda mine: told.append(mine) or [])[0]
    assert told == [CompleteSteps()]


@pytest.mark.parametrize("servers", [0, 1])
def test_a_lock_of_a_command_with_the_wrong_node_rank_hides_no_checkpoint(servers, tmp_path):
    """If this failed, one --resume with another host's -nr would make every checkpoint here useless for good."""
    folder = saved_run(tmp_path, 4, nodes=2, servers=servers)
    Commits(folder, read_config(folder).identity, 0).add(4)
    RunLock.own(folder, 1).close()
    assert complete_steps(tmp_path) == CompleteSteps(whole=(4,), complete=(4,))


def test_on_a_shared_file_system_a_step_counts_only_with_the_files_of_all_nodes(tmp_path):
    """If this failed, a step would be called safe that the other host had not written yet."""
    folder = saved_run(tmp_path, 4, nodes=2)
    folder.events(1).parent.mkdir()
    folder.events(1).touch()
    assert complete_steps(tmp_path) == CompleteSteps()
    checkpoints_of(folder).save(4, 1, 1)
    assert complete_steps(tmp_path) == CompleteSteps(whole=(4,), complete=(4,))
