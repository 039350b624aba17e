"""Start the workers and servers of this host, and report how it ended: of a training run, or of any command."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from paceline.errors import say_on_stderr
from paceline.records.folder import RunLock, check_parent, check_writable
from paceline.runtimes.config import check_unfinished, read_live
from paceline.runtimes.live.addresses import interface_towards
from paceline.runtimes.live.launch_folder import LaunchFolder
from paceline.runtimes.live.launcher import processes
from paceline.runtimes.live.launcher.forking import ForkServer, may_fork
from paceline.runtimes.live.launcher.peers import LauncherGroup
from paceline.runtimes.live.launcher.processes import LaunchPlan, Start
from paceline.runtimes.live.launcher.resharding import reshard
from paceline.runtimes.live.launcher.supervisor import SIGNALS, ExitReporter, Supervisor, handling
from paceline.runtimes.live.request import TrainRequest
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.prepare import check_settings
from paceline.runtimes.threads import USUAL
from paceline.runtimes.threads import VARIABLE as OMP_NUM_THREADS

# The current folder is not searched for modules: it may be a run folder of unknown origin.
_COMMAND = (sys.executable, "-P", "-m", "paceline")

Main = Callable[[Sequence[str]], int]


def paceline_command(arguments: Sequence[str]) -> list[str]:
    return [*_COMMAND, *arguments]


def launch_training(request: TrainRequest, plan: LaunchPlan, main: Main, arguments: Sequence[str]) -> int:
    """Find every mistake that needs no data; then start the command as each worker and server of this host."""
    with ExitStack() as stack:
        start = stack.enter_context(starting(main, request.options.device))
        servers, workers = request.servers(), plan.nodes * plan.workers
        if request.resume:  # before anything is imported or started; the workers share it
            earlier = read_live(request.resume).settings.workers
            if plan.nodes == 1 and workers != earlier:
                check_unfinished(request.resume, request.settings(earlier))
                made = reshard(request.resume, workers, trust=request.trust)
                request = replace(request, resume=made)
            assert request.resume is not None
            check_unfinished(request.resume, request.settings(workers))
            check_writable(request.resume)
            stack.enter_context(RunLock.own(request.resume, plan.node_rank))
            plan = replace(plan, resume=request.resume.path, again=request.repeated())
        check_settings(request.settings(workers))
        if not request.resume:
            check_parent(request.runs)
        plan = replace(plan, servers=servers, silence=request.options.silence, hang=request.options.hang)
        return launch(paceline_command(arguments), plan, start=start)


def launch_workers(plan: LaunchPlan, main: Main, arguments: Sequence[str]) -> int:
    with starting(main) as start:
        return launch(paceline_command(arguments), replace(plan, kind="measurement"), start=start)


@contextmanager
def starting(
    main: Main, device: str = "cpu", needed: str = "paceline.runtimes.live.worker.start"
) -> Iterator[Start]:
    """How processes are started: as forks of this one, where possible; enter it before user code and threads.

    ``needed`` is a module that all of them import.
    """
    if device != "cpu" or not may_fork():
        yield processes.start
        return

    def preload() -> None:  # nothing of this starts a thread
        import_module(needed)

    with ForkServer(lambda command: main(command[len(_COMMAND) :]), preload) as server:
        yield server.start


def launch(
    command: Sequence[str],
    plan: LaunchPlan,
    say: Callable[[str], None] = say_on_stderr,
    *,
    start: Start = processes.start,
) -> int:
    """Run ``command`` once for each worker and server of this host, to the end; call it in the main thread.

    Returns 0 for done, 3 for a failed check, 130 for interrupted by a signal. A worker that fails ends them all within
    ten seconds and raises RunFailed with the root cause, or UsageError for a mistake of the user. With servers,
    only they do, and workers before the run has begun: later the others go on, until no worker is left.
    """
    folder = LaunchFolder.make()
    with ExitStack() as stack:
        stack.callback(folder.remove)
        secret_file = folder.path / "secret" if plan.secret_file is None else plan.secret_file.absolute()
        if plan.secret_file is None:
            Secret.new().write(secret_file)
        secret = Secret.read(secret_file)
        peers = LauncherGroup(plan, secret, say)
        stack.callback(peers.leave)
        with handling(SIGNALS, signal.default_int_handler):
            peers.gather()
            supervisor = Supervisor(plan, peers, folder.path, say)
            environs = environments(
                plan, peers.port, folder.path, secret_file, os.environ, free_port=peers.free_port
            )
            supervisor.run(lambda: start(command, environs))
            return ExitReporter(supervisor).exit_code()


def environments(
    plan: LaunchPlan,
    port: int,
    folder: Path,
    secret_file: Path,
    environ: Mapping[str, str],
    *,
    free_port: int = 0,
) -> list[dict[str, str]]:
    # Gloo would look for the address of the host's own name, which may be none or not what others can reach.
    wishes = {
        "GLOO_SOCKET_IFNAME": interface_towards(plan.endpoint[0], port),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        OMP_NUM_THREADS: str(USUAL),
    }
    shared = {name: value for name, value in wishes.items() if value and name not in environ}
    variables = plan.variables(folder, port, secret_file, free_port)
    return [{**environ, **shared, **own} for own in variables]
