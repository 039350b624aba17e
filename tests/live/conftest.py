"""What the live tests share."""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults import Faulty

from command import start_python
from ports import free_ports

HERE = Path(__file__).parent


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Faulty]]:
    """Starts trainings of the job that can be made to hang, each in the folder ``home``; none outlives the test."""
    started: list[Faulty] = []

    def begin(*options: str, home: str = "home", **variables: str) -> Faulty:
        started.append(Faulty(tmp_path / home, *options, **variables))
        return started[-1]

    yield begin
    for run in started:
        run.end()


@pytest.fixture(scope="module")
def run_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Runs processes of a script of this folder, ``SCRIPT RANK OUT PORTS``; returns what they left."""

    def run(script: str, ranks: int = 2) -> Path:
        folder = tmp_path_factory.mktemp("ranks")
        ports = ",".join(map(str, free_ports(80)))
        words = [str(folder), ports]
        workers = [
            start_python(str(HERE / script), str(rank), *words, cwd=HERE, stderr=subprocess.PIPE)
            for rank in range(ranks)
        ]
        try:
            while any(worker.poll() is None for worker in workers):
                if any(worker.poll() for worker in workers):  # the others would wait for it
                    break
                time.sleep(0.1)
        finally:
            for worker in workers:
                worker.kill()
            errors = [worker.communicate()[1] for worker in workers]
        assert [worker.returncode for worker in workers] == [0] * ranks, "\n".join(errors)
        return folder

    return run
