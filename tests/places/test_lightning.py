"""Lightning with the shared-memory backend."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from places.processes import EXAMPLES

if find_spec("lightning") is None:
    pytest.skip("lightning is not installed: pip install '.[places]'", allow_module_level=True)


def test_lightning_trains_over_shared_memory(tmp_path: Path) -> None:
    """In new interpreters: Lightning starts the second one by itself."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "lightning_ddp.py")],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "2 processes, shm: loss " in done.stdout
    assert float(done.stdout.split("loss ")[1]) < 1.0
