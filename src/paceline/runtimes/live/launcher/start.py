"""Start the processes of this host: those of a training run, or any command's workers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module

from paceline.records.folder import RunFolder, RunLock, check_parent, check_writable
from paceline.runtimes.config import check_unfinished, read_live
from paceline.runtimes.live.launcher import processes
from paceline.runtimes.live.launcher.forking import ForkServer, may_fork
from paceline.runtimes.live.launcher.launch import arguments_of, launch, paceline_command
from paceline.runtimes.live.launcher.plan import LaunchPlan
from paceline.runtimes.live.launcher.processes import Start
from paceline.runtimes.live.request import TrainRequest
from paceline.runtimes.prepare import check_settings

_NEEDED = ("paceline.runtimes.live.worker.start",)

Main = Callable[[Sequence[str]], int]
"""Runs a command line and returns its exit code, as a new interpreter would."""


def launch_training(
    request: TrainRequest,
    plan: LaunchPlan,
    main: Main,
    arguments: Callable[[RunFolder | None], Sequence[str]],
    reshard: Callable[[RunFolder, int], RunFolder],
) -> int:
    """Find every mistake that needs no data; then start the command line as each worker and server of this host.

    ``arguments`` gives the command line for the folder that is resumed. A run of one host that resumes with another
    number of workers goes on in the folder that ``reshard`` makes.
    """
    options, folder = request.options, request.resume
    with ExitStack() as stack:
        start = stack.enter_context(starting(main, options.device))
        servers = request.servers()
        if folder:  # before anything is imported or started; the workers share it
            earlier = read_live(folder).settings.workers
            if plan.nodes == 1 and plan.workers != earlier:
                check_unfinished(folder, request.settings_for(earlier))
                folder = reshard(folder, plan.workers)
                request = replace(request, resume=folder)
            check_unfinished(folder, request.settings_for(plan.nodes * plan.workers))
            check_writable(folder)
            stack.enter_context(RunLock.own(folder, plan.node_rank))
            plan = replace(plan, resume=folder.path)
        check_settings(request.settings_for(plan.nodes * plan.workers))
        if not folder:
            check_parent(request.runs)
        plan = replace(plan, servers=servers, silence=options.silence, hang=options.hang)
        return launch(paceline_command(arguments(folder)), plan, start=start)


def launch_workers(plan: LaunchPlan, main: Main, arguments: Sequence[str]) -> int:
    """Start the command line as each worker of this host, for something else than training."""
    with starting(main) as start:
        return launch(paceline_command(arguments), plan, trains=False, start=start)


@contextmanager
def starting(main: Main, device: str = "cpu") -> Iterator[Start]:
    """How workers and servers are started: as forks of what this process is now, where that is possible.

    Enter it before the user's code is imported and before a thread starts.
    """
    if device != "cpu" or not may_fork():
        yield processes.start
        return
    with ForkServer(lambda command: main(arguments_of(command)), _preload) as server:
        yield server.start


def _preload() -> None:
    """Import what workers and servers need; nothing of this starts a thread."""
    for module in _NEEDED:
        import_module(module)
