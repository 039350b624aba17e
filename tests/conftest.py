"""What tests share: the tree that they test, one thread, and a check that nothing is left behind."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
import torch._dynamo  # which DDP and some optimizers import: once here, and not in every fork
from hypothesis import settings

SOURCES = str(Path(__file__).parents[1] / "src")
# Interpreters that tests start import the package from beside the tests too, wherever another one is installed.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SOURCES, os.environ.get("PYTHONPATH")]))

# Without compiled modules, which an image may ask for, each interpreter would compile torch for itself: seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell leaves it for what it starts in the background; all that tests start would ignore Ctrl-C as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "paceline", deadline=None
)  # a busy machine is slow, and the time-out of a test is enough
settings.load_profile("paceline")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Several tests share two cores; and one thread makes sums repeatable."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def empty_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test knows whether there is a profile of the machine that it runs on."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def no_orphans() -> Iterator[None]:
    """Fail a test that leaves a process of its own behind."""
    before = {child.pid for child in descendants()}
    yield
    left = [child for child in descendants() if child.pid not in before]
    _, alive = psutil.wait_procs(left, timeout=5)
    assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE], "processes left behind"


def descendants() -> list[psutil.Process]:
    """This process's children and theirs; the kernel says at once where there are none, as before most tests."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    return psutil.Process().children(recursive=True)


SLOW = (
    "test_codecs_live",
    "test_ray",
    "test_equalities",
    "test_served_runs",
    "test_compressed_runs",
    "test_deaths",
    "test_compressed_servers",
    "test_plugins",
    "test_closed_path",
    "test_predict_codecs",
    "test_fault_soak",
    "test_engine_pair",
    "test_shm_cases",
    "test_strangers_live",
    "test_hangs",
    "test_shm_faults",
    "test_resharding",
    "test_bench_command",
    "test_predict_answers",
    "test_slurm",
    "test_two_hosts",
    "test_calibrate_command",
    "test_probe",
    "test_predict_memory",
    "test_ownership",
    "test_command_faults",
    "test_shm_room",
    "test_explain_page",
)
"""Files of more than ten seconds, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slow files: a process has a file to itself, and the other would idle behind a late one."""
    items.sort(key=lambda item: SLOW.index(item.path.stem) if item.path.stem in SLOW else len(SLOW))
