"""What a process knows of itself by Slurm's variables."""

from pathlib import Path

import pytest

from paceline.cli.options import ProcessOptions
from paceline.errors import UsageError
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.slurm import first_node, tasks_per_node

TASK = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[08-09]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}


def test_a_task_knows_its_rank_its_node_and_the_first_node() -> None:
    """If this failed, srun would start workers that train alone."""
    info = ProcessInfo.from_environment(TASK)
    assert info is not None
    assert (info.rank, info.workers, info.local_rank, info.local_workers) == (2, 3, 0, 1)
    assert (info.node_rank, info.nodes, info.address) == (1, 2, "gpu08")
    assert (info.known_by, info.secret_file) == ("SLURM_PROCID", None)


def test_steps_that_run_side_by_side_have_ports_of_their_own() -> None:
    def port(**other: str) -> int:
        info = ProcessInfo.from_environment({**TASK, **other})
        assert info is not None
        return info.port

    jobs = {
        port(SLURM_JOB_ID=str(job), SLURM_STEP_ID=str(step)) for job in range(90, 100) for step in range(5)
    }
    assert len(jobs) == 50
    assert all(20_000 <= one < 32_000 for one in jobs)


def test_what_the_user_says_counts() -> None:
    own = {"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "4000", "PACELINE_SECRET_FILE": "/secret"}
    info = ProcessInfo.from_environment({**TASK, **own})
    assert info is not None
    assert (info.address, info.port, str(info.secret_file)) == ("10.0.0.9", 4000, "/secret")
    torchrun = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "4000"}
    info = ProcessInfo.from_environment({**TASK, **torchrun})
    assert info is not None
    assert (info.workers, info.known_by) == (1, "RANK")


@pytest.mark.parametrize(
    "other",
    [
        {"SLURM_STEP_NUM_TASKS": ""},  # a batch script
        {"SLURM_STEP_NUM_TASKS": "1"},  # an interactive shell
    ],
)
def test_what_is_no_task_among_others_has_no_launcher(other: dict[str, str]) -> None:
    """If this failed, 'paceline train' in a batch script would wait for tasks that are not there."""
    environ = {name: value for name, value in {**TASK, **other}.items() if value}
    assert ProcessInfo.from_environment(environ) is None


def test_workers_on_one_node_meet_on_it_alone() -> None:
    one = {**TASK, "SLURM_NODEID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "3"}
    info = ProcessInfo.from_environment(one)
    assert info is not None
    assert (info.address, info.local_workers) == ("127.0.0.1", 3)


def test_a_variable_that_is_missing_is_named() -> None:
    environ = {name: value for name, value in TASK.items() if name != "SLURM_STEP_NODELIST"}
    with pytest.raises(UsageError, match="SLURM_STEP_NODELIST is not: start the tasks with srun"):
        ProcessInfo.from_environment(environ)
    with pytest.raises(UsageError, match="SLURM_JOB_ID=x is not a number"):
        ProcessInfo.from_environment({**TASK, "SLURM_JOB_ID": "x"})
    with pytest.raises(UsageError, match="SLURM_STEP_TASKS_PER_NODE=3 says nothing of node 1"):
        ProcessInfo.from_environment({**TASK, "SLURM_STEP_TASKS_PER_NODE": "3"})


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("node1", "node1"),
        ("node[1-2]", "node1"),
        ("gpu[003,007-009]-ib,login", "gpu003-ib"),
        ("login,gpu[1-2]", "login"),
        ("rack[0-1]n[04-07]", "rack0n04"),
        ("10.0.0.[7-9]", "10.0.0.7"),
    ],
)
def test_the_first_node_of_a_list(nodelist: str, first: str) -> None:
    assert first_node(nodelist) == first


def test_the_tasks_of_each_node() -> None:
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    assert tasks_per_node("12") == [12]


def test_the_command_takes_the_secret_that_is_named_for_all_tasks(tmp_path: Path) -> None:
    """If this failed, 'srun paceline train' on several nodes would need the option as well."""
    file = tmp_path / "secret"
    Secret.new().write(file)
    info = ProcessInfo.from_environment({**TASK, "PACELINE_SECRET_FILE": str(file)})
    assert info is not None
    assert ProcessOptions().under_launcher(info).secret_file == file
    unnamed = ProcessInfo.from_environment(TASK)
    assert unnamed is not None
    with pytest.raises(UsageError, match=r"2 hosts needs a secret file.* or in PACELINE_SECRET_FILE under"):
        ProcessOptions().under_launcher(unnamed)
    with pytest.raises(
        UsageError, match="the launcher that set SLURM_PROCID=2; leave the option out, or unset"
    ):
        ProcessOptions(nodes=2).under_launcher(info)
