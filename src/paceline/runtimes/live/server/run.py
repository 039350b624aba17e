"""One live server from its first word with the workers to the last one's goodbye."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch

from paceline.records.checkpoints import Checkpoints
from paceline.records.files import write_json
from paceline.records.folder import RunFolder, check_folder_name
from paceline.records.lock import RunLock
from paceline.records.servers import ServerLog, ServerTotals, keep_entries, read_server_log
from paceline.records.tensors import RunIdentity
from paceline.runtimes.config import new_identity, read_live
from paceline.runtimes.live.addresses import own_address
from paceline.runtimes.live.documents import Documents, check_equal
from paceline.runtimes.live.launcher.launch import say_on_stderr
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.server.engine import Beating, Book, ServerEngine
from paceline.runtimes.live.server.server_socket import ServerSocket
from paceline.runtimes.live.worker.run_folder import asked_for, check_owner, claim, describe_run
from paceline.runtimes.live.worker.server_comm import RUN, server_key
from paceline.runtimes.prepare import prepare
from paceline.runtimes.replica import ParameterShard
from paceline.runtimes.settings import Settings
from paceline.strategies.base import Server


class Heart(Beating, Protocol):
    """Somebody who is told of every update and phase, and where the run is kept."""

    def show(self, run: Path) -> None:
        """The run folder is known."""


@dataclass(frozen=True)
class Ended:
    """How a server ended: always in order, or an exception tells."""

    ending: str


def run_server(
    settings: Settings,
    *,
    options: LiveOptions,
    place: ProcessInfo,
    runs: Path,
    heartbeat: Heart,
    stop_requested: Callable[[], bool],
    before_hard_end: Callable[[Callable[[], None]], None] = lambda _: None,
    resume: RunFolder | None = None,
    name: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Ended:
    """Keep one part of the parameters until all workers have left; started with the same settings as the workers."""
    prepared = prepare(settings)
    torch.set_num_threads(options.threads)
    part = ParameterShard(prepared.job, place.rank, place.servers, settings.seed, torch.device("cpu"))
    documents = Documents(place, timedelta(seconds=options.timeout))
    host = own_address(place.address, place.port) or place.address
    identity = read_live(resume).identity if resume else None
    with ServerSocket(documents.secret, host, part.params, place.rank, place.servers) as socket:
        run, endpoints = _introduce(documents, socket, place, _saved(resume, identity, place.rank))
        ours = asked_for(settings, name or "", resume, identity.run if identity else None)
        check_equal([run["asked"], ours])
        folder = resume or RunFolder(runs / check_folder_name(run["name"]))
        identity = identity or new_identity(settings, run=run["run"])
        if resume:
            check_owner(folder, identity)
        else:  # the workers of this host have made it; where it has none, this server does

            def describe(draft: RunFolder) -> None:
                describe_run(draft, identity, settings, options, place, run["workers"])

            claim(folder, identity, describe)
        heartbeat.show(folder.path)
        me = Server(place.rank, place.servers, part.params, part.grad)
        me.initial_workers = tuple(range(place.workers))
        with ExitStack() as stack:
            lock = stack.enter_context(RunLock.share(folder, place.node_rank))
            checkpoints = Checkpoints(folder, identity, settings.keep, "server")
            book = stack.enter_context(_book(folder, checkpoints, lock, part, me, run["step"]))
            before_hard_end(book.log.flush)
            if place.rank == 0:
                stack.enter_context(_invited(folder, socket.endpoint, documents.secret, place.secret_file))
            engine = ServerEngine(
                me=me,
                part=part,
                prepared=prepared,
                socket=socket,
                book=book,
                heartbeat=heartbeat,
                stop_requested=stop_requested,
                invitation={
                    "settings": settings.to_json(),
                    "name": run["name"],
                    "run": identity.run,
                    "endpoints": endpoints,
                },
                begun=run["begun"],
                silence=options.silence,
                say=say,
                hosts={worker["rank"]: worker["host"] for worker in run["workers"]},
            )
            ending = engine.run()
            heartbeat.enter("finishing")
            lock.check()
            return Ended(ending)


def _saved(resume: RunFolder | None, identity: RunIdentity | None, rank: int) -> dict[str, Any]:
    """The steps that this server could go on from, and why it cannot from others."""
    if resume is None or identity is None:
        return {"whole": [], "refused": []}
    whole, refused = Checkpoints(resume, identity, 1, "server").valid_steps(rank)
    return {"whole": whole, "refused": refused}


def _introduce(
    documents: Documents, socket: ServerSocket, place: ProcessInfo, saved: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Tell the others where this server is; learn what is run, and where all servers are."""
    store = documents.store
    store.set(server_key(place.rank), json.dumps({"endpoint": socket.endpoint, **saved}))
    run: dict[str, Any] = json.loads(store.get(RUN))
    servers = [json.loads(text) for text in store.read([server_key(rank) for rank in range(place.servers)])]
    return run, [server["endpoint"] for server in servers]


@contextmanager
def _book(
    folder: RunFolder,
    checkpoints: Checkpoints,
    lock: RunLock,
    part: ParameterShard,
    me: Server,
    step: int | None,
) -> Iterator[Book]:
    """The server's record and checkpoints; what a run that resumes had recorded after its checkpoint is dropped."""
    path = folder.server_events(me.rank)
    totals, entries = ServerTotals(), 0
    if step is not None:
        tree = checkpoints.load(step, me.rank)
        part.load(tree["part"])
        me.version, me.seen, me.seen_at_sync, entries = (
            tree["server"][field] for field in ("version", "seen", "seen_at_sync", "entries")
        )
        checkpoints.forget_after(step, me.rank)
    for sentence in keep_entries(path, entries):
        say_on_stderr(sentence)
    if entries:
        for entry in read_server_log(path):
            totals.add(entry)
    with ServerLog(path) as log:
        yield Book(log=log, totals=totals, entries=entries, checkpoints=checkpoints, lock=lock)


@contextmanager
def _invited(folder: RunFolder, endpoint: str, secret: Secret, file: Path | None) -> Iterator[None]:
    """While the run goes on, its folder says how to join it, and which file holds the secret, for whoever may read it.

    A file that there is anyhow is only named. A secret that the processes made among themselves is put into the folder.
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
