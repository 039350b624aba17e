"""Start one server of a run: connect to the workers, restore the shard, and serve to the end."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from paceline.records.checkpoints import Checkpoints
from paceline.records.files import to_document, write_json
from paceline.records.folder import RunFolder, RunLock, check_folder_name
from paceline.records.tensors import RunIdentity
from paceline.runtimes.config import new_identity
from paceline.runtimes.live.addresses import own_address
from paceline.runtimes.live.request import ProcessTask
from paceline.runtimes.live.run_store import MemberStore, check_equal
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.server.run import ServerRecords, ServerRun
from paceline.runtimes.live.server.server_socket import ServerSocket
from paceline.runtimes.live.worker.run_folder import check_owner, claim
from paceline.runtimes.live.worker.server_comm import RUN, server_key
from paceline.runtimes.prepare import prepare
from paceline.runtimes.replica import ParameterShard
from paceline.strategies.base import Server


def run_server(task: ProcessTask, say: Callable[[str], None] = lambda _: None) -> ServerRun:
    info, options, settings = task.info, task.options, task.settings
    prepared = prepare(settings)
    torch.set_num_threads(options.threads)
    shard = ParameterShard(prepared.job, info.rank, info.servers, settings.seed, torch.device("cpu"))
    store = MemberStore(info, timedelta(seconds=options.timeout))
    host = own_address(info.address, info.port) or info.address
    with (
        ServerSocket(store.secret, host, shard.params, info.rank, info.servers) as socket,
        ExitStack() as stack,
    ):
        run = _introduce(store, socket.endpoint, task)
        check_equal([run["asked"], task.asked()])
        folder, identity = _find_folder(task, run)
        task.heartbeat.show(folder.path)
        lock = stack.enter_context(RunLock.share(folder, info.node_rank))
        me = Server(info.rank, info.servers, shard.params, shard.grad)
        me.initial_workers = tuple(range(info.workers))
        checkpoints = Checkpoints(folder, identity, settings.keep, "server")
        records = ServerRecords(checkpoints, lock, me, shard, run["step"], say)
        stack.enter_context(records.log)
        task.before_hard_end(records.log.flush)
        if info.rank == 0:
            stack.enter_context(invitation(folder, socket.endpoint, store.secret, info.secret_file))
        server = ServerRun(task, prepared, me, shard, socket, records, run, say)
        server.serve()
        task.heartbeat.enter("finishing")
        lock.check()
        return server


def _introduce(store: MemberStore, endpoint: str, task: ProcessTask) -> dict[str, Any]:
    """Describe this server to the others; return the description of the run, with all servers' endpoints."""
    info = task.info
    mine: dict[str, Any] = {"endpoint": endpoint, "whole": [], "refused": []}
    if task.resume and task.resumed:
        checkpoints = Checkpoints(task.resume, task.resumed, 1, "server")
        mine["whole"], mine["refused"] = checkpoints.valid_steps(info.rank)
    store.set(server_key(info.rank), json.dumps(mine))
    run: dict[str, Any] = json.loads(store.get(RUN))
    servers = store.read([server_key(rank) for rank in range(info.servers)])
    run["endpoints"] = [json.loads(server)["endpoint"] for server in servers]
    run["settings"] = to_document(task.settings)
    return run


def _find_folder(task: ProcessTask, run: dict[str, Any]) -> tuple[RunFolder, RunIdentity]:
    if task.resume and task.resumed:
        check_owner(task.resume, task.resumed)
        return task.resume, task.resumed
    folder = RunFolder(task.runs / check_folder_name(run["name"]))
    identity = new_identity(task.settings, run=run["run"])
    claim(folder, identity, lambda draft: task.describe(draft, identity, run["workers"]))
    return folder, identity


@contextmanager
def invitation(folder: RunFolder, endpoint: str, secret: Secret, file: Path | None) -> Iterator[None]:
    """While the run trains, its folder says how to join it; a secret without a file of the user's is written there."""
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
