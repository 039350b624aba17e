"""``distribute`` in processes that have formed a process group before."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from command import run_python
from paceline.errors import UsageError
from paceline.loop.distribute import distribute
from paceline.loop.group import process_of_group
from paceline.loop.process import ScriptProcess
from paceline.runtimes.live.process_info import ProcessInfo
from ports import free_ports

PAIR = str(Path(__file__).parent / "group_pair.py")


def run_pair(how: str, cwd: Path) -> tuple[str, Path]:
    """What both wrote, and the run folder. No variable tells them who they are."""
    port = str(free_ports(1)[0])
    done = run_python(PAIR, port, how, cwd=cwd, env={"OMP_NUM_THREADS": "1"})
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown
    (folder,) = (cwd / "runs").iterdir()
    return shown, folder


def test_ranks_of_a_group_that_there_is_are_the_workers(tmp_path: Path) -> None:
    """If this failed, distribute() could not be used where Ray or the script itself forms the group."""
    shown, folder = run_pair("close", tmp_path)
    assert "2 workers x batch 8, local-sgd:period=4 over shared memory" in shown
    assert json.loads((folder / "summary.json").read_text())["steps"] == 8
    workers = json.loads((folder / "env.json").read_text())["workers"]
    assert [(worker["node"], worker["launcher"]) for worker in workers] == [(0, "other")] * 2


def test_a_group_that_is_destroyed_too_early_costs_the_summary_alone(tmp_path: Path) -> None:
    """If this failed, a script that ends as most do would end in a traceback, or hang."""
    shown, folder = run_pair("forget", tmp_path)
    assert shown.count("destroyed its process group before the run was added up") == 2
    assert "Traceback" not in shown
    assert (folder / "events").exists()


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_group_and_variables_that_contradict_each_other_are_refused(alone: None) -> None:
    with pytest.raises(UsageError, match=r"rank 0 of 1 in the group .* RANK says rank 1 of 2"):
        process_of_group(ProcessInfo(rank=1, workers=2))
    found = process_of_group(None)
    assert found is not None
    assert (found.rank, found.workers, found.nodes) == (0, 1, 1)


def test_a_rank_that_does_not_join_is_named(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this failed, distribute() on rank 0 alone would hang."""
    monkeypatch.setattr(dist, "get_world_size", lambda *_: 3)
    with pytest.raises(UsageError, match=r"rank 1, 2 of the process group did not call distribute\(\)"):
        process_of_group(None, wait=0.1)


def test_a_model_that_averages_gradients_itself_is_refused(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptProcess, "current", None)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    with pytest.raises(UsageError, match="give distribute\\(\\) the model itself"):
        distribute(model, torch.optim.SGD(model.parameters()))
