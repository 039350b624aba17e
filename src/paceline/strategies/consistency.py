"""Which worker may proceed: pure logic, without time, tensors or messages."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

MayProceed = Callable[[int, int, int, int], bool]
"""Whether a worker that has pushed proceeds: by its own clock, and the slowest clock of all active workers, how many
there are, and how many of them wait."""


@dataclass(slots=True)
class WorkerState:
    """What a gate knows of one worker."""

    clock: int
    """Gradients pushed, on top of the slowest worker's clock when this one joined."""
    waiting: bool = False
    """It has pushed, and the rule decides when it proceeds."""
    paused: bool = False
    """It is synchronizing and delays no other worker."""
    syncing: bool = False
    """It is synchronizing, or has not pushed since."""


class Gate:
    """Lets workers proceed by a rule, while workers join, pause, leave or die.

    The initial workers of a run proceed together, when all of them have joined: the first round is a whole one.
    """

    def __init__(self, may_proceed: MayProceed, initial_workers: Collection[int] = ()) -> None:
        self._may_proceed = may_proceed
        self.workers: dict[int, WorkerState] = {}
        self._missing = set(initial_workers)
        self._joining: set[int] = set()
        self._released: set[int] = set()

    def join(self, worker: int) -> None:
        """Admit a worker when no synchronization is under way; until then it delays no other worker."""
        self.leave(worker)
        self._joining.add(worker)

    def enter(self, worker: int) -> None:
        """Admit a worker that another gate has admitted: at once, because the others may wait for it."""
        self.leave(worker)
        if self._missing:
            self._joining.add(worker)
        else:
            self.release(worker)

    def push(self, worker: int) -> None:
        """A worker has finished a step and waits; one that was removed in the meantime is taken back."""
        state = self._state(worker)
        state.clock += 1
        state.waiting, state.paused, state.syncing = True, False, False

    def release(self, worker: int) -> None:
        self._state(worker).waiting = False
        self._released.add(worker)

    def pause(self, worker: int) -> None:
        """A worker synchronizes with the others, until each of them has pushed again."""
        state = self._state(worker)
        state.waiting, state.paused, state.syncing = False, True, True

    def resume(self, worker: int) -> None:
        self._state(worker).paused = False
        self._released.add(worker)

    def leave(self, worker: int) -> None:
        self.workers.pop(worker, None)
        self._missing.discard(worker)
        self._joining.discard(worker)
        self._released.discard(worker)

    @property
    def present(self) -> int:
        """How many workers there are; at least 1, because the last one's gradient may outlive it."""
        return max(1, len(self.workers))

    def proceeding(self) -> list[int]:
        """The workers that may proceed now, by rank; each is named once."""
        # Before a new worker is counted, or it would hold back a whole round.
        found = {*self._released, *self._allowed()}
        found |= self._admitted()
        self._released.clear()
        for worker in found:
            self.workers[worker].waiting = False
        return sorted(found)

    def _allowed(self) -> list[int]:
        waiting = [worker for worker, state in self.workers.items() if state.waiting]
        if not waiting:
            return []
        clocks = [state.clock for state in self.workers.values() if not state.paused]
        slowest, active = min(clocks), len(clocks)
        return [
            worker
            for worker in waiting
            if self._may_proceed(self.workers[worker].clock, slowest, active, len(waiting))
        ]

    def _admitted(self) -> set[int]:
        if self._missing or any(state.syncing for state in self.workers.values()):
            return set()
        joining, self._joining = self._joining, set()
        for worker in joining:
            self._state(worker)
        return joining

    def _state(self, worker: int) -> WorkerState:
        """The state of a worker; a new one starts at the clock of the slowest active worker."""
        if worker not in self.workers:
            active = [state for state in self.workers.values() if not state.paused] or self.workers.values()
            self.workers[worker] = WorkerState(min((state.clock for state in active), default=0))
        return self.workers[worker]
