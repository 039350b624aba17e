"""What launchers tell each other while a run goes on: that they are there, and what failed."""

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from paceline.runtimes.live.failures import Failure

_BEAT = 1.0
_LINGER = 3.0
_PATIENCE = 2.0
_LEFT = b"left"


class Bulletin:
    """Notes in the store of node rank 0; a store that does not answer is no news and holds nobody up."""

    def __init__(
        self, store: Any, connect: Callable[[], Any], node_rank: int, nodes: int, silence: float
    ) -> None:
        """Begin to show that this launcher is there; ``connect`` opens another connection to the store."""
        self._store, self._node_rank, self._nodes, self._silence = store, node_rank, nodes, silence
        self._heard = dict.fromkeys(set(range(nodes)) - {node_rank}, time.monotonic())
        self._told = False
        self._notices: deque[str] = deque()
        self._sent = 0
        self._done = threading.Event()
        if nodes > 1:
            threading.Thread(target=self._beat, args=(connect,), name="bulletin", daemon=True).start()

    def post(self, failure: Failure) -> None:
        """Tell the other hosts; the first failure that is posted stands."""
        if self._nodes > 1:
            _ask(lambda: self._store.compare_set("failure", "", failure.to_json()))

    def posted(self, patience: float) -> Failure | None:
        """What another host has told, or None after so many seconds."""
        deadline = time.monotonic() + patience
        while self._nodes > 1 and time.monotonic() < deadline:
            if _ask(lambda: self._store.check(["failure"])):
                text = _ask(lambda: self._store.get("failure"))
                return Failure.from_json(text.decode()) if text else None
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

    def silent_node(self) -> int | None:
        """A node that has said nothing for too long, or None."""
        limit = time.monotonic() - self._silence
        return next((rank for rank, heard in self._heard.items() if heard < limit), None)

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
        _ask(lambda: self._store.set(alive_key(self._node_rank), _LEFT))
        deadline = time.monotonic() + _LINGER
        while self._node_rank == 0 and time.monotonic() < deadline:
            if all(word == _LEFT for word in self._words()):
                break
            time.sleep(0.05)

    def _words(self) -> list[bytes]:
        return _ask(lambda: [self._store.get(alive_key(rank)) for rank in range(self._nodes)]) or []

    def _beat(self, connect: Callable[[], Any]) -> None:
        """Over a connection of its own: it may stick for as long as a network is cut."""
        try:
            store, last, count = connect(), dict.fromkeys(self._heard, b""), 0
            notices = dict.fromkeys(self._heard, 0)
            while not self._done.is_set():
                count += 1
                store.set(alive_key(self._node_rank), str(count))
                for rank in list(self._heard):
                    word = store.get(alive_key(rank))
                    if word == _LEFT:
                        self.forget(rank)
                    elif word != last[rank]:
                        self._heard[rank], last[rank] = time.monotonic(), word
                    self._read_notice(store, rank, notices)
                self._told = store.check(["failure"])
                self._done.wait(_BEAT)
        except RuntimeError:
            # The store has gone with the launcher of node rank 0, and so have its workers: ours will notice.
            self._heard = {}

    def _read_notice(self, store: Any, rank: int, seen: dict[int, int]) -> None:
        if store.check([_notice_key(rank)]):
            number, sentence = json.loads(store.get(_notice_key(rank)))
            if number > seen[rank]:
                seen[rank] = number
                self._notices.append(sentence)


def _notice_key(rank: int) -> str:
    return f"notice-{rank}"


def alive_key(rank: int) -> str:
    """Where a launcher counts up, and says that it left; set before anybody reads it."""
    return f"alive-{rank}"


def _ask(question: Callable[[], Any]) -> Any:
    """The store's answer, or None where it has gone or does not answer soon."""
    answers: list[Any] = []

    def ask() -> None:
        with suppress(RuntimeError):
            answers.append(question())

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return answers[0] if answers else None
