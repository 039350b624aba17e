"""The launchers of a run: how they find each other in the run's store, and what they tell each other there.

The launcher of node rank 0 keeps the store, which the workers use to find each other too.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TypeVar
from uuid import uuid4

import msgspec
import torch.distributed as dist

from paceline.errors import RunFailed, UsageError, printable
from paceline.runtimes.live.addresses import check_reachable, raise_descriptor_limit, resolve
from paceline.runtimes.live.failures import Failure, read_failure
from paceline.runtimes.live.launcher.plan import LaunchPlan
from paceline.runtimes.live.process_info import host_name
from paceline.runtimes.live.run_store import RunStore
from paceline.runtimes.live.safe_checkpoints import CompleteSteps
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.store_server import StoreServer
from paceline.runtimes.live.timeouts import (
    BEAT,
    FIRST_REMINDER,
    REMINDERS,
    STORE_ANSWER,
    STORE_LINGERS,
    STORE_POLL,
)

_ANSWER = timedelta(seconds=STORE_ANSWER)
_MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_LEFT = b"left"
_FAILURE = "failure"
_LONGEST_NOTICE = 4096
T = TypeVar("T")


@dataclass(frozen=True)
class _Seat:
    """What one launcher tells the others of itself."""

    token: str
    host: str
    nodes: int
    workers: int
    servers: int


class Rendezvous:
    """The launchers of a run; ranks are as given, and a launcher that waits says for which."""

    peers: "LauncherPeers"
    """The other launchers, once all are here."""

    def __init__(self, plan: LaunchPlan, secret: Secret, say: Callable[[str], None]) -> None:
        raise_descriptor_limit()
        self._plan, self._say = plan, say
        address, self.port = plan.endpoint
        if plan.nodes > 1 and plan.node_rank == 0:
            check_reachable(address, self.port)
        resolve(address, self.port)
        self.hosts: list[str] = []
        """The host of every node, once all are here."""
        self._token = uuid4().hex
        self._server = StoreServer(secret, address, self.port) if plan.node_rank == 0 else None
        if self._server is not None:
            self.port = self._server.port
        self._where = f"at {address}, port {self.port}"
        self.store = RunStore(address, self.port, secret)

    def gather(self) -> None:
        """Wait until every launcher is here, and check that all were started for the same run."""
        plan, deadline = self._plan, time.monotonic() + self._plan.wait
        self._reach(deadline)
        try:
            self._sign_in(deadline)
        except dist.DistStoreError:
            raise RunFailed(f"node rank 0 {self._where}, did not start the run") from None
        except dist.DistError:
            raise RunFailed(f"lost contact with node rank 0 {self._where}") from None
        if plan.node_rank:
            reporter = plan.endpoint[0]
            self._say(
                f"node rank {plan.node_rank} of {plan.nodes} has joined; the host at {reporter} reports on the run"
            )
        self.peers = LauncherPeers(self.store, plan.node_rank, plan.nodes, plan.silence)

    def leave(self) -> None:
        if hasattr(self, "peers"):
            self.peers.leave()
        self.store.close()
        if self._server is not None:
            self._server.close()
            if refusals := self._server.refusals():
                self._say(refusals)

    def _reach(self, deadline: float) -> None:
        remind = self._reminder(f"waiting for node rank 0 {self._where}")
        self.store.set_timeout(timedelta(seconds=1))
        while True:
            try:
                self.store.check(["started"])
                break
            except dist.DistStoreError:
                remind("")
            if time.monotonic() > deadline:
                raise RunFailed(
                    f"node rank 0 did not answer {self._where}, within {self._plan.wait:g} s; start the same command "
                    "as node rank 0 there, and see that no firewall closes the port"
                )
        self.store.set_timeout(timedelta(seconds=min(self._plan.wait, 60.0)))

    def _sign_in(self, deadline: float) -> None:
        plan = self._plan
        me = _Seat(self._token, host_name(), plan.nodes, plan.workers, plan.servers)
        if self.store.check(["started"]):
            raise UsageError(f"the run {self._where}, has started already; choose another port")
        self.store.set(alive_key(plan.node_rank), "0")
        self.store.set(f"node-{plan.node_rank}", json.dumps(asdict(me)))
        self._await_all(deadline)
        if plan.node_rank == 0:
            seats = self.store.read([f"node-{rank}" for rank in range(plan.nodes)])
            self.store.set("started", b"[" + b",".join(seats) + b"]")
        try:
            self._check(msgspec.json.decode(self.store.get("started"), type=list[_Seat]))
        except _MALFORMED:
            raise RunFailed(
                "another launcher does not describe itself; start the same version on every host"
            ) from None

    def _await_all(self, deadline: float) -> None:
        nodes = self._plan.nodes
        remind = self._reminder(f"waiting for other nodes {self._where}")
        while missing := [rank for rank in range(nodes) if not self.store.check([f"node-{rank}"])]:
            ranks = ", ".join(map(str, missing))
            if time.monotonic() > deadline:
                raise RunFailed(
                    f"node rank {ranks} of {nodes} did not come to {self._where[3:]}, within {self._plan.wait:g} s; "
                    "start the same command as that node rank on its host"
                )
            refused = f"; {refusals}" if self._server and (refusals := self._server.refusals()) else ""
            remind(f": node rank {ranks} of {nodes}{refused}")
            time.sleep(STORE_POLL)

    def _reminder(self, what: str) -> Callable[[str], None]:
        due = time.monotonic() + FIRST_REMINDER

        def remind(detail: str) -> None:
            nonlocal due
            if time.monotonic() >= due:
                self._say(f"{what}{detail} (gives up after {self._plan.wait:g} s)")
                due = time.monotonic() + REMINDERS

        return remind

    def _check(self, seats: list[_Seat]) -> None:
        self.hosts = [printable(seat.host, 255) for seat in seats]
        mine = self._plan.node_rank
        if seats[mine].token != self._token:
            raise UsageError(
                f"node rank {mine} was also given on {self.hosts[mine]}; give every host its own"
            )
        for what in ("nodes", "workers", "servers"):
            first = getattr(seats[0], what)
            for rank, seat in enumerate(seats):
                if (count := getattr(seat, what)) != first:
                    raise UsageError(
                        f"the number of {what} is {count} on {self.hosts[rank]} (node rank {rank}) and {first} on "
                        f"{self.hosts[0]} (node rank 0); give the same options on every host"
                    )


class LauncherPeers:
    """The launchers of the other hosts: whether they are alive, what failed there, which checkpoints they have.

    A store that does not answer is no news and delays this launcher by at most ``STORE_ANSWER``.
    """

    def __init__(self, store: RunStore, node_rank: int, nodes: int, silence: float) -> None:
        self._store, self._node_rank, self._nodes, self._silence = store.clone(), node_rank, nodes, silence
        self._store.set_timeout(_ANSWER)
        self._heard = dict.fromkeys(set(range(nodes)) - {node_rank}, time.monotonic())
        self._looked = time.monotonic()
        self.failed = False
        """Whether any host has posted a failure, as of the last beat."""
        self._notices: deque[str] = deque()
        self.unanswered: set[int] = set()
        """Nodes that did not answer the last exchange of steps, and do not beat any more."""
        self._sent = 0
        self._done = threading.Event()
        if nodes > 1:
            beats = store.clone()
            beats.set_timeout(_ANSWER)
            self._thread = threading.Thread(
                target=self._beat, args=(beats,), name="launcher-beat", daemon=True
            )
            self._thread.start()

    def post(self, failure: Failure) -> None:
        """Tell the other hosts; the first failure that is posted stands."""
        if self._nodes > 1:
            _ask(lambda: self._store.compare_set(_FAILURE, "", failure.to_json()))

    def posted(self, patience: float) -> Failure | None:
        deadline = time.monotonic() + patience
        while self._nodes > 1 and time.monotonic() < deadline:
            if texts := _ask(lambda: self._store.peek([_FAILURE])):
                return read_failure(texts[0])
            time.sleep(STORE_POLL)
        return None

    def notify(self, sentence: str) -> None:
        if self._nodes > 1:
            self._sent += 1
            note = json.dumps([self._sent, sentence])
            _ask(lambda: self._store.set(f"notice-{self._node_rank}", note))

    def notices(self) -> list[str]:
        return [self._notices.popleft() for _ in range(len(self._notices))]

    def exchange_steps(self, mine: CompleteSteps, lost: int | None, patience: float) -> list[CompleteSteps]:
        """What the other hosts know of the run's checkpoints; hosts that do not answer in time are left out."""
        if self._nodes == 1:
            return []
        _ask(lambda: self._store.set(f"steps-{self._node_rank}", msgspec.json.encode(mine)))
        deadline = time.monotonic() + patience
        others = set(range(self._nodes)) - {self._node_rank, lost}
        answers: dict[int, CompleteSteps] = {}
        while len(answers) < len(others) and time.monotonic() < deadline:
            for rank in others - set(answers):
                if words := _ask(lambda rank=rank: self._store.peek([f"steps-{rank}"])):  # type: ignore[misc]
                    answers[rank] = CompleteSteps.from_json(words[0])
            time.sleep(STORE_POLL)
        late = time.monotonic() - 6 * BEAT  # one that still beats is only slow to verify
        self.unanswered = {rank for rank in others - set(answers) if self._heard.get(rank, 0.0) < late}
        return list(answers.values())

    def lost_node(self) -> int | None:
        now, others = time.monotonic(), self._heard
        if now - self._looked > self._silence / 2:  # this launcher was held up: it reads first what arrived
            others.update({rank: max(heard, now) for rank, heard in others.items()})
        self._looked = now
        return next((rank for rank, heard in others.items() if heard < now - self._silence), None)

    def forget(self, rank: int) -> None:
        self._heard[rank] = float("inf")

    def leave(self) -> None:
        self._done.set()
        if self._nodes == 1:
            return
        self._thread.join(STORE_ANSWER)  # a beat that is under way would undo the word below
        _ask(lambda: self._store.set(alive_key(self._node_rank), _LEFT))
        deadline = time.monotonic() + STORE_LINGERS
        while self._node_rank == 0 and time.monotonic() < deadline:
            words = _ask(lambda: self._store.peek([alive_key(rank) for rank in range(self._nodes)]))
            if words is not None and all(word == _LEFT for word in words):
                break
            time.sleep(STORE_POLL)

    def _beat(self, store: RunStore) -> None:
        """Over a connection of its own, which may block for as long as a network is cut."""
        last, seen, beats = dict.fromkeys(self._heard, b""), dict.fromkeys(self._heard, 0), 0
        while not self._done.is_set():
            beats += 1
            try:
                store.set(alive_key(self._node_rank), str(beats))
                self._hear(store, last)
                self._read_notices(store, seen)
            except dist.DistStoreError:
                continue  # no answer: a network may be cut, and the others' silence decides
            except ValueError:
                pass  # the store is full, and may have room at the next beat
            except dist.DistNetworkError:
                # The store has ended with the launcher of node rank 0, and so have its workers: ours will notice.
                self._heard = {}
                return
            self._done.wait(BEAT)

    def _hear(self, store: RunStore, last: dict[int, bytes]) -> None:
        others = list(self._heard)
        words = store.peek([alive_key(rank) for rank in others]) or []
        for rank, word in zip(others, words, strict=False):
            if word == _LEFT:
                self.forget(rank)
            elif word != last[rank]:
                self._heard[rank], last[rank] = time.monotonic(), word
        self.failed = store.check([_FAILURE])

    def _read_notices(self, store: RunStore, seen: dict[int, int]) -> None:
        for rank in seen:
            for word in store.peek([f"notice-{rank}"]) or []:
                with suppress(*_MALFORMED):
                    number, sentence = msgspec.json.decode(word, type=tuple[int, str])
                    if number > seen[rank]:
                        seen[rank] = number
                        self._notices.append(printable(sentence, _LONGEST_NOTICE))


def alive_key(rank: int) -> str:
    return f"alive-{rank}"


def _ask(question: Callable[[], T]) -> T | None:
    """The store's answer, or None where it has ended, does not answer soon or has no room."""
    with suppress(dist.DistError, ValueError):
        return question()
    return None
