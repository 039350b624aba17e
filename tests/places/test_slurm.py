"""A run in a real Slurm: slurmctld and two slurmd on this machine."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from places.processes import EXAMPLES
from places.slurm_cluster import SlurmCluster, missing, slurm_cluster

if missing():
    pytest.skip(f"not installed: {', '.join(missing())} (Debian: slurm-wlm, munge)", allow_module_level=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    folder = tmp_path_factory.mktemp("slurm") / "cluster"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
        with slurm_cluster(folder) as started:
            yield started


def test_a_batch_script_trains_on_two_nodes(cluster: SlurmCluster, tmp_path: Path) -> None:
    """Three tasks, two of them on the first node. If this failed, each would train alone, or find nobody."""
    ended = cluster.run_batch(
        str(EXAMPLES / "slurm.sh"), str(EXAMPLES.parent / "plain_loop.py"), cwd=tmp_path
    )
    (output,) = tmp_path.glob("slurm-*.out")
    shown = output.read_text()
    assert ended == "COMPLETED 0:0", shown
    assert "3 workers x batch 16, all-reduce" in shown
    assert shown.count("epoch 3: accuracy") == 1
    (folder,) = (tmp_path / "runs").iterdir()
    workers = json.loads((folder / "env.json").read_text())["workers"]
    assert [worker["node"] for worker in workers] == [0, 0, 1]


def test_a_script_gets_its_strategy_from_the_command_line(cluster: SlurmCluster, tmp_path: Path) -> None:
    words = ("python", "-m", "paceline", "run", "--strategy", "local-sgd:period=8")
    script = (str(EXAMPLES.parent / "plain_loop.py"), "--epochs", "1")
    shown = cluster.run("srun", "--nodes=1", "--ntasks=2", *words, *script, cwd=tmp_path)
    assert "2 workers x batch 16, local-sgd:period=8 over shared memory" in shown


def test_tasks_on_one_node_train_a_job(cluster: SlurmCluster, tmp_path: Path) -> None:
    """The command instead of a script, and no secret to make."""
    words = ("python", "-m", "paceline", "train", "--iterations", "20", "--json")
    document = json.loads(cluster.run("srun", "--nodes=1", "--ntasks=2", *words, cwd=tmp_path))
    assert document["summary"]["workers"] == 2
    assert document["summary"]["steps"] == 20
