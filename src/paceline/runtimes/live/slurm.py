"""What Slurm tells the tasks of a step, in torchrun's variables."""

import re
from collections.abc import Mapping

from paceline.errors import UsageError
from paceline.runtimes.live.addresses import LOOPBACK

_FIRST_PORT, _PORTS = 20_000, 12_000
"""Below the ports that Linux gives to connections."""


def slurm_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of torchrun for one of several tasks that srun has started together; none for any other process.

    A batch script, an interactive shell and a task of its own have none: what they start are not tasks of one step.
    The user's own MASTER_ADDR and MASTER_PORT count; without them rank 0 is reached at the first node of the step, at a
    port that follows from the numbers of job and step.
    """
    if "SLURM_PROCID" not in environ or environ.get("SLURM_STEP_NUM_TASKS", "1") == "1":
        return {}
    step = _Step(environ)
    node, nodes = step.number("NODEID"), step.number("STEP_NUM_NODES")
    first = LOOPBACK if nodes == 1 else first_node(step.text("STEP_NODELIST"))
    port = _FIRST_PORT + (61 * step.number("JOB_ID") + step.number("STEP_ID")) % _PORTS
    return {
        "RANK": step.text("PROCID"),
        "WORLD_SIZE": step.text("STEP_NUM_TASKS"),
        "LOCAL_RANK": step.text("LOCALID"),
        "LOCAL_WORLD_SIZE": str(step.tasks_of(node)),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
        "MASTER_ADDR": environ.get("MASTER_ADDR") or first,
        "MASTER_PORT": environ.get("MASTER_PORT") or str(port),
    }


def first_node(nodelist: str) -> str:
    """The first name that a list such as ``gpu[03-05,9]-ib,login`` stands for."""
    names = re.match(r"(?:[^,\[]|\[[^]]*\])*", nodelist)
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", names[0] if names else "")


def tasks_per_node(text: str) -> list[int]:
    """How many tasks each node has, of which Slurm says ``2(x3),1``."""
    runs = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, times in runs for _ in range(int(times or 1))]


class _Step:
    """A step's variables; each that is missing or no number is named."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def text(self, name: str) -> str:
        if not (value := self._environ.get(f"SLURM_{name}")):
            raise UsageError(
                f"SLURM_STEP_NUM_TASKS is set and SLURM_{name} is not: start the tasks with srun, or unset SLURM_PROCID"
            )
        return value

    def number(self, name: str) -> int:
        value = self.text(name)
        if not value.isdecimal():
            raise UsageError(f"SLURM_{name}={value} is not a number: start the tasks with srun")
        return int(value)

    def tasks_of(self, node: int) -> int:
        tasks = tasks_per_node(text := self.text("STEP_TASKS_PER_NODE"))
        if node >= len(tasks):
            raise UsageError(
                f"SLURM_STEP_TASKS_PER_NODE={text} says nothing of node {node}, where this task is: start the tasks "
                "with srun"
            )
        return tasks[node]
