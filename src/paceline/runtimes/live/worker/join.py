"""Join a run that is under way, as one more worker."""

import json
import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch

from paceline.errors import UsageError, say_on_stderr
from paceline.records.checkpoints import Checkpoints
from paceline.records.files import DamagedFile, read_json
from paceline.records.folder import RunFolder, RunLock, check_folder_name
from paceline.records.summary import Observer, Summary
from paceline.runtimes.config import import_paths, new_identity, write_config
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.process_info import ProcessInfo, host_name
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.timeouts import KNOCK
from paceline.runtimes.live.wire.messages import RequestRank, Welcome
from paceline.runtimes.live.wire.shared_flat import SharedFlat
from paceline.runtimes.live.worker.guard import run_guarded
from paceline.runtimes.live.worker.run import WorkerRun
from paceline.runtimes.live.worker.run_folder import HeldFolder, claim
from paceline.runtimes.live.worker.server_comm import ServerClient, ServerComm
from paceline.runtimes.live.worker.start import closed_after
from paceline.runtimes.prepare import prepare
from paceline.runtimes.settings import Settings, read_exactly
from paceline.specs.source import source_files

_ENDPOINT = re.compile(r"(?:tcp://)?(?P<host>\[[^\]]+\]|[^:/\s]+):(?P<port>\d{1,5})")


class JoinAddress(NamedTuple):
    """Where a run lets workers in, the file with its secret, and where its folder is, if it was found by that."""

    endpoint: str
    secret_file: Path
    runs: Path | None = None


def join(
    run: str,
    secret_file: Path | None,
    options: LiveOptions,
    runs: Path | None,
    *,
    job: str | None,
    trust: bool,
) -> int:
    """Be one more worker of a run that is under way; the run decides all but where this one computes."""
    address = join_address(run, secret_file)
    secret, runs = Secret.read(address.secret_file), runs or address.runs or Path("runs")
    process = partial(join_run, address.endpoint, secret, options, runs, job=job, trust=trust)
    return run_guarded(ProcessInfo(role="joined", host=host_name()), process)


def join_address(run: str, secret_file: Path | None) -> JoinAddress:
    """Where the run is: ``run`` is its folder on this host, or HOST:PORT; ``secret_file`` is what the user gave."""
    if (folder := Path(run)).is_dir():
        return _address_in(RunFolder(folder), secret_file)
    if (endpoint := _endpoint(run)) is None:
        raise UsageError(f"{run} is neither a run's folder on this host nor HOST:PORT, such as node-a:5570")
    if secret_file is None:
        raise UsageError(
            f"{run} can be joined only with a secret file, a copy of the one that the run was given"
        )
    return JoinAddress(endpoint, secret_file)


def _address_in(folder: RunFolder, secret_file: Path | None) -> JoinAddress:
    try:
        document = read_json(folder.join)
        file = secret_file or Path(document["secret"])
        endpoint, known = _endpoint(document["endpoint"]), file.exists()
    except (FileNotFoundError, DamagedFile, KeyError, TypeError):
        known = False
    if not known:  # a launcher removes its secret when the run is over
        raise UsageError(
            f"{folder.path}: no run with servers is under way there; "
            "give the folder of one that still trains, or HOST:PORT with a secret file"
        )
    if endpoint is None:
        raise UsageError(
            f"{folder.path}: {folder.join} names no HOST:PORT; give HOST:PORT with a secret file"
        )
    if secret_file is None and file.stat().st_uid != os.geteuid():
        raise UsageError(
            f"{folder.path}: the secret file {file} that it names belongs to another user; "
            "give it as the secret file if you trust it"
        )
    return JoinAddress(endpoint, file, folder.path.absolute().parent)


def _endpoint(text: str) -> str | None:
    """Where a server listens, as tcp://HOST:PORT; None where the text is not HOST:PORT."""
    match = _ENDPOINT.fullmatch(text)
    if match is None or not 0 < int(match["port"]) < 65536:
        return None
    return f"tcp://{match['host']}:{match['port']}"


def join_run(
    endpoint: str,
    secret: Secret,
    options: LiveOptions,
    runs: Path,
    heartbeat: Heartbeat,
    stop_requested: Callable[[], bool],
    *,
    job: str | None = None,
    trust: bool = False,
) -> Summary:
    """Train with the others until the run ends, or until this worker is asked to stop: then it leaves alone.

    Code that the run names is executed where the user has named the same ``job``, or gives the run ``trust``.
    """
    asked = perf_counter()
    welcome = _request_rank(endpoint, secret)
    document = json.loads(welcome.document)
    settings = read_exactly(document["settings"], Settings)
    check_named(settings, job, trust=trust)
    prepared = prepare(settings)
    torch.set_num_threads(options.threads)
    name, rank = check_folder_name(document["name"]), welcome.rank
    comm = ServerComm(rank, settings.workers, name)
    device = torch.device(options.device)
    run = WorkerRun(prepared, comm, device, Observer(), heartbeat, leaving=stop_requested)
    comm.connect(secret, document["endpoints"], options.timeout)
    with ExitStack() as stack:
        stack.enter_context(closed_after(comm))
        # The run's folder on this host: its own, or one that is made for the records of workers that join.
        folder, identity = RunFolder(runs / name), new_identity(settings, run=document["run"])
        claim(folder, identity, lambda draft: write_config(draft, settings, "live", {}, identity=identity))
        locks = [stack.enter_context(RunLock.share(folder, node)) for node in folder.lock_nodes() or [0]]
        checkpoints = Checkpoints(folder, identity, settings.keep)
        held = HeldFolder(folder=folder, identity=identity, lock=locks[0], checkpoints=checkpoints)
        run.open(held, begun=document["now"] + perf_counter() - asked)
        say_on_stderr(f"joined {name} as rank {rank}; Ctrl-C leaves it")
        summary = run.train(comm.stop_agreement(say_on_stderr), start_together=False)
    ended = "left" if summary.ending == "left" else "ended with"
    say_on_stderr(f"rank {rank} {ended} {name} after {run.me.clock:,} steps")
    return summary


def check_named(settings: Settings, job: str | None, *, trust: bool) -> None:
    """Refuse to import code that the run names and the user does not; nothing of it has been executed by then."""
    if job is not None and job != settings.job.path and (trust or settings.job.path is None):
        raise UsageError(
            f"job {job} is not what the run trains, which is {settings.job.path or 'a job that ships'}; leave it out"
        )
    for path in () if trust else import_paths(settings):
        if path != job:
            files = source_files(path)
            where = f", from {files[-1]}" if files else ""
            same = f"name the same job {path}, or " if path == settings.job.path else ""
            raise UsageError(
                f"this host would import and call {path}{where}, which the run names; read it, and {same}trust the run"
            )


def _request_rank(endpoint: str, secret: Secret) -> Welcome:
    """Ask server 0 for a rank and a description of the run."""
    try:
        with ServerClient(secret, [endpoint], SharedFlat("join"), patience=KNOCK) as client:
            client.send(0, RequestRank())
            welcome: Welcome = client.wait_for(Welcome).message
    except (TimeoutError, ConnectionError):
        raise UsageError(
            f"no run answers at {endpoint.removeprefix('tcp://')} to this secret; "
            "see that it is under way and that the secret file is the run's own"
        ) from None
    return welcome
