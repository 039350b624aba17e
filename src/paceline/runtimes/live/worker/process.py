"""What one process of a training run does: it trains, it serves, or it joins a run that is under way."""

import os
import re
import sys
import warnings
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from paceline.errors import UsageError, say_on_stderr
from paceline.records.files import DamagedFile, read_json
from paceline.records.folder import RunFolder
from paceline.records.summary import Summary
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.process_info import ProcessInfo, host_name
from paceline.runtimes.live.request import TrainRequest
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.server.start import ServerEnding, run_server
from paceline.runtimes.live.signals import StopRequest
from paceline.runtimes.live.worker.guard import run_guarded
from paceline.runtimes.live.worker.start import join_run, run_worker

_ENDPOINT = re.compile(r"(?:tcp://)?(?P<host>\[[^\]]+\]|[^:/\s]+):(?P<port>\d{1,5})")


def run_process(request: TrainRequest, info: ProcessInfo) -> int:
    """Be one worker or server, to the end; the exit code."""
    if info.rank > 0 and not sys.warnoptions:  # all run the same code: what torch warns of is shown once
        warnings.simplefilter("ignore")

    def train(heartbeat: Heartbeat, stopping: StopRequest) -> Summary:
        task = request.task(info, heartbeat, stopping)
        with closing(request.observe(task.settings)) as observer:
            summary = run_worker(task, observer)
            heartbeat.enter("finishing")
        return replace(summary, ending="missed") if summary.missed else summary

    def serve(heartbeat: Heartbeat, stopping: StopRequest) -> ServerEnding:
        return run_server(request.task(info, heartbeat, stopping), say_on_stderr)

    return run_guarded(info, serve if info.role == "server" else train)


class JoinAddress(NamedTuple):
    """Where a run lets workers in, and the file with what they must know."""

    endpoint: str
    secret_file: Path
    runs: Path | None = None
    """Where its folder is, if it was found by that."""


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
    secret = Secret.read(address.secret_file)

    def process(heartbeat: Heartbeat, stopping: StopRequest) -> Summary:
        return join_run(
            address.endpoint,
            secret,
            options,
            runs or address.runs or Path("runs"),
            heartbeat=heartbeat,
            stop_requested=stopping,
            say=say_on_stderr,
            job=job,
            trust=trust,
        )

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
