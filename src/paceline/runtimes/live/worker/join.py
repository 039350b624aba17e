"""One more worker for a run that is under way."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from paceline.errors import UsageError
from paceline.jobs.sources import source_files
from paceline.records.folder import RunFolder, check_folder_name
from paceline.records.lock import RunLock
from paceline.records.observer import Observer
from paceline.records.summary import Summary
from paceline.runtimes.config import new_identity, write_config
from paceline.runtimes.live.launcher.launch import say_on_stderr
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.server.run import Heart
from paceline.runtimes.live.timeouts import KNOCK
from paceline.runtimes.live.wire.messages import Hello, Welcome
from paceline.runtimes.live.wire.shared_flat import SharedFlat
from paceline.runtimes.live.worker.run_folder import Home, claim
from paceline.runtimes.live.worker.served import ServedWorkerRun
from paceline.runtimes.live.worker.server_client import ServerClient
from paceline.runtimes.live.worker.server_comm import ServedGroup
from paceline.runtimes.live.worker.stopping import ByServers
from paceline.runtimes.prepare import prepare
from paceline.runtimes.settings import Settings


def join_run(
    endpoint: str,
    secret: Secret,
    options: LiveOptions,
    runs: Path,
    *,
    heartbeat: Heart,
    stop_requested: Callable[[], bool],
    job: str | None = None,
    trust: bool = False,
    say: Callable[[str], None] = say_on_stderr,
) -> Summary:
    """Train with the others until the run ends, or until this worker is asked to stop: then it leaves alone.

    Code that the run names is run where the user has named the same ``job``, or gives the run ``trust``.
    """
    asked = perf_counter()
    welcome = _knock(endpoint, secret)
    run = json.loads(welcome.document)
    settings = Settings.from_json(run["settings"])
    check_named(settings.job.path, job, trust=trust)
    prepared = prepare(settings)
    torch.set_num_threads(options.threads)
    group = ServedGroup(welcome.rank, settings.workers, SharedFlat(run["name"]))
    device = torch.device(options.device)
    life = JoinedWorkerRun(prepared, group, device, Observer(), heartbeat)
    line = ServerClient.enter(secret, run["endpoints"], group.memory, welcome.rank, patience=options.timeout)
    group.connect(line)
    with ExitStack() as stack:
        try:
            life.home, life.leaving = _home(runs, run, settings, stack), stop_requested
            heartbeat.show(life.folder.path)
            life.begun = run["now"] + perf_counter() - asked
            say(f"joined {run['name']} as rank {welcome.rank}; Ctrl-C leaves it")
            summary = life.live(ByServers(line, say), lambda _: None, None)
        except BaseException:
            group.abandon()
            raise
    say(f"rank {welcome.rank} {_ended(summary)} {run['name']} after {life.me.clock:,} steps")
    return summary


def check_named(path: str | None, job: str | None, *, trust: bool) -> None:
    """Refuse to import code that the run names and the user does not; nothing of it has been run by then."""
    if path is None or trust:
        if job is not None and job != path:
            raise UsageError(
                f"--job {job} is not what the run trains, which is {path or 'a job that ships'}; leave it out"
            )
        return
    if job != path:
        files = source_files(path)
        where = f", from {files[-1]}" if files else ""
        raise UsageError(
            f"the run would have this host import and call {path}{where}; read it, and give --job {path} or --trust"
        )


def _home(runs: Path, run: dict[str, Any], settings: Settings, stack: ExitStack) -> Home:
    """The run's folder on this host: its own, or one that is made for the records of those who join."""
    folder = RunFolder(runs / check_folder_name(run["name"]))
    identity = new_identity(settings, run=run["run"])
    claim(folder, identity, lambda draft: write_config(draft, settings, "live", {}, identity=identity))
    locks = [stack.enter_context(RunLock.share(folder, node)) for node in folder.lock_nodes() or [0]]
    return Home(folder=folder, identity=identity, lock=locks[0])


class JoinedWorkerRun(ServedWorkerRun):
    """A worker that was not there when the others lined up."""

    def line_up(self) -> None:
        """Its clock starts where the run's stands."""
        self.me.now = self.begun


def _knock(endpoint: str, secret: Secret) -> Welcome:
    """Ask server 0 for a rank, and what is run."""
    try:
        with ServerClient(secret, [endpoint], SharedFlat("join"), patience=KNOCK) as line:
            line.send(0, Hello(-1))
            welcome = line.wait_for(Welcome).message
    except (TimeoutError, ConnectionError):
        raise UsageError(
            f"no run answers at {endpoint.removeprefix('tcp://')} to this secret; "
            "see that it is under way and that --secret-file is the run's own"
        ) from None
    assert isinstance(welcome, Welcome)
    return welcome


def _ended(summary: Summary) -> str:
    return "left" if summary.ending == "left" else "ended with"
