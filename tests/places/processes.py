"""Two processes as torchrun starts them, and the end of those that are nobody's children."""

from contextlib import suppress
from pathlib import Path

import psutil

from command import start_python
from ports import free_ports

EXAMPLES = Path(__file__).parents[2] / "examples" / "places"


def run_ranks(script: str, cwd: Path) -> str:
    """What two ranks of an example write to stdout; both must end well."""
    port = str(free_ports(1)[0])
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        start_python(
            str(EXAMPLES / script),
            cwd=cwd,
            env={**common, "RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"},
        )
        for rank in "01"
    ]
    try:
        done = [one.communicate(timeout=100) for one in ranks]
    finally:
        for one in ranks:
            one.kill()
    assert [one.returncode for one in ranks] == [0, 0], done
    return "".join(out for out, _ in done)


def end_all(variable: str, value: str) -> None:
    """End what was started with a variable of this value in its environment, each by its id."""
    left = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(variable) == value:
                left.append(process)
                process.kill()
    psutil.wait_procs(left, timeout=5)
