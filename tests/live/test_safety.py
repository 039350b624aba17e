"""What one host, and several, know of the checkpoints of a run."""

import json

import pytest

from paceline.records.commits import Commits
from paceline.runtimes.config import read_config
from paceline.runtimes.live.safety import CompleteSteps, complete_steps, newest_safe, safe
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
    for file in folder.checkpoints.glob(f"*/{role}-1.tensors"):
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
    there = CompleteSteps.from_json(json.loads(json.dumps(CompleteSteps(whole=(8, 4)).to_json())))
    assert newest_safe([here, there], nodes=2) == newest_safe([there, here], nodes=2) == 8
    assert newest_safe([here, CompleteSteps()], nodes=2) is None
    commits.forget_after(3)
    assert commits.steps() == []


@pytest.mark.parametrize("document", [{}, {"whole": 5}, {"whole": ["x", True, -1, None], "complete": {}}])
def test_what_another_host_tells_is_not_believed_blindly(document):
    assert CompleteSteps.from_json(document) == CompleteSteps()


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
