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
from paceline.runtimes.config import new_identity, read_live
from paceline.runtimes.live.addresses import own_address
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.run_store import MemberStore, check_equal
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.server.run import ServerRecords, ServerRun
from paceline.runtimes.live.server.server_socket import ServerSocket
from paceline.runtimes.live.worker.run_folder import asked_for, check_owner, claim, describe_run
from paceline.runtimes.live.worker.server_comm import RUN, server_key
from paceline.runtimes.prepare import prepare
from paceline.runtimes.replica import ParameterShard
from paceline.runtimes.settings import Settings
from paceline.strategies.base import Server


@dataclass(frozen=True)
class ServerEnding:
    """How a server ended: "budget" or "abandoned"; a failure is an exception."""

    ending: str


def run_server(
    settings: Settings,
    *,
    options: LiveOptions,
    place: ProcessInfo,
    runs: Path,
    heartbeat: Heartbeat,
    stop_requested: Callable[[], bool],
    before_hard_end: Callable[[Callable[[], None]], None] = lambda _: None,
    resume: RunFolder | None = None,
    name: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> ServerEnding:
    """Keep one shard of the parameters until all workers have left; started with the same settings as the workers."""
    prepared = prepare(settings)
    torch.set_num_threads(options.threads)
    shard = ParameterShard(prepared.job, place.rank, place.servers, settings.seed, torch.device("cpu"))
    store = MemberStore(place, timedelta(seconds=options.timeout))
    host = own_address(place.address, place.port) or place.address
    resumed = read_live(resume).identity if resume else None
    with (
        ServerSocket(store.secret, host, shard.params, place.rank, place.servers) as socket,
        ExitStack() as stack,
    ):
        run, endpoints = _introduce(store, socket, place, _saved_steps(resume, resumed, place.rank))
        check_equal([run["asked"], asked_for(settings, name or "", resume, resumed.run if resumed else None)])
        identity = resumed or new_identity(settings, run=run["run"])
        folder = _find_folder(resume, identity, runs, run, settings, options, place)
        heartbeat.show(folder.path)
        me = Server(place.rank, place.servers, shard.params, shard.grad)
        me.initial_workers = tuple(range(place.workers))
        lock = stack.enter_context(RunLock.share(folder, place.node_rank))
        checkpoints = Checkpoints(folder, identity, settings.keep, "server")
        records = stack.enter_context(
            ServerRecords.opened(folder, checkpoints, lock, shard, me, run["step"], say)
        )
        before_hard_end(records.log.flush)
        if place.rank == 0:
            stack.enter_context(invitation(folder, socket.endpoint, store.secret, place.secret_file))
        ending = ServerRun(
            me=me,
            shard=shard,
            prepared=prepared,
            socket=socket,
            records=records,
            heartbeat=heartbeat,
            stop_requested=stop_requested,
            run={
                "settings": to_document(settings),
                "name": run["name"],
                "run": identity.run,
                "endpoints": endpoints,
            },
            begun=run["begun"],
            silence=options.silence,
            hosts={worker["rank"]: worker["host"] for worker in run["workers"]},
            say=say,
        ).serve()
        heartbeat.enter("finishing")
        lock.check()
        return ServerEnding(ending)


def _find_folder(
    resume: RunFolder | None,
    identity: RunIdentity,
    runs: Path,
    run: dict[str, Any],
    settings: Settings,
    options: LiveOptions,
    place: ProcessInfo,
) -> RunFolder:
    """The folder that the workers of this host have made; where it has none, this server makes it."""
    if resume:
        check_owner(resume, identity)
        return resume
    folder = RunFolder(runs / check_folder_name(run["name"]))
    claim(
        folder,
        identity,
        lambda draft: describe_run(draft, identity, settings, options, place, run["workers"]),
    )
    return folder


def _saved_steps(resume: RunFolder | None, identity: RunIdentity | None, rank: int) -> dict[str, Any]:
    """The steps that this server could resume from, and why it cannot from others."""
    if resume is None or identity is None:
        return {"whole": [], "refused": []}
    whole, refused = Checkpoints(resume, identity, 1, "server").valid_steps(rank)
    return {"whole": whole, "refused": refused}


def _introduce(
    store: MemberStore, socket: ServerSocket, place: ProcessInfo, saved: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Describe this server to the others; return the description of the run, and all servers' endpoints."""
    store.set(server_key(place.rank), json.dumps({"endpoint": socket.endpoint, **saved}))
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
