"""Ray Train, whose workers ``distribute`` makes those of a run."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from command import run_python
from places.processes import EXAMPLES, end_all

if not (find_spec("ray") and find_spec("pyarrow")):
    pytest.skip("ray is not installed: pip install '.[ray]'", allow_module_level=True)


@pytest.fixture
def sessions() -> Iterator[str]:
    """Where Ray keeps its sockets, whose paths must be short; what was started there is ended."""
    folder = tempfile.mkdtemp(prefix="ray-")
    yield folder
    end_all("RAY_TMPDIR", folder)
    shutil.rmtree(folder)


def test_ray_trains_workers_that_distribute_joins(tmp_path: Path, sessions: str) -> None:
    variables = {
        "HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
        "RAY_TMPDIR": sessions,
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # actors that nothing here needs
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
        "RAY_TRAIN_METRICS_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    done = run_python(
        str(EXAMPLES / "ray_trainer.py"), "--storage", "storage", cwd=tmp_path, env=variables, seconds=100
    )
    assert done.returncode == 0, done.stderr
    assert "2 workers x batch 16, local-sgd:period=8 over shared memory" in done.stdout
    assert float(done.stdout.split("epoch 3: accuracy ")[1].split()[0]) > 0.8
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "summary.json").read_text())["steps"] == 96
