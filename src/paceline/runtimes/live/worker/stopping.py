"""Where all workers stop together, when some of them are asked to."""

import threading
import time
from collections.abc import Callable

from paceline.runtimes.live.run_store import RunStore
from paceline.strategies.base import Worker

_POLL = 0.5
_REQUESTED = "stop/requested"
AT_ROUND = "stopping when this round ends, as asked; Ctrl-C again ends at once"
AT_STEP = "stopping at the next step, as asked"
AT_SYNC_POINT = "stopping when all workers have reached a sync point, as asked; Ctrl-C again ends at once"


class StopByVote:
    """Votes travel with each reduction of the whole vector, and all workers see their sum at the same point."""

    def __init__(
        self,
        requested: Callable[[], bool],
        note: Callable[[str], None],
        sentence: str = AT_ROUND,
        decided: Callable[[], bool] = lambda: False,
    ) -> None:
        self._requested, self._note, self._sentence, self._decided = requested, note, sentence, decided
        self._agreed = self._noted = False

    def vote(self) -> float:
        return float(self._requested())

    def count(self, votes: float) -> None:
        """Take the sum of all workers' votes; one is enough."""
        self._agreed = self._agreed or votes > 0

    def reached(self, clock: int) -> bool:  # noqa: ARG002
        """Whether to stop here; asked before every step, with the same answer on all workers at a sync point."""
        self._agreed = self._agreed or self._decided()
        if self._agreed or self._requested():
            self._note_once()
        return self._agreed

    def _note_once(self) -> None:
        if not self._noted:
            self._noted = True
            self._note(self._sentence)


class StopAtStep(StopByVote):
    """For workers that take the same number of steps: they need no reduction to agree on the one to stop at.

    A worker that is asked to stop posts it. When a worker's thread reads that, it holds its worker before the next
    step and posts which one that is. The last of these steps is the target: all train up to it and stop there. The
    threads post while their workers compute or communicate, so no worker is held before an exchange for which
    another one waits: it lies before the other's step, and so before the target. Votes stay, being quicker where
    there are reductions; they too are seen by all before the same step.
    """

    def __init__(
        self, requested: Callable[[], bool], note: Callable[[str], None], store: RunStore, me: Worker
    ) -> None:
        super().__init__(requested, note, AT_STEP)
        self._store, self._me = store, me
        self._holding = threading.Lock()
        self._hold: int | None = None
        self._target: int | None = None
        threading.Thread(target=self._listen, name="stopping", daemon=True).start()

    def reached(self, clock: int) -> bool:
        with self._holding:
            hold = self._hold
        if hold is None and not self._agreed:
            return False
        self._note_once()
        if hold == clock and not self._agreed:
            posts = self._store.read([_hold(rank) for rank in range(self._me.workers)])
            self._target = max(map(int, posts))
        return self._agreed or clock == self._target

    def _listen(self) -> None:
        try:
            while not self._store.check([_REQUESTED]):
                if self._requested():
                    self._store.set(_REQUESTED, "")
                else:
                    time.sleep(_POLL)
            with self._holding:  # the worker cannot pass the hold meanwhile, nor read before it is posted
                self._hold = self._me.clock + 1
                self._store.set(_hold(self._me.rank), str(self._hold))
        except RuntimeError:  # the store is closed at the end, or lost: then the worker notices too
            return


def _hold(rank: int) -> str:
    return f"stop/hold-{rank}"
