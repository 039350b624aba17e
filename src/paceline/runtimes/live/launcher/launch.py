"""Starts the workers and servers of this host, and reports how it ended."""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from paceline.errors import say_on_stderr
from paceline.runtimes.live import process_info
from paceline.runtimes.live.addresses import interface_towards
from paceline.runtimes.live.launch_folder import LaunchFolder
from paceline.runtimes.live.launcher import processes
from paceline.runtimes.live.launcher.exit_reporter import ExitReporter
from paceline.runtimes.live.launcher.peers import DeathNotices
from paceline.runtimes.live.launcher.plan import LaunchPlan
from paceline.runtimes.live.launcher.processes import Start
from paceline.runtimes.live.launcher.rendezvous import Rendezvous
from paceline.runtimes.live.launcher.supervisor import SIGNALS, Supervisor, handling
from paceline.runtimes.live.process_info import local_servers
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.threads import USUAL, VARIABLE

_COMMAND = (sys.executable, "-P", "-m", "paceline")


def paceline_command(arguments: Sequence[str]) -> list[str]:
    """The command of one process, from the arguments after "paceline".

    The current folder is not searched for modules: it may be a run folder, which may come from anybody.
    """
    return [*_COMMAND, *arguments]


def arguments_of(command: Sequence[str]) -> Sequence[str]:
    """What comes after "paceline" in the command of one process."""
    return command[len(_COMMAND) :]


def launch(
    command: Sequence[str],
    plan: LaunchPlan,
    environ: Mapping[str, str] = os.environ,
    say: Callable[[str], None] = say_on_stderr,
    *,
    trains: bool = True,
    start: Start = processes.start,
) -> int:
    """Run ``command`` once for each worker and server of this host, to the end.

    Returns 0 for done, 3 for a failed check, 130 for interrupted by a signal. A worker that fails ends them all within
    ten seconds and raises RunFailed with the root cause, or UsageError for a mistake of the user. With servers,
    only they do, and workers before the run has begun: later the others go on, until no worker is left. A process that
    stands still is named, and ended after ``plan.hang`` seconds. What workers print passes through untouched. Call it
    in the main thread. Failures of what ``trains`` are reported with the step and the checkpoint that is safe.
    """
    folder = LaunchFolder.make()
    rendezvous: Rendezvous | None = None
    deaths: DeathNotices | None = None
    try:
        secret_file = plan.secret(folder.path)
        secret = Secret.read(secret_file)
        rendezvous = Rendezvous(plan, secret, say)
        deaths = DeathNotices(secret) if plan.servers else None
        with handling(SIGNALS, signal.default_int_handler):
            rendezvous.gather()
            supervisor = Supervisor(plan, rendezvous, folder.path, say, trains=trains, deaths=deaths)
            environs = environments(plan, rendezvous.port, folder.path, secret_file, environ)
            supervisor.run(lambda: start(command, environs))
            return ExitReporter(supervisor).exit_code()
    finally:
        if deaths is not None:
            deaths.close()
        if rendezvous is not None:
            rendezvous.leave()
        folder.remove()


def environments(
    plan: LaunchPlan, port: int, folder: Path, secret_file: Path, environ: Mapping[str, str]
) -> list[Mapping[str, str]]:
    """The environment of every process of this host, by local rank.

    Variables are as torchrun has them: ranks count node by node, servers after workers.
    """
    address = plan.endpoint[0]
    sizes = [plan.workers + len(local_servers(node, plan.nodes, plan.servers)) for node in range(plan.nodes)]
    first, here = sum(sizes[: plan.node_rank]), sizes[plan.node_rank]
    # Gloo would look for the address of the host's own name, which may be none or not what others can reach.
    wishes = {
        "GLOO_SOCKET_IFNAME": interface_towards(address, port),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        VARIABLE: str(USUAL),
    }
    shared = {
        "WORLD_SIZE": str(sum(sizes)),
        "LOCAL_WORLD_SIZE": str(here),
        "GROUP_RANK": str(plan.node_rank),
        "GROUP_WORLD_SIZE": str(plan.nodes),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        process_info.FOLDER: str(folder),
        process_info.LAUNCHER: str(os.getpid()),
        process_info.SERVERS: str(plan.servers),
        process_info.AGAIN: json.dumps(plan.settings, default=str),
        process_info.SECRET_FILE: str(secret_file),
    }
    shared |= {name: value for name, value in wishes.items() if value and name not in environ}
    return [
        {**environ, **shared, "RANK": str(first + local), "LOCAL_RANK": str(local)} for local in range(here)
    ]
