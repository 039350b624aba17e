"""Starts the workers and servers of this host, and tells how it ended."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from paceline.runtimes.live import process_info
from paceline.runtimes.live.addresses import interface_towards
from paceline.runtimes.live.launch_folder import LaunchFolder, read_servers
from paceline.runtimes.live.launcher import processes
from paceline.runtimes.live.launcher.death_notices import DeathNotices
from paceline.runtimes.live.launcher.exit_reporter import ExitReporter
from paceline.runtimes.live.launcher.hangs import HangWatch
from paceline.runtimes.live.launcher.plan import Launch
from paceline.runtimes.live.launcher.processes import Child, Process, Start, seat_variables
from paceline.runtimes.live.launcher.rendezvous import Rendezvous
from paceline.runtimes.live.launcher.stalls import Limits
from paceline.runtimes.live.launcher.supervisor import SIGNALS, Supervisor, hearing
from paceline.runtimes.live.launcher.witness import Witness
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.threads import USUAL, VARIABLE

_COMMAND = (sys.executable, "-P", "-m", "paceline")


def train_command(argv: Sequence[str]) -> list[str]:
    """The command of one worker, from the arguments after "paceline".

    The current folder is not searched for modules: it may be a run folder, which may come from anybody.
    """
    return [*_COMMAND, *argv]


def arguments_of(command: Sequence[str]) -> Sequence[str]:
    """What comes after "paceline" in the command of one worker."""
    return command[len(_COMMAND) :]


def say_on_stderr(sentence: str) -> None:
    """Tell the user something that is not a result; whether anybody still reads it changes nothing."""
    with suppress(OSError):
        sys.stderr.write(f"paceline: {sentence}\n")
        sys.stderr.flush()


def launch(
    command: Sequence[str],
    plan: Launch,
    environ: Mapping[str, str] = os.environ,
    say: Callable[[str], None] = say_on_stderr,
    *,
    trains: bool = True,
    start: Start = processes.start,
) -> int:
    """Run ``command`` once a worker and server of this host, to the end.

    Returns 0 for done, 3 for a failed check, 130 for interrupted by a signal. A worker that fails ends them all within
    ten seconds and raises RunFailed with the root cause, or UsageError for a mistake of the user. With servers,
    only they do, and workers before the run has begun: later the others go on, until no worker is left. A process that
    stands still is named, and ended after ``plan.hang`` seconds. What workers print passes through untouched. Call it
    in the main thread. Failures of what ``trains`` are told with the step and the checkpoint that is safe.
    """
    folder = LaunchFolder.make()
    meeting = None
    try:
        secret_file = plan.secret(folder.path)
        secret = Secret.read(secret_file)
        meeting = plan.meeting(say, secret)
        with hearing(SIGNALS, signal.default_int_handler):
            meeting.gather()
            run = Run(plan, meeting, folder.path, say, trains=trains)
            given = dict(environ) | variables(plan, meeting.port, folder.path, secret_file, environ)
            return run.go(lambda environs: start(command, environs), given, secret)
    finally:
        if meeting is not None:
            meeting.leave()
        folder.remove()


def variables(
    plan: Launch, port: int, folder: Path, secret_file: Path, environ: Mapping[str, str]
) -> dict[str, str]:
    """What the environment of all processes has besides the launcher's own."""
    interface = interface_towards(plan.endpoint[0], port)
    # Gloo would look for the address of the host's own name, which may be none or not what others can reach.
    wishes = {"GLOO_SOCKET_IFNAME": interface, "TORCH_CPP_LOG_LEVEL": "ERROR", VARIABLE: str(USUAL)}
    ours = {
        process_info.FOLDER: str(folder),
        process_info.LAUNCHER: str(os.getpid()),
        process_info.SERVERS: str(plan.servers),
        process_info.OPTIONS: plan.options,
        process_info.SECRET_FILE: str(secret_file),
    }
    return ours | {name: value for name, value in wishes.items() if value and name not in environ}


class Run:
    """One launch: its processes, who watches them, and who tells the end."""

    def __init__(
        self,
        plan: Launch,
        meeting: Rendezvous,
        folder: Path,
        say: Callable[[str], None],
        *,
        trains: bool = True,
    ) -> None:
        self.plan, self.meeting, self.folder, self.say = plan, meeting, folder, say
        self.processes = [Process(role, rank) for role, rank in plan.seats]
        self.witness = Witness(plan, folder, self.processes, time.time(), lambda: self.supervisor.failed_at)
        self.reporter = ExitReporter(plan, meeting, folder, self.witness, say, trains=trains)
        hangs = HangWatch(
            self.processes,
            folder,
            Limits.of(plan.hang),
            say=say,
            tell_others=lambda sentence: meeting.bulletin.notify(sentence),
            trains=trains,
            silence=plan.silence if plan.servers else None,
        )
        self.supervisor = Supervisor(
            self.processes,
            weigh=self.reporter.weigh,
            died=self._died,
            lost_node=self._listen,
            failed_elsewhere=lambda: meeting.bulletin.told(),
            begun=self.witness.begun,
            hangs=hangs,
            over=self.witness.over,
            spares=plan.servers > 0,
        )
        self.reporter.supervisor, self.reporter.hangs = self.supervisor, hangs
        self._deaths: DeathNotices | None = None

    def go(
        self,
        start: Callable[[Sequence[Mapping[str, str]]], Iterator[Child]],
        environ: Mapping[str, str],
        secret: Secret,
    ) -> int:
        """Run to the end, and tell it; ``start`` is given each process's variables."""
        if self.plan.servers:
            self._deaths = DeathNotices(secret)
        try:
            self.supervisor.run(lambda: self._adopt(start(self._environs(environ))))
        finally:
            if self._deaths is not None:
                self._deaths.close()
        return self.reporter.tell()

    def _environs(self, environ: Mapping[str, str]) -> list[Mapping[str, str]]:
        address, port = self.meeting.address, self.meeting.port
        own = (
            seat_variables(self.plan, local_rank, address, port) for local_rank in range(len(self.processes))
        )
        return [{**environ, **variables} for variables in own]

    def _adopt(self, children: Iterator[Child]) -> None:
        for process, child in zip(self.processes, children, strict=True):
            process.child = (
                child  # each as soon as it is there, so that it is ended if the next one cannot be started
            )

    def _died(self, process: Process) -> None:
        if self._deaths is not None and process.role == "worker":
            self._deaths.tell(process.rank, self.witness.pulse(process).step, read_servers(self.folder))

    def _listen(self) -> int | None:
        """Pass on what other hosts say; a node that is lost and that the run cannot do without."""
        for sentence in self.meeting.bulletin.notices():
            self.say(sentence)
        return self.reporter.lost_node()
