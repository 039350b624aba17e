"""Where workers run: the options that training and benchmarks share, and how a command becomes its workers."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from paceline.cli.options import WHERE, whole
from paceline.errors import UsageError
from paceline.records.folder import RunFolder

if TYPE_CHECKING:
    from paceline.runtimes.live.heartbeat import Heartbeat
    from paceline.runtimes.live.launcher.plan import LaunchPlan
    from paceline.runtimes.live.options import LiveOptions
    from paceline.runtimes.live.process_info import ProcessInfo
    from paceline.runtimes.live.signals import StopRequest
    from paceline.runtimes.live.worker.guard import HasEnding

WorkerTask = Callable[["ProcessInfo", "Heartbeat", "StopRequest"], "HasEnding"]


@Parameter(name="*")
@dataclass(kw_only=True)
class PlaceOptions:
    """None means that an option was not given."""

    workers: Annotated[int | None, Parameter(converter=whole, name=["--workers", "-np"], group=WHERE)] = None
    """Worker processes on this host (default 2)."""
    nodes: Annotated[int | None, Parameter(converter=whole, name=["--nodes", "-n"], group=WHERE)] = None
    """Hosts that take part (default 1); start the command on each."""
    node_rank: Annotated[int | None, Parameter(converter=whole, name=["--node-rank", "-nr"], group=WHERE)] = (
        None
    )
    """Which of the hosts this is, from 0."""
    address: Annotated[str | None, Parameter(name=["--address", "-a"], group=WHERE)] = None
    """The host of node rank 0, as the others reach it."""
    port: Annotated[int | None, Parameter(converter=whole, name=["--port", "-p"], group=WHERE)] = None
    """A free port on that host (default 29500)."""
    secret_file: Annotated[Path | None, Parameter(group=WHERE)] = None
    """What only the run's processes know, the same file on every host (made for you on one host)."""

    def plan(self, workers: int) -> "LaunchPlan":
        """The launch of so many workers on this host."""
        from paceline.runtimes.live.launcher.plan import LaunchPlan

        return LaunchPlan(
            nodes=1 if self.nodes is None else self.nodes,
            workers=workers,
            address=self.address,
            port=self.port,
            node_rank=self.node_rank or 0,
            secret_file=self._checked_secret(),
        )

    def _checked_secret(self, *, warn: bool = True) -> Path | None:
        """Refuse a file that holds no secret; say that others can read it, where they can and this is asked for."""
        from paceline.runtimes.live.secret import Secret

        if self.secret_file is not None:
            Secret.read(self.secret_file)
            if warn and self.secret_file.stat().st_mode & 0o077:
                sys.stderr.write(
                    f"paceline: other users of this host can read {self.secret_file} and so join the run; "
                    f"'chmod 600 {self.secret_file}' shuts them out\n"
                )
        return self.secret_file

    def under_launcher(self, info: "ProcessInfo") -> "ProcessInfo":
        """A process that another launcher started, with the secret that the user gave."""
        from paceline.runtimes.live.secret import NEEDED

        self.refuse(info)
        first = info.role == "worker" and info.local_rank == 0  # one warning a host
        if (secret_file := self._checked_secret(warn=first)) is not None:
            return replace(info, secret_file=secret_file.absolute())
        if info.nodes > 1:
            raise UsageError(f"a run on {info.nodes} hosts {NEEDED}")
        return info

    def refuse(self, info: "ProcessInfo") -> None:
        """Under a launcher the launcher decides; saying it twice must not say two things."""
        decided = {
            "--nodes": self.nodes,
            "--node-rank": self.node_rank,
            "--address": self.address,
            "--port": self.port,
        }
        for option, given in decided.items():
            if given is not None:
                raise UsageError(
                    f"{option} {given} contradicts the launcher, which set RANK={info.rank}; "
                    "leave the option out, or unset RANK"
                )
        if info.role == "worker" and self.workers is not None and self.workers != info.local_workers:
            raise UsageError(
                f"--workers {self.workers} differs from the {info.local_workers} that the launcher started "
                "on this host; leave the option out"
            )


@Parameter(name="*")
@dataclass(kw_only=True)
class WhereOptions(PlaceOptions):
    """None means that an option was not given."""

    device: Annotated[Literal["cpu", "cuda"] | None, Parameter(group=WHERE)] = None
    """What computes (default cpu)."""
    backend: Annotated[str | None, Parameter(group=WHERE)] = None
    """What workers talk over: shm, gloo or nccl (default shm on one host, nccl on cuda, gloo across or by schedule)."""
    threads: Annotated[int | None, Parameter(converter=whole, group=WHERE)] = None
    """Threads a worker computes with (default 1, or as OMP_NUM_THREADS says), however many workers there are."""
    timeout: Annotated[float | None, Parameter(group=WHERE)] = None
    """Seconds that a worker waits in an exchange before it gives the others up (default 300)."""
    hang_timeout: Annotated[float | None, Parameter(group=WHERE)] = None
    """Seconds that a process may stand still before it is ended (default 120); it is named after about 8."""
    silence: Annotated[float | None, Parameter(group=WHERE)] = None
    """Seconds without a sign of life after which a worker of a server, or a host, counts as lost (default 20)."""
    join: Annotated[str | None, Parameter(group=WHERE)] = None
    """Be one more worker of a run with servers: its folder on this host, or HOST:PORT with --secret-file."""

    def refuse(self, info: "ProcessInfo") -> None:
        """Another launcher than ours watches neither progress nor, without servers, signs of life."""
        super().refuse(info)
        watched = {"--hang-timeout": self.hang_timeout, "--silence": None if info.servers else self.silence}
        for option, given in watched.items():
            if given is not None:
                raise UsageError(
                    f"{option} {given:g} has no effect under the launcher that set RANK={info.rank}, which does "
                    "not watch for it; leave the option out, or unset RANK to start with 'paceline train'"
                )

    def live(self, resume: RunFolder | None) -> "LiveOptions":
        """The machinery under the workers: as asked for, else as an earlier run had it, else as usual."""
        from paceline.runtimes.config import read_live
        from paceline.runtimes.live.options import LiveOptions

        known = read_live(resume).machinery if resume else {}
        for name in ("device", "backend", "threads", "timeout", "hang_timeout", "silence"):
            if (given := getattr(self, name)) is not None:
                known[name] = given
        return LiveOptions(**known)


def rerun(arguments: Sequence[str]) -> int:
    """Run a command line in this process, which is a fork, as a new interpreter would."""
    from paceline.cli.main import main

    sys.argv[1:] = arguments
    return main()


def run_workers(where: PlaceOptions, workers: int, task: WorkerTask) -> int:
    """Be one worker where a launcher has set its variables, else start ``workers`` on this host."""
    from paceline.runtimes.live.process_info import ProcessInfo

    info = ProcessInfo.from_environment()
    return start_workers(where, workers) if info is None else be_worker(where, info, task)


def start_workers(where: PlaceOptions, workers: int) -> int:
    from paceline.runtimes.live.launcher.start import launch_workers
    from paceline.studies.collectives.request import check_workers

    check_workers(workers * max(where.nodes or 1, 1))
    return launch_workers(where.plan(workers), rerun, sys.argv[1:])


def be_worker(where: PlaceOptions, info: "ProcessInfo", task: WorkerTask) -> int:
    from paceline.runtimes.live.worker.guard import run_guarded

    if info.launch is None:
        info = where.under_launcher(info)
    return run_guarded(info, partial(task, info))
