"""Where all workers stop together, when some of them are asked to."""

import threading
from collections.abc import Callable
from typing import Protocol, Self

from paceline.runtimes.live.run_store import RunStore
from paceline.runtimes.live.worker.comm import Group
from paceline.runtimes.live.worker.server_client import ServerClient
from paceline.strategies.base import SyncPoint, Worker

_GLANCE = 0.5
_SOON = 0.02
_STOP = "stop/asked"


class Agreement(Protocol):
    """A context in which all workers stop at the same point, or none does."""

    def vote(self) -> float:
        """What goes into the control element of this worker's next reduction."""

    def count(self, votes: float) -> None:
        """The sum of all votes has come back."""

    def reached(self, clock: int) -> bool:
        """Whether to stop here; asked before every step, and answered alike wherever workers meet."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class ByVote:
    """Votes travel with each reduction of the whole vector, and all workers see their sum at the same point."""

    sentence = "stopping when this round ends, as asked; Ctrl-C again ends at once"

    def __init__(self, requested: Callable[[], bool], note: Callable[[str], None]) -> None:
        self._requested, self._note = requested, note
        self._agreed = self._told = False

    def vote(self) -> float:
        """1 for stopping."""
        return float(self._requested())

    def count(self, votes: float) -> None:
        """One vote is enough."""
        if votes:
            self._agreed = True

    def reached(self, clock: int) -> bool:  # noqa: ARG002
        """Whether a reduction brought a vote; until then the user hears what is waited for."""
        if self._agreed or self._requested():
            self._tell()
        return self._agreed

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            self._note(self.sentence)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class AtOnce(ByVote):
    """One worker asks nobody."""

    sentence = "stopping at the next step, as asked"

    def reached(self, clock: int) -> bool:  # noqa: ARG002
        """Whether it was asked to stop."""
        if self._requested():
            self._tell()
        return self._requested()


class ByStep(ByVote):
    """For workers that take the same number of steps: they need no reduction to agree on the one to stop at.

    Whoever is asked to stop posts it. When a worker's thread reads that, it holds its worker before the next
    step and posts which one that is. The last of these steps is the target: all go on to it and stop there.
    The threads post while their workers compute or communicate, so nobody is held before an exchange for which
    another one waits: it lies before the other's step, and so before the target. Votes stay, being quicker
    where there are reductions; they too are seen by all before the same step.
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
        super().__init__(requested, note)
        self._store, self._me, self._patience = store, me, patience
        self._changed = threading.Condition(threading.Lock())
        self._hold: int | None = None
        self._target: int | None = None
        self._lost: RuntimeError | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="agreement", daemon=True)

    def reached(self, clock: int) -> bool:
        """Whether this is the target; at its hold a worker waits until the target is known."""
        if self._agreed:
            self._tell()
            return True
        with self._changed:
            if self._hold is None:
                return False
            if self._hold == clock and self._target is None:
                self._wait()
        self._tell()
        return clock == self._target

    def _wait(self) -> None:
        known = self._changed.wait_for(lambda: self._target is not None or self._lost, self._patience)
        if self._lost:
            raise self._lost
        if not known:
            raise ConnectionError(f"a remote peer did not say within {self._patience:g} s where it can stop")

    def _listen(self) -> None:
        try:
            if self._asked():
                self._agree()
        except RuntimeError as error:  # the store has gone, and with it whoever kept it
            with self._changed:
                self._lost = error
                self._changed.notify_all()

    def _asked(self) -> bool:
        """Wait until some worker was asked to stop; False where the run ends first."""
        while not self._store.check([_STOP]):
            if self._requested():
                self._store.set(_STOP, "")
            elif self._over.wait(_GLANCE):
                return False
        return True

    def _agree(self) -> None:
        with self._changed:  # the worker can not pass the hold between the reading and the setting
            self._hold = self._me.clock + 1
        self._store.set(_hold_of(self._me.rank), str(self._hold))
        names = [_hold_of(rank) for rank in range(self._me.workers)]
        while (holds := self._store.peek(names)) is None:
            if self._over.wait(_SOON):
                return
        with self._changed:
            self._target = max(map(int, holds))
            self._changed.notify_all()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_GLANCE)


class ByServers(ByVote):
    """Workers stop when the servers say so; one that is asked to stop tells them with whatever it sends next."""

    sentence = "stopping when all workers have come, as asked; Ctrl-C again ends at once"

    def __init__(self, client: ServerClient, note: Callable[[str], None]) -> None:
        super().__init__(lambda: False, note)
        self._client = client

    def reached(self, clock: int) -> bool:  # noqa: ARG002
        if self._client.stopping:
            self._tell()
        return self._client.stopping


def _hold_of(rank: int) -> str:
    return f"stop/hold-{rank}"


def agreement(
    group: Group,
    meets: SyncPoint,
    me: Worker,
    *,
    requested: Callable[[], bool],
    note: Callable[[str], None],
    patience: float,
) -> Agreement:
    """How these workers come to agree; ``patience`` is how long one waits for the others' word, in seconds."""
    if group.workers == 1:
        return AtOnce(requested, note)
    if meets is SyncPoint.AFTER_ROUND:
        return ByVote(requested, note)
    return ByStep(requested, note, store=group.words(), me=me, patience=patience)
