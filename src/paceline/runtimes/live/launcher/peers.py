"""What a launcher tells the other launchers through the run's store, and the servers over connections of their own."""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

import msgspec
import torch.distributed as dist

from paceline.errors import printable
from paceline.runtimes.live.failures import Failure, read_failure
from paceline.runtimes.live.run_store import RunStore
from paceline.runtimes.live.safe_checkpoints import CompleteSteps
from paceline.runtimes.live.secret import Secret, wire_key
from paceline.runtimes.live.timeouts import (
    BEAT,
    DEATH_NOTICE,
    LAST_NOTICES,
    STORE_ANSWER,
    STORE_LINGERS,
)
from paceline.runtimes.live.wire.channel import connect
from paceline.runtimes.live.wire.encoding import pack
from paceline.runtimes.live.wire.messages import Goodbye

_ANSWER = timedelta(seconds=STORE_ANSWER)
_POLL = 0.05
_LEFT = b"left"
_FAILURE = "failure"
_LONGEST_NOTICE = 4096
T = TypeVar("T")


class LauncherPeers:
    """The launchers of the other hosts: whether they are alive, what failed there, which checkpoints they have.

    A store that does not answer is no news and delays this launcher by at most ``STORE_ANSWER``.
    """

    def __init__(self, store: RunStore, node_rank: int, nodes: int, silence: float) -> None:
        """Begin to beat; a launcher without a beat for ``silence`` seconds counts as lost."""
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
        """The failure that another host has posted, or None after so many seconds."""
        deadline = time.monotonic() + patience
        while self._nodes > 1 and time.monotonic() < deadline:
            if texts := _ask(lambda: self._store.peek([_FAILURE])):
                return read_failure(texts[0])
            time.sleep(_POLL)
        return None

    def notify(self, sentence: str) -> None:
        """Pass a sentence to the users of the other hosts."""
        if self._nodes > 1:
            self._sent += 1
            note = json.dumps([self._sent, sentence])
            _ask(lambda: self._store.set(_notice_key(self._node_rank), note))

    def notices(self) -> list[str]:
        """What other hosts have passed on since the last call."""
        return [self._notices.popleft() for _ in range(len(self._notices))]

    def exchange_steps(self, mine: CompleteSteps, lost: int | None, patience: float) -> list[CompleteSteps]:
        """What the other hosts know of the run's checkpoints; hosts that do not answer in time are left out."""
        if self._nodes == 1:
            return []
        _ask(lambda: self._store.set(_steps_key(self._node_rank), mine.to_json()))
        deadline = time.monotonic() + patience
        others = set(range(self._nodes)) - {self._node_rank, lost}
        answers: dict[int, CompleteSteps] = {}
        while len(answers) < len(others) and time.monotonic() < deadline:
            for rank in others - set(answers):
                if words := _ask(lambda rank=rank: self._store.peek([_steps_key(rank)])):  # type: ignore[misc]
                    answers[rank] = CompleteSteps.from_json(words[0])
            time.sleep(_POLL)
        late = time.monotonic() - 6 * BEAT  # one that still beats is only slow to verify
        self.unanswered = {rank for rank in others - set(answers) if self._heard.get(rank, 0.0) < late}
        return list(answers.values())

    def lost_node(self) -> int | None:
        """A node whose launcher has been silent for too long, or None."""
        now, others = time.monotonic(), self._heard
        if (
            now - self._looked > self._silence / 2
        ):  # this launcher was held up itself: it reads first what came
            others.update({rank: max(heard, now) for rank, heard in others.items()})
        self._looked = now
        return next((rank for rank, heard in others.items() if heard < now - self._silence), None)

    def forget(self, rank: int) -> None:
        """Expect no more beats from a node."""
        self._heard[rank] = float("inf")

    def leave(self) -> None:
        """Sign out; the store stays for a few seconds, until the others have read what they need."""
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
            time.sleep(_POLL)

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
            for word in store.peek([_notice_key(rank)]) or []:
                with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    number, sentence = msgspec.json.decode(word, type=tuple[int, str])
                    if number > seen[rank]:
                        seen[rank] = number
                        self._notices.append(printable(sentence, _LONGEST_NOTICE))


def _steps_key(rank: int) -> str:
    return f"steps-{rank}"


def _notice_key(rank: int) -> str:
    return f"notice-{rank}"


def alive_key(rank: int) -> str:
    """Where a launcher counts its beats, and says that it left; set before anybody reads it."""
    return f"alive-{rank}"


def _ask(question: Callable[[], T]) -> T | None:
    """The store's answer, or None where it has ended, does not answer soon or has no room."""
    with suppress(dist.DistError, ValueError):
        return question()
    return None


class DeathNotices:
    """Tells the servers which workers of this host have died, so that they need not wait until silence tells.

    Every notice has a thread and connections of its own: deaths are few.
    """

    def __init__(self, secret: Secret) -> None:
        self._key = wire_key(secret)
        self._threads: list[threading.Thread] = []

    def send(self, rank: int, step: int, endpoints: Sequence[str]) -> None:
        """Tell every server that a worker has died, and after which step; does not wait."""
        for endpoint in endpoints:
            thread = threading.Thread(
                target=self._send, args=(Goodbye(rank, step, "died"), endpoint), daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Return once every notice has gone out, or soon after: a server that takes none has ended."""
        end = time.monotonic() + LAST_NOTICES
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _send(self, death: Goodbye, endpoint: str) -> None:
        with suppress(OSError):
            channel = connect(endpoint, self._key, patience=DEATH_NOTICE)
            channel.send(pack(death), most=1)
            channel.close()
