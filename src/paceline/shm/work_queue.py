"""Carries collectives out one after the other: at once where the caller waits, in a thread where it does not."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import SimpleQueue

import torch
from torch import Tensor
from torch.distributed import Work
from torch.futures import Future

from paceline.shm.barrier import PeerLost

Task = Callable[[], None]


class FinishedWork(Work):
    """Work that was done before it was returned."""

    def __init__(self, result: Sequence[Tensor]) -> None:
        super().__init__()
        self._result = result

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:  # noqa: ARG002
        return True

    is_completed = is_success = wait

    def exception(self) -> None:
        return None

    def result(self) -> list[Tensor]:
        return list(self._result)

    def get_future(self) -> Future[list[Tensor]]:
        future: Future[list[Tensor]] = Future()
        future.set_result(self.result())
        return future


class ShmWork(Work):
    """Work that a thread will do, where its future is completed."""

    def __init__(self, result: list[Tensor], task: Task, source: int = -1) -> None:
        super().__init__()
        self._result, self._task = result, task
        self.source = source
        """Where a message came from; set by the task where it could have come from any rank."""
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._future: Future[list[Tensor]] = Future()

    def run(self) -> None:
        try:
            with torch.no_grad():  # messages of tensors that want gradients
                self._task()
        except BaseException as error:  # raised where the work is waited for
            self._error = error
            self._over.set()
            self._future.set_exception(error)  # type: ignore[arg-type]  # its stub asks for a result
        else:
            self._over.set()
            self._future.set_result(self._result)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        seconds = timeout.total_seconds()
        if not self._over.wait(seconds if seconds > 0 else None):
            raise PeerLost(f"the work was not done within {seconds:g} s")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._over.is_set()

    def is_success(self) -> bool:
        return self._over.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[Tensor]:
        return self._result

    def source_rank(self) -> int:
        return self.source

    _source_rank = source_rank

    def get_future(self) -> Future[list[Tensor]]:
        return self._future


class WorkQueue:
    """Work in the order in which it was asked for, one at a time; the thread for it starts with the first of it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[ShmWork | None] = SimpleQueue()
        self._thread = threading.Thread()
        self._last: ShmWork | None = None
        self._changing, self.turn = threading.Lock(), threading.Lock()
        """Held while it changes, and while work is done."""

    @property
    def idle(self) -> bool:
        return self._last is None or self._last.is_completed()

    def now(self, task: Task, result: list[Tensor]) -> Work:
        if self.idle:
            with self.turn:
                task()
            return FinishedWork(result)
        work = self.later(task, result)
        work.wait()
        return work

    def later(self, task: Task, result: list[Tensor]) -> ShmWork:
        def alone() -> None:
            with self.turn:  # a callback may ask for work in its own thread
                task()

        return self.add(ShmWork(result, alone))

    def add(self, work: ShmWork) -> ShmWork:
        with self._changing:
            self._last = work
            self._queue.put(work)
            # In a callback of earlier work this is the thread itself, and may wait for the new work: another goes on.
            if not self._thread.is_alive() or self._thread is threading.current_thread():
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        return work

    def _run(self) -> None:
        closing = False
        while self._thread is threading.current_thread():
            if work := self._queue.get():
                work.run()
            else:
                closing = True
            with self._changing:  # what is added behind the end is done first, or by the next thread
                if closing and self._queue.empty() and self._thread is threading.current_thread():
                    self._thread = threading.Thread()

    def close(self, seconds: float | None = None) -> None:
        """Let the thread end after the queued work, and wait for that, at most ``seconds`` seconds."""
        thread = self._thread
        if thread.is_alive():
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join(seconds)
