"""What one process of a training run does: it trains, it serves, or it joins a run that is under way."""

import sys
import warnings
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING

from paceline.cli.importing import spare_compiler
from paceline.cli.options import KeepOptions, RunOptions, given_options
from paceline.cli.place import WhereOptions
from paceline.cli.resuming import check_code, resumed_settings
from paceline.cli.served import ServedOptions
from paceline.errors import UsageError
from paceline.records.folder import RunFolder
from paceline.runtimes.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.runtimes.live.launcher.processes import Start
    from paceline.runtimes.live.process_info import ProcessInfo
    from paceline.runtimes.live.worker.guard import Work

_NEEDED = (
    "paceline.cli.train",
    "paceline.reports.progress",
    "paceline.reports.trace",
    "paceline.runtimes.live.server.start",
    "paceline.runtimes.live.worker.start",
)
_OWN_OF_A_JOINER = ("--device", "--threads", "--timeout", "--secret-file")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One command line."""

    options: RunOptions
    where: WhereOptions
    served: ServedOptions
    keep: KeepOptions
    resume: RunFolder | None
    trust: bool = False

    def settings(self, workers: int) -> Settings:
        """The run's settings, for so many workers."""
        if self.resume is None:
            return self.options.settings(workers)
        return resumed_settings(self.options, workers, self.resume, trust=self.trust)

    def servers(self) -> int:
        """How many servers the run has."""
        from paceline.runtimes.config import read_live
        from paceline.runtimes.prepare import server_count
        from paceline.strategies import build_strategy

        # What is asked of single ranks can be read only when it is known how many train, and that depends on this.
        anybody = replace(self.options, batch_size=None, slow=None, slow_turns=None)
        if self.resume:
            config = read_live(self.resume)
            check_code(config, self.resume, trust=self.trust)
        settings = config.settings if self.resume else anybody.settings(1)
        strategy = build_strategy(settings.strategy)
        servers = server_count(settings, strategy)
        if servers and self.where.backend is not None:
            raise UsageError(
                f"--backend {self.where.backend} has no place beside strategy {settings.strategy!r}, whose workers "
                "talk to servers over connections of their own; leave it out"
            )
        return servers


@contextmanager
def starting(device: str = "cpu") -> "Iterator[Start]":
    """How this command starts its workers and servers: as forks of what this process is now, where that is possible.

    Enter it before the user's code is imported and before a thread starts.
    """
    from paceline.cli.main import main
    from paceline.runtimes.live.launcher import processes
    from paceline.runtimes.live.launcher.forking import ForkServer, may_fork
    from paceline.runtimes.live.launcher.launch import arguments_of

    if device != "cpu" or not may_fork():
        yield processes.start
        return

    def run(command: "Sequence[str]") -> int:
        sys.argv[1:] = arguments_of(command)
        return main()

    with ForkServer(run, _preload) as server:
        yield server.start


def _preload() -> None:
    """Import what workers and servers need; nothing of this starts a thread."""
    for module in _NEEDED:
        import_module(module)


def work(asked: Asked, place: "ProcessInfo") -> int:
    """Be one worker or server, to the end."""
    from paceline.runtimes.live.worker.guard import run_guarded

    spare_compiler()
    if place.rank > 0 and not sys.warnoptions:  # all run the same code: what torch warns of is shown once
        warnings.simplefilter("ignore")
    if place.launch is None:
        place = asked.where.under_launcher(place.with_servers(asked.servers()))
    return run_guarded(place, (_serving if place.role == "server" else _training)(asked, place))


def _training(asked: Asked, place: "ProcessInfo") -> "Work":
    """A worker's work."""
    from paceline.records.observer import Observer
    from paceline.records.summary import Summary
    from paceline.reports.progress import Tee
    from paceline.reports.trace import write_trace
    from paceline.runtimes.live.heartbeat import Heartbeat
    from paceline.runtimes.live.signals import StopRequest
    from paceline.runtimes.live.task import ProcessTask
    from paceline.runtimes.live.worker.start import run_worker

    class _Told(Observer):
        """Whether this process was told of the run's end."""

        last = False

        def finished(self, summary: Summary) -> None:  # noqa: ARG002
            """It was."""
            self.last = True

    keep, resume = asked.keep, asked.resume

    def process(heartbeat: Heartbeat, stopping: StopRequest) -> Summary:
        settings = asked.settings(place.workers)
        told = _Told()
        with closing(Tee([told, *keep.observers(settings, "wall")])) as observer:
            summary = run_worker(
                ProcessTask(
                    settings=settings,
                    options=asked.where.live(resume),
                    place=place,
                    runs=keep.parent,
                    heartbeat=heartbeat,
                    stop_requested=stopping,
                    before_hard_end=stopping.before_hard_end,
                    resume=resume,
                    name=keep.name or "",
                ),
                observer,
            )
            heartbeat.enter("finishing")
        if told.last:  # by the worker that spoke for all
            write_trace(resume or RunFolder(keep.parent / summary.name))
        return replace(summary, ending="missed") if summary.missed else summary

    return process


def _serving(asked: Asked, place: "ProcessInfo") -> "Work":
    """A server's work."""
    from paceline.errors import say_on_stderr
    from paceline.runtimes.live.heartbeat import Heartbeat
    from paceline.runtimes.live.server.start import run_server
    from paceline.runtimes.live.signals import StopRequest
    from paceline.runtimes.live.task import ProcessTask
    from paceline.runtimes.live.worker.guard import HasEnding

    def process(heartbeat: Heartbeat, stopping: StopRequest) -> HasEnding:
        return run_server(
            ProcessTask(
                settings=asked.settings(place.workers),
                options=asked.where.live(asked.resume),
                place=place,
                runs=asked.keep.parent,
                heartbeat=heartbeat,
                stop_requested=stopping,
                before_hard_end=stopping.before_hard_end,
                resume=asked.resume,
                name=asked.keep.name or "",
            ),
            say_on_stderr,
        )

    return process


def join(asked: Asked) -> int:
    """Be one more worker of a run that is under way; the run decides all but where this one computes."""
    from paceline.runtimes.live.heartbeat import Heartbeat
    from paceline.runtimes.live.process_info import ProcessInfo, host_name
    from paceline.runtimes.live.secret import Secret
    from paceline.runtimes.live.signals import StopRequest
    from paceline.runtimes.live.worker.guard import HasEnding, run_guarded

    spare_compiler()
    _refuse_beside_join(asked)
    door = asked.served.door(asked.where.secret_file)
    secret = Secret.read(door.secret_file)
    live = asked.where.live(None)
    runs = asked.keep.runs or door.runs or asked.keep.parent

    def process(heartbeat: Heartbeat, stopping: StopRequest) -> HasEnding:
        from paceline.errors import say_on_stderr
        from paceline.runtimes.live.worker.start import join_run

        return join_run(
            door.endpoint,
            secret,
            live,
            runs,
            heartbeat=heartbeat,
            stop_requested=stopping,
            say=say_on_stderr,
            job=asked.options.job,
            trust=asked.trust,
        )

    return run_guarded(ProcessInfo(role="joined", host=host_name()), process)


def _refuse_beside_join(asked: Asked) -> None:
    keep = asked.keep
    kept = {
        "--resume": asked.resume,
        "--name": keep.name,
        "--json": keep.as_json,
        "--tensorboard": keep.tensorboard,
    }
    given = [option for option in given_options(asked.where) if option not in _OWN_OF_A_JOINER]
    given += [option for option, value in kept.items() if value]
    given += [option for option in given_options(asked.options) if option != "--job"]
    for option in given:
        raise UsageError(
            f"{option} has no place beside --join {asked.served.join}: the run that is joined decides it; leave it out"
        )
