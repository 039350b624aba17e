"""The launchers of a run: how they find each other in the run's store, and what they tell each other there."""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TypeVar
from uuid import uuid4

import msgspec
import torch.distributed as dist

from paceline.errors import RunFailed, UsageError, printable
from paceline.runtimes.live import timeouts
from paceline.runtimes.live.addresses import check_reachable, raise_descriptor_limit, resolve
from paceline.runtimes.live.failures import CompleteSteps, Failure, read_failure
from paceline.runtimes.live.heartbeat import SilenceWatch
from paceline.runtimes.live.launcher.processes import LaunchPlan
from paceline.runtimes.live.process_info import host_name
from paceline.runtimes.live.run_store import RunStore
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.store_server import StoreServer

_MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_LEFT = b"left"
_LONGEST_NOTICE = 4096
T = TypeVar("T")


@dataclass(frozen=True)
class _Seat:
    token: str
    host: str
    nodes: int
    workers: int
    servers: int


class LauncherGroup:
    """Whether the others are alive, what failed there, which checkpoints they have.

    Once all are here, a store that does not answer is no news and delays this launcher by at most ``STORE_ANSWER``.
    """

    def __init__(self, plan: LaunchPlan, secret: Secret, say: Callable[[str], None]) -> None:
        raise_descriptor_limit()
        self._plan, self._say = plan, say
        address, self.port = plan.endpoint
        if plan.nodes > 1 and plan.node_rank == 0:
            check_reachable(address, self.port)
        resolve(address, self.port)
        self._server = StoreServer(secret, address, self.port) if plan.node_rank == 0 else None
        if self._server is not None:
            self.port = self._server.port
        self._where = f"at {address}, port {self.port}"
        self._store = RunStore(address, self.port, secret, timedelta(seconds=1))
        self.hosts: list[str] = []
        self.failed = False
        """Whether any host has posted a failure, as of the last beat."""
        self.unanswered: set[int] = set()
        """Nodes that did not answer the last exchange of steps, and do not beat any more."""
        self._heard: dict[int, float] = {}
        self._watch = SilenceWatch(plan.silence)
        self._notices: deque[str] = deque()
        self._sent = 0
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def gather(self) -> None:
        """Wait until every launcher is here, check that all were started for the same run, and begin to beat."""
        plan = self._plan
        try:
            self._reach()
            self._store.set_timeout(timedelta(seconds=min(plan.wait, 60.0)))
            self._sign_in()
        except dist.DistStoreError:
            raise RunFailed(f"node rank 0 {self._where}, did not start the run") from None
        except dist.DistError:
            raise RunFailed(f"lost contact with node rank 0 {self._where}") from None
        self._store.set_timeout(timedelta(seconds=timeouts.STORE_ANSWER))
        self._heard = dict.fromkeys(set(range(plan.nodes)) - {plan.node_rank}, time.monotonic())
        if plan.node_rank:
            self._say(
                f"node rank {plan.node_rank} of {plan.nodes} has joined; the host at {plan.endpoint[0]} reports on the "
                "run"
            )
        if plan.nodes > 1:
            beats = self._store.clone()
            self._thread = threading.Thread(
                target=self._beat, args=(beats,), name="launcher-beat", daemon=True
            )
            self._thread.start()

    def leave(self) -> None:
        """Sign out, and keep the store until the others have read what they need; say what it has refused."""
        self._done.set()
        if self._thread is not None:
            self._thread.join(timeouts.STORE_ANSWER)  # a beat that is under way would undo the word below
            self._ask(lambda: self._store.set(alive_key(self._plan.node_rank), _LEFT))
            everyone = [alive_key(rank) for rank in range(self._plan.nodes)]
            deadline = time.monotonic() + timeouts.STORE_LINGERS
            while self._plan.node_rank == 0 and time.monotonic() < deadline:
                words = self._ask(lambda: self._store.peek(everyone))
                if words is not None and all(word == _LEFT for word in words):
                    break
                time.sleep(timeouts.STORE_POLL)
        self._store.close()
        if self._server is not None:
            self._server.close()
            if refusals := self._server.refusals():
                self._say(refusals)

    def _reach(self) -> None:
        for _ in self._waiting(lambda: "node rank 0"):
            with suppress(dist.DistStoreError):
                self._store.check(["started"])
                return

    def _sign_in(self) -> None:
        """Node rank 0 starts the run when all have signed in; all check that they were started for the same."""
        plan, token = self._plan, uuid4().hex
        me = _Seat(token, host_name(), plan.nodes, plan.workers, plan.servers)
        if self._store.check(["started"]):
            raise UsageError(f"the run {self._where}, has started already; choose another port")
        self._store.set(alive_key(plan.node_rank), "0")
        self._store.set(f"node-{plan.node_rank}", json.dumps(asdict(me)))
        self._await_all()
        if plan.node_rank == 0:
            seats = self._store.read([f"node-{rank}" for rank in range(plan.nodes)])
            self._store.set("started", b"[" + b",".join(seats) + b"]")
        try:
            self._check(msgspec.json.decode(self._store.get("started"), type=list[_Seat]), token)
        except _MALFORMED:
            raise RunFailed(
                "another launcher does not describe itself; start the same version on every host"
            ) from None

    def _await_all(self) -> None:
        missing = list(range(self._plan.nodes))
        for _ in self._waiting(lambda: f"node rank {', '.join(map(str, missing))} of {self._plan.nodes}"):
            missing[:] = [rank for rank in missing if not self._store.check([f"node-{rank}"])]
            if not missing:
                return
            time.sleep(timeouts.STORE_POLL)

    def _waiting(self, whom: Callable[[], str]) -> Iterator[None]:
        """Try again and again: say what is waited for after a moment and every half minute; RunFailed in the end."""
        began = time.monotonic()
        due = began + timeouts.FIRST_REMINDER
        while time.monotonic() < began + self._plan.wait:
            yield
            if time.monotonic() >= due:
                refusals = self._server.refusals() if self._server else None
                refused = f"; {refusals}" if refusals else ""
                self._say(
                    f"waiting for {whom()} {self._where}{refused} (gives up after {self._plan.wait:g} s)"
                )
                due = time.monotonic() + timeouts.REMINDERS
        raise RunFailed(
            f"{whom()} did not answer {self._where}, within {self._plan.wait:g} s; start the same command as that node "
            "rank on its host, and see that no firewall closes the port"
        )

    def _check(self, seats: list[_Seat], token: str) -> None:
        self.hosts = [printable(seat.host, 255) for seat in seats]
        mine = self._plan.node_rank
        if seats[mine].token != token:
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

    def post(self, failure: Failure) -> None:
        """Tell the other hosts; the first failure that is posted stands."""
        self._ask(lambda: self._store.compare_set("failure", "", failure.to_json()))

    def posted(self, patience: float) -> Failure | None:
        deadline = time.monotonic() + patience
        while self._plan.nodes > 1 and time.monotonic() < deadline:
            if texts := self._ask(lambda: self._store.peek(["failure"])):
                return read_failure(texts[0])
            time.sleep(timeouts.STORE_POLL)
        return None

    def notify(self, sentence: str) -> None:
        self._sent += 1
        note = json.dumps([self._sent, sentence])
        self._ask(lambda: self._store.set(f"notice-{self._plan.node_rank}", note))

    def notices(self) -> list[str]:
        return [self._notices.popleft() for _ in range(len(self._notices))]

    def exchange_steps(self, mine: CompleteSteps, lost: int | None, patience: float) -> list[CompleteSteps]:
        """What the other hosts know of the run's checkpoints; hosts that do not answer in time are left out."""
        self._ask(lambda: self._store.set(f"steps-{self._plan.node_rank}", msgspec.json.encode(mine)))
        deadline = time.monotonic() + patience
        others = set(range(self._plan.nodes)) - {self._plan.node_rank, lost}
        answers: dict[int, CompleteSteps] = {}
        while len(answers) < len(others) and time.monotonic() < deadline:
            for rank in others - set(answers):
                if words := self._ask(lambda rank=rank: self._store.peek([f"steps-{rank}"])):  # type: ignore[misc]
                    answers[rank] = CompleteSteps.from_json(words[0])
            time.sleep(timeouts.STORE_POLL)
        late = time.monotonic() - 6 * timeouts.BEAT  # one that still beats is only slow to verify
        self.unanswered = {rank for rank in others - set(answers) if self._heard.get(rank, 0.0) < late}
        return list(answers.values())

    def lost_node(self) -> int | None:
        return next(iter(self._watch.silent(self._heard)), None)

    def forget(self, rank: int) -> None:
        self._heard[rank] = float("inf")

    def _beat(self, store: RunStore) -> None:
        """Over a connection of its own, which may block for as long as a network is cut."""
        last, seen, beats = dict.fromkeys(self._heard, b""), dict.fromkeys(self._heard, 0), 0
        while not self._done.is_set():
            beats += 1
            try:
                store.set(alive_key(self._plan.node_rank), str(beats))
                self._hear(store, last, seen)
            except dist.DistStoreError:
                continue  # no answer: a network may be cut, and the others' silence decides
            except ValueError:
                pass  # the store is full, and may have room at the next beat
            except dist.DistNetworkError:
                # The store has ended with the launcher of node rank 0, and so have its workers: ours will notice.
                self._heard = {}
                return
            self._done.wait(timeouts.BEAT)

    def _hear(self, store: RunStore, last: dict[int, bytes], seen: dict[int, int]) -> None:
        words = store.peek([alive_key(rank) for rank in last]) or []
        for rank, word in zip(last, words, strict=False):
            if word == _LEFT:
                self.forget(rank)
            elif word != last[rank]:
                self._heard[rank], last[rank] = time.monotonic(), word
        self.failed = store.check(["failure"])
        for rank in seen:
            for note in store.peek([f"notice-{rank}"]) or []:
                with suppress(*_MALFORMED):
                    number, sentence = msgspec.json.decode(note, type=tuple[int, str])
                    if number > seen[rank]:
                        seen[rank] = number
                        self._notices.append(printable(sentence, _LONGEST_NOTICE))

    def _ask(self, question: Callable[[], T]) -> T | None:
        """The store's answer, or None where it has ended, does not answer soon or has no room, or is not needed."""
        with suppress(dist.DistError, ValueError):
            return question() if self._plan.nodes > 1 else None
        return None


def alive_key(rank: int) -> str:
    return f"alive-{rank}"
