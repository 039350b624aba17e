"""The launchers of a run: how they find each other in the run's store, and what they tell each other there."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import ParamSpec, TypeVar
from uuid import uuid4

import msgspec
import torch.distributed as dist

from paceline.errors import RunFailed, UsageError, printable
from paceline.runtimes.live import timeouts
from paceline.runtimes.live.addresses import check_reachable, free_port, raise_descriptor_limit
from paceline.runtimes.live.failures import CompleteSteps, Failure, decoded, read_failure
from paceline.runtimes.live.heartbeat import SilenceWatch
from paceline.runtimes.live.launcher.processes import LaunchPlan
from paceline.runtimes.live.process_info import host_name
from paceline.runtimes.live.run_store import RunStore
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.store_server import StoreServer

_LEFT = b"left"
_LONGEST_NOTICE = 4096
P = ParamSpec("P")
T = TypeVar("T")


class _Seat(msgspec.Struct, frozen=True):
    token: str
    host: str
    nodes: int
    workers: int
    servers: int
    free_port: int
    """One that nobody listens on there."""


class LauncherGroup:
    """Whether the others are alive, what failed there, which checkpoints they have.

    Once all are here, a store that does not answer is no news and delays this launcher by at most ``STORE_ANSWER``.
    """

    def __init__(self, plan: LaunchPlan, secret: Secret, say: Callable[[str], None]) -> None:
        raise_descriptor_limit()
        self._plan, self.secret, self._say = plan, secret, say
        address, self.port = plan.endpoint
        self._server: StoreServer | None = None
        if plan.node_rank == 0:
            if plan.nodes > 1:
                check_reachable(address, self.port)
            self._server = StoreServer(secret, address, self.port, say)
            self.port = self._server.port
        self._where = f"at {address}, port {self.port}"
        self._store = RunStore(address, self.port, secret, timedelta(seconds=1))
        self.hosts: list[str] = []
        self.free_port = 0
        """At the address, for whatever the run itself does not listen for."""
        self.failed = False
        """Whether any host has posted a failure, as of the last beat."""
        self.unanswered: set[int] = set()
        """Nodes that did not answer the last exchange of steps, and send no more heartbeats."""
        self._heard: dict[int, float] = {}
        self._watch = SilenceWatch(plan.silence)
        self._notices: deque[str] = deque()
        self._numbers = count(1)
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def gather(self) -> None:
        """Wait until every launcher is here, check that all were started for the same run, and begin to beat."""
        plan = self._plan
        try:
            self._await(self._reached, lambda: "node rank 0")
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
        """Sign out, and keep the store until the others have read what they need."""
        self._done.set()
        if self._thread is not None:
            self._thread.join(timeouts.STORE_ANSWER)  # a beat that is under way would undo the word below
            self._ask(self._store.set, f"alive-{self._plan.node_rank}", _LEFT)
            self._ask(self._store.set, f"left-{self._plan.node_rank}", "")
            if self._server is not None:
                everyone = [f"left-{rank}" for rank in range(self._plan.nodes)]
                self._ask(self._store.read, everyone, timeouts.STORE_LINGERS)
        self._store.close()
        if self._server is not None:
            self._server.close()

    def _reached(self) -> bool:
        with suppress(dist.DistStoreError):
            self._store.check(["started"])
            return True
        return False

    def _sign_in(self) -> None:
        """Node rank 0 starts the run when all have signed in; all check that they were started for the same."""
        plan, token = self._plan, uuid4().hex
        me = _Seat(token, host_name(), plan.nodes, plan.workers, plan.servers, free_port(plan.endpoint[0]))
        if self._store.check(["started"]):
            raise UsageError(f"the run {self._where}, has started already; choose another port")
        self._store.set(f"alive-{plan.node_rank}", "0")
        self._store.set(f"notice-{plan.node_rank}", "")
        self._store.set(f"node-{plan.node_rank}", msgspec.json.encode(me))
        missing = set(range(plan.nodes))

        def all_here() -> bool:
            missing.difference_update([rank for rank in missing if self._store.check([f"node-{rank}"])])
            return not missing

        self._await(all_here, lambda: f"node rank {', '.join(map(str, sorted(missing)))} of {plan.nodes}")
        if plan.node_rank == 0:
            seats = self._store.read([f"node-{rank}" for rank in range(plan.nodes)])
            self._store.set("started", b"[" + b",".join(seats) + b"]")
        started = decoded(self._store.get("started"), list[_Seat])
        if started is None:
            raise RunFailed("another launcher does not describe itself; start the same version on every host")
        self._check(started, token)

    def _await(self, here: Callable[[], bool], whom: Callable[[], str]) -> None:
        """Try again and again: say what is waited for after a moment and every half minute; RunFailed in the end."""
        began = time.monotonic()
        due = began + timeouts.FIRST_REMINDER
        while not here():
            if time.monotonic() >= due:
                refusals = self._server.refusals() if self._server else ""
                refused = f"; {refusals}" if refusals else ""
                self._say(
                    f"waiting for {whom()} {self._where}{refused} (gives up after {self._plan.wait:g} s)"
                )
                due = time.monotonic() + timeouts.REMINDERS
            if time.monotonic() >= began + self._plan.wait:
                raise RunFailed(
                    f"{whom()} did not answer {self._where}, within {self._plan.wait:g} s; start the same command as "
                    "that node rank on its host, and check that no firewall blocks the port"
                )
            time.sleep(timeouts.STORE_POLL)

    def _check(self, seats: list[_Seat], token: str) -> None:
        self.hosts = [printable(seat.host, 255) for seat in seats]
        self.free_port = seats[0].free_port
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
        self._ask(self._store.compare_set, "failure", "", failure.to_json())

    def posted(self, patience: float) -> Failure | None:
        texts = self._ask(self._store.read, ["failure"], patience)
        return read_failure(texts[0]) if texts else None

    def notify(self, sentence: str) -> None:
        """Pass a sentence on to the other hosts, where it is printed."""
        self._ask(self._store.set, f"notice-{self._plan.node_rank}", f"{next(self._numbers)} {sentence}")

    def notices(self) -> list[str]:
        return [self._notices.popleft() for _ in range(len(self._notices))]

    def exchange_steps(self, mine: CompleteSteps, lost: int | None, patience: float) -> list[CompleteSteps]:
        """What the other hosts know of the run's checkpoints; hosts that do not answer in time are left out."""
        self._ask(self._store.set, f"steps-{self._plan.node_rank}", msgspec.json.encode(mine))
        others = set(range(self._plan.nodes)) - {self._plan.node_rank, lost}
        answers: list[CompleteSteps] = []
        self.unanswered = set()
        if others:  # wait for all of them: a silent one must not take the time of the next
            self._ask(self._store.read, [f"steps-{rank}" for rank in others], patience)
        for rank in others:
            if words := self._ask(self._store.peek, [f"steps-{rank}"]):
                answers.append(decoded(words[0], CompleteSteps) or CompleteSteps())
            elif self._heard.get(rank, 0.0) < time.monotonic() - 6 * timeouts.BEAT:
                self.unanswered.add(rank)  # one that still beats is only slow to verify
        return answers

    def lost_node(self) -> int | None:
        return next(iter(self._watch.silent(self._heard)), None)

    def forget(self, rank: int) -> None:
        self._heard[rank] = float("inf")

    def _beat(self, store: RunStore) -> None:
        """Over a connection of its own, which may block for as long as a network is cut."""
        last: dict[int, Sequence[bytes]] = dict.fromkeys(self._heard, (b"", b""))
        beats = count(1)
        while not self._done.is_set():
            try:
                store.set(f"alive-{self._plan.node_rank}", str(next(beats)))
                for rank in last:
                    last[rank] = self._hear(rank, store, last[rank])
                self.failed = store.check(["failure"])
            except dist.DistStoreError:
                continue  # no answer: a network may be cut, and the others' silence decides
            except ValueError:
                pass  # the store is full, and may have room at the next beat
            except dist.DistNetworkError:
                # The store has ended with the launcher of node rank 0, and so have its workers: ours will notice.
                self._heard = {}
                return
            self._done.wait(timeouts.BEAT)

    def _hear(self, rank: int, store: RunStore, last: Sequence[bytes]) -> Sequence[bytes]:
        """Whether another launcher still beats, and its newest notice, against what it said before."""
        alive, notice = words = store.peek([f"alive-{rank}", f"notice-{rank}"]) or last
        if alive == _LEFT:
            self.forget(rank)
        elif alive != last[0]:
            self._heard[rank] = time.monotonic()
        if notice != last[1]:
            sentence = notice.decode(errors="replace").partition(" ")[2]
            self._notices.append(printable(sentence, _LONGEST_NOTICE))
        return words

    def _ask(self, question: Callable[P, T], *words: P.args, **more: P.kwargs) -> T | None:
        """The store's answer, or None where it has ended, does not answer soon or has no room, or is not needed."""
        with suppress(dist.DistError, ValueError):
            return question(*words, **more) if self._plan.nodes > 1 else None
        return None
