"""Reductions of a live worker that go on while it computes."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from paceline.codecs.reduction import NotFinite
from paceline.runtimes.live.worker.comm import PendingSum, SoloComm
from paceline.runtimes.live.worker.recorder import StepRecorder
from paceline.runtimes.replica import Replica
from paceline.strategies.base import Worker
from paceline.strategies.effects import AllReduce


@dataclass(slots=True)
class ReductionResult:
    """What an all-reduce of one worker came to besides its tensor; the sum of votes to stop is 0 where none travel."""

    total_weight: float
    votes: float = 0.0
    sent: int = 0
    received: int = 0
    begun: float = 0.0
    """When all workers had joined, as far as is known."""


Reduce = Callable[[AllReduce, Tensor], ReductionResult]
"""Reduces a tensor in place as an effect asks for; called in another thread."""


class StartedReduction:
    """One reduction under way: the thread works on a copy of the tensor, which ``Wait`` hands over."""

    def __init__(self, effect: AllReduce) -> None:
        self.effect, self.values = effect, effect.tensor.clone()
        self.begun, self.ended = perf_counter(), 0.0
        self.wait: PendingSum
        self.exchanged = ReductionResult(effect.weight)


class ReductionThread:
    """Carries reductions out in one thread, in the order in which they were started, which is that of all workers.

    A failure is raised at the worker's next step, or where it waits.
    """

    def __init__(self, me: Worker, replica: Replica, comm: SoloComm, recorder: StepRecorder) -> None:
        self._me, self._replica, self._comm, self._recorder = me, replica, comm, recorder
        self._pending: list[StartedReduction] = []
        self._error: BaseException | None = None

    def start(self, effect: AllReduce, reduce: Reduce) -> None:
        one, clock = StartedReduction(effect), self._me.clock

        def task() -> None:
            if self._error is not None:  # the other workers wait in an exchange that this one has left
                return
            try:
                one.exchanged = reduce(effect, one.values)
            except BaseException as error:
                self._error = error
                if isinstance(error, NotFinite):
                    raise self._replica.not_finite(error, self._me, effect, clock) from error
                raise
            one.ended = perf_counter()

        one.wait = self._comm.start(self._beside(task))
        self._pending.append(one)

    @property
    def under_way(self) -> bool:
        return bool(self._pending)

    def raise_failure(self) -> None:
        """Raise what has gone wrong in the meantime: another worker may have died."""
        if self._error is not None:
            for one in self._pending:
                one.wait()

    def wait(self) -> list[ReductionResult]:
        """Wait for all, and write their results into their tensors."""
        arrived, found = perf_counter(), []
        for one in self._pending:
            one.wait()
            one.effect.tensor.copy_(one.values)
            self._recorder.hide(max(one.begun, one.exchanged.begun), min(one.ended, arrived))
            found.append(one.exchanged)
        self._pending.clear()
        return found

    def _beside(self, task: Callable[[], None]) -> Callable[[], None]:
        """On a GPU, exchanges have a stream of their own, or computing would wait for them."""
        device = self._replica.device
        if device.type != "cuda":
            return task
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))

        def beside() -> None:
            with torch.cuda.stream(stream):
                task()
                stream.synchronize()

        return beside
