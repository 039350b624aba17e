"""What launchers tell each other while a run goes on: that they are there, and what failed."""

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from paceline.runtimes.live.checked import failure_text, read_document, read_failure, read_notice
from paceline.runtimes.live.failures import Failure
from paceline.runtimes.live.run_store import RunStore
from paceline.runtimes.live.safe_checkpoints import CompleteSteps

_BEAT = 1.0
_LINGER = 3.0
_PATIENCE = timedelta(seconds=2)
_LEFT = b"left"
_FAILURE = "failure"
T = TypeVar("T")


class Bulletin:
    """Notes in the run's store; a store that does not answer is no news and holds nobody up for long."""

    def __init__(self, store: RunStore, node_rank: int, nodes: int, silence: float) -> None:
        """Begin to show that this launcher is there."""
        self._store, self._node_rank, self._nodes, self._silence = store.clone(), node_rank, nodes, silence
        self._store.set_timeout(_PATIENCE)
        self._heard = dict.fromkeys(set(range(nodes)) - {node_rank}, time.monotonic())
        self._looked = time.monotonic()
        self._told = False
        self._notices: deque[str] = deque()
        self.unanswered: set[int] = set()
        """Nodes that did not answer the last exchange of steps, and do not beat any more."""
        self._sent = 0
        self._done = threading.Event()
        if nodes > 1:
            beats = store.clone()
            beats.set_timeout(_PATIENCE)
            self._thread = threading.Thread(target=self._beat, args=(beats,), name="bulletin", daemon=True)
            self._thread.start()

    def post(self, failure: Failure) -> None:
        """Tell the other hosts; the first failure that is posted stands."""
        if self._nodes > 1:
            _ask(lambda: self._store.compare_set(_FAILURE, "", failure_text(failure)))

    def posted(self, patience: float) -> Failure | None:
        """What another host has told, or None after so many seconds."""
        deadline = time.monotonic() + patience
        while self._nodes > 1 and time.monotonic() < deadline:
            if texts := _ask(lambda: self._store.peek([_FAILURE])):
                return read_failure(texts[0])
            time.sleep(0.05)
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
        """What the other hosts can say of the run's checkpoints; those who do not say it in time are left out."""
        if self._nodes == 1:
            return []
        _ask(lambda: self._store.set(_steps_key(self._node_rank), json.dumps(mine.to_json())))
        deadline = time.monotonic() + patience
        others = set(range(self._nodes)) - {self._node_rank, lost}
        told: dict[int, CompleteSteps] = {}
        while len(told) < len(others) and time.monotonic() < deadline:
            for rank in others - set(told):
                if words := _ask(lambda rank=rank: self._store.peek([_steps_key(rank)])):  # type: ignore[misc]
                    told[rank] = CompleteSteps.from_json(read_document(words[0]))
            time.sleep(0.05)
        late = time.monotonic() - 3 * _BEAT  # one that still beats is only slow to verify
        self.unanswered = {rank for rank in others - set(told) if self._heard.get(rank, 0.0) < late}
        return list(told.values())

    def silent_node(self) -> int | None:
        """A node that has said nothing for too long, or None."""
        now, others = time.monotonic(), self._heard
        if (
            now - self._looked > self._silence / 2
        ):  # this launcher was held up itself, and hears first what came
            others.update({rank: max(heard, now) for rank, heard in others.items()})
        self._looked = now
        return next((rank for rank, heard in others.items() if heard < now - self._silence), None)

    def told(self) -> bool:
        """Whether any host has told of a failure, as of the last beat."""
        return self._told

    def forget(self, rank: int) -> None:
        """Expect no more words from a node."""
        self._heard[rank] = float("inf")

    def leave(self) -> None:
        """Sign out; the store stays for a few seconds, until the others have read what they need."""
        self._done.set()
        if self._nodes == 1:
            return
        self._thread.join(_PATIENCE.total_seconds())  # a beat that is under way would undo the word below
        _ask(lambda: self._store.set(alive_key(self._node_rank), _LEFT))
        deadline = time.monotonic() + _LINGER
        while self._node_rank == 0 and time.monotonic() < deadline:
            words = _ask(lambda: self._store.peek([alive_key(rank) for rank in range(self._nodes)]))
            if words is not None and all(word == _LEFT for word in words):
                break
            time.sleep(0.05)

    def _beat(self, store: RunStore) -> None:
        """Over a connection of its own: it may stick for as long as a network is cut."""
        last, seen, beats = dict.fromkeys(self._heard, b""), dict.fromkeys(self._heard, 0), 0
        while not self._done.is_set():
            beats += 1
            try:
                store.set(alive_key(self._node_rank), str(beats))
                self._hear(store, last)
                self._read_notices(store, seen)
            except dist.DistStoreError:
                continue  # no answer: a network may be cut, and silence will tell
            except ValueError:
                pass  # the store is full, and may have room at the next beat
            except dist.DistNetworkError:
                # The store has gone with the launcher of node rank 0, and so have its workers: ours will notice.
                self._heard = {}
                return
            self._done.wait(_BEAT)

    def _hear(self, store: RunStore, last: dict[int, bytes]) -> None:
        others = list(self._heard)
        words = store.peek([alive_key(rank) for rank in others]) or []
        for rank, word in zip(others, words, strict=False):
            if word == _LEFT:
                self.forget(rank)
            elif word != last[rank]:
                self._heard[rank], last[rank] = time.monotonic(), word
        self._told = store.check([_FAILURE])

    def _read_notices(self, store: RunStore, seen: dict[int, int]) -> None:
        for rank in seen:
            for word in store.peek([_notice_key(rank)]) or []:
                number, sentence = read_notice(word)
                if number > seen[rank]:
                    seen[rank] = number
                    self._notices.append(sentence)


def _steps_key(rank: int) -> str:
    return f"steps-{rank}"


def _notice_key(rank: int) -> str:
    return f"notice-{rank}"


def alive_key(rank: int) -> str:
    """Where a launcher counts up, and says that it left; set before anybody reads it."""
    return f"alive-{rank}"


def _ask(question: Callable[[], T]) -> T | None:
    """The store's answer, or None where it has gone, does not answer soon or has no room."""
    with suppress(dist.DistError, ValueError):
        return question()
    return None
