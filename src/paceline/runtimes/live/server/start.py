"""Start one server of a run: connect to the workers, restore the shard, and serve to the end."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from paceline.records.checkpoints import Checkpoints
from paceline.records.files import to_document, write_json
from paceline.records.folder import RunFolder, check_folder_name
from paceline.records.lock import RunLock
from paceline.records.tensors import RunIdentity
from paceline.runtimes.config import new_identity
from paceline.runtimes.live.addresses import own_address
from paceline.runtimes.live.request import ProcessTask, check_equal
from paceline.runtimes.live.run_store import MemberStore
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.server.run import ServerRecords, ServerRun
from paceline.runtimes.live.server.server_socket import ServerSocket
from paceline.runtimes.live.worker.run_folder import check_owner, claim
from paceline.runtimes.live.worker.server_comm import RUN, server_key
from paceline.runtimes.prepare import prepare
from paceline.runtimes.replica import ParameterShard
from paceline.strategies.base import Server


@dataclass(frozen=True)
class ServerEnding:
    """How a server ended: "budget" or "abandoned"; a failure is an exception."""

    ending: str


def run_server(task: ProcessTask, say: Callable[[str], None] = lambda _: None) -> ServerEnding:
    """Keep one shard of the parameters until all workers have left; server 0 reports with ``say``."""
    place, options, settings = task.info, task.options, task.settings
    prepared = prepare(settings)
    torch.set_num_threads(options.threads)
    shard = ParameterShard(prepared.job, place.rank, place.servers, settings.seed, torch.device("cpu"))
    store = MemberStore(place, timedelta(seconds=options.timeout))
    host = own_address(place.address, place.port) or place.address
    with (
        ServerSocket(store.secret, host, shard.params, place.rank, place.servers) as socket,
        ExitStack() as stack,
    ):
        run, endpoints = _introduce(store, socket, task)
        check_equal([run["asked"], task.asked()])
        folder, identity = _find_folder(task, run)
        task.heartbeat.show(folder.path)
        lock = stack.enter_context(RunLock.share(folder, place.node_rank))
        me = Server(place.rank, place.servers, shard.params, shard.grad)
        me.initial_workers = tuple(range(place.workers))
        checkpoints = Checkpoints(folder, identity, settings.keep, "server")
        records = stack.enter_context(
            ServerRecords.opened(folder, checkpoints, lock, shard, me, run["step"], say)
        )
        task.before_hard_end(records.log.flush)
        if place.rank == 0:
            stack.enter_context(invitation(folder, socket.endpoint, store.secret, place.secret_file))
        described = {
            "settings": to_document(settings),
            "name": run["name"],
            "run": identity.run,
            "endpoints": endpoints,
        }
        hosts = {worker["rank"]: worker["host"] for worker in run["workers"]}
        server = ServerRun(task, prepared, me, shard, socket, records, described, run["begun"], hosts, say)
        ending = server.serve()
        task.heartbeat.enter("finishing")
        lock.check()
        return ServerEnding(ending)


def _find_folder(task: ProcessTask, run: dict[str, Any]) -> tuple[RunFolder, RunIdentity]:
    """The folder that the workers of this host have made; where it has none, this server makes it."""
    if task.resume and task.resumed:
        check_owner(task.resume, task.resumed)
        return task.resume, task.resumed
    folder = RunFolder(task.runs / check_folder_name(run["name"]))
    identity = new_identity(task.settings, run=run["run"])
    claim(folder, identity, lambda draft: task.describe(draft, identity, run["workers"]))
    return folder, identity


def _saved_steps(task: ProcessTask) -> dict[str, Any]:
    """The steps that this server could resume from, and why it cannot from others."""
    if task.resume is None or task.resumed is None:
        return {"whole": [], "refused": []}
    checkpoints = Checkpoints(task.resume, task.resumed, 1, "server")
    whole, refused = checkpoints.valid_steps(task.info.rank)
    return {"whole": whole, "refused": refused}


def _introduce(
    store: MemberStore, socket: ServerSocket, task: ProcessTask
) -> tuple[dict[str, Any], list[str]]:
    """Describe this server to the others; return the description of the run, and all servers' endpoints."""
    place = task.info
    store.set(server_key(place.rank), json.dumps({"endpoint": socket.endpoint, **_saved_steps(task)}))
    run: dict[str, Any] = json.loads(store.get(RUN))
    servers = [json.loads(text) for text in store.read([server_key(rank) for rank in range(place.servers)])]
    return run, [server["endpoint"] for server in servers]


@contextmanager
def invitation(folder: RunFolder, endpoint: str, secret: Secret, file: Path | None) -> Iterator[None]:
    """While the run trains, its folder says how to join it, and which file holds the secret.

    A secret file that the user has is only named. A secret that the processes made among themselves is written into
    the folder, readable by this user alone.
    """
    folder.join_secret.unlink(missing_ok=True)  # of a server that was killed
    if file is None:
        file = folder.join_secret
        secret.write(file)
    write_json(folder.join, {"endpoint": endpoint, "secret": str(file.absolute())})
    try:
        yield
    finally:
        folder.join.unlink(missing_ok=True)
        folder.join_secret.unlink(missing_ok=True)
