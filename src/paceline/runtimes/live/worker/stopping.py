"""Where all workers stop together, when some of them are asked to."""

import threading
from collections.abc import Callable
from typing import Self

from paceline.runtimes.live.run_store import RunStore
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.runtimes.live.worker.server_client import ServerClient
from paceline.strategies.base import SyncPoint, Worker

_POLL = 0.5
_POLL_SOON = 0.02
_REQUESTED = "stop/requested"


class StopByVote:
    """Votes travel with each reduction of the whole vector, and all workers see their sum at the same point."""

    sentence = "stopping when this round ends, as asked; Ctrl-C again ends at once"

    def __init__(self, requested: Callable[[], bool], note: Callable[[str], None]) -> None:
        self._requested, self._note = requested, note
        self._agreed = self._noted = False

    def vote(self) -> float:
        """What goes into the control element of this worker's next reduction."""
        return float(self._requested())

    def count(self, votes: float) -> None:
        """Take the sum of all workers' votes; one is enough."""
        if votes:
            self._agreed = True

    def reached(self, clock: int) -> bool:  # noqa: ARG002
        """Whether to stop here; asked before every step, with the same answer on all workers at a sync point."""
        if self._agreed or self._requested():
            self._note_once()
        return self._agreed

    def _note_once(self) -> None:
        if not self._noted:
            self._noted = True
            self._note(self.sentence)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class StopAtOnce(StopByVote):
    """For one worker."""

    sentence = "stopping at the next step, as asked"

    def reached(self, clock: int) -> bool:  # noqa: ARG002
        if self._requested():
            self._note_once()
        return self._requested()


class StopByServers(StopByVote):
    """The servers decide; a worker that is asked to stop tells them with the next message that it sends."""

    sentence = "stopping when all workers have reached a sync point, as asked; Ctrl-C again ends at once"

    def __init__(self, client: ServerClient, note: Callable[[str], None]) -> None:
        super().__init__(lambda: False, note)
        self._client = client

    def reached(self, clock: int) -> bool:  # noqa: ARG002
        if self._client.stopping:
            self._note_once()
        return self._client.stopping


class StopAtStep(StopByVote):
    """For workers that take the same number of steps: they need no reduction to agree on the one to stop at.

    A worker that is asked to stop posts it. When a worker's thread reads that, it holds its worker before the next
    step and posts which one that is. The last of these steps is the target: all train up to it and stop there. The
    threads post while their workers compute or communicate, so no worker is held before an exchange for which
    another one waits: it lies before the other's step, and so before the target. Votes stay, being quicker where
    there are reductions; they too are seen by all before the same step.
    """

    sentence = "stopping at the next step, as asked"

    def __init__(
        self,
        requested: Callable[[], bool],
        note: Callable[[str], None],
        *,
        store: RunStore,
        me: Worker,
        patience: float,
    ) -> None:
        """``patience`` is how many seconds a held worker waits for the other workers' posts."""
        super().__init__(requested, note)
        self._store, self._me, self._patience = store, me, patience
        self._changed = threading.Condition(threading.Lock())
        self._hold: int | None = None
        self._target: int | None = None
        self._lost: RuntimeError | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="stopping", daemon=True)

    def reached(self, clock: int) -> bool:
        """Whether this is the target; at its hold a worker waits until the target is known."""
        if self._agreed:
            self._note_once()
            return True
        with self._changed:
            if self._hold is None:
                return False
            if self._hold == clock and self._target is None:
                self._wait()
        self._note_once()
        return clock == self._target

    def _wait(self) -> None:
        known = self._changed.wait_for(lambda: self._target is not None or self._lost, self._patience)
        if self._lost:
            raise self._lost
        if not known:
            raise ConnectionError(f"a remote peer did not post within {self._patience:g} s where it can stop")

    def _listen(self) -> None:
        try:
            if self._wait_for_request():
                self._agree()
        except RuntimeError as error:  # the store is gone, and with it the process that keeps it
            with self._changed:
                self._lost = error
                self._changed.notify_all()

    def _wait_for_request(self) -> bool:
        """Wait until some worker was asked to stop; False where the run ends first."""
        while not self._store.check([_REQUESTED]):
            if self._requested():
                self._store.set(_REQUESTED, "")
            elif self._over.wait(_POLL):
                return False
        return True

    def _agree(self) -> None:
        with self._changed:  # the worker cannot pass the hold between the reading and the setting
            self._hold = self._me.clock + 1
        self._store.set(f"stop/hold-{self._me.rank}", str(self._hold))
        names = [f"stop/hold-{rank}" for rank in range(self._me.workers)]
        while (holds := self._store.peek(names)) is None:
            if self._over.wait(_POLL_SOON):
                return
        with self._changed:
            self._target = max(map(int, holds))
            self._changed.notify_all()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_POLL)


def choose_stop(
    comm: SoloComm,
    sync_point: SyncPoint,
    me: Worker,
    *,
    requested: Callable[[], bool],
    note: Callable[[str], None],
    patience: float,
) -> StopByVote:
    """How workers without servers agree where to stop."""
    if comm.alone:
        return StopAtOnce(requested, note)
    if sync_point is SyncPoint.AFTER_ROUND:
        return StopByVote(requested, note)
    return StopAtStep(requested, note, store=comm.open_store(), me=me, patience=patience)
