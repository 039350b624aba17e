"""How a worker stops: at the first signal in agreement with the others, at the second at once."""

import atexit
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NoReturn, Self

from paceline.runtimes.live.timeouts import PATIENCE, RESCUE
from paceline.runtimes.prctl import die_with_parent

_LEAVE = 0


def in_every_child(signums: Iterable[int], do: Callable[[], None]) -> None:
    """Call ``do`` in every process that is forked from this one, before one of these signals can be handled there."""
    masks: list[set[int]] = []

    def before() -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, signums))

    def after() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())

    def in_child() -> None:
        do()
        after()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=in_child)


def _note(_: int, __: object) -> None:
    """The signal is in the pipe."""


class StopRequest:
    """Whether a signal has asked this worker to stop; a context in the main thread, which restores the old handlers.

    A thread reads the signals, because a worker that waits in a collective runs no Python handler. It calls
    ``hard_end`` with the signal when the patience is over, or at the second SIGINT. A signal for which there is no
    patience at all is no request: it only ends.
    """

    def __init__(self, hard_end: Callable[[int], None], patience: Mapping[int, float] = PATIENCE) -> None:
        self._hard_end, self._patience = hard_end, patience
        self._rescues: list[Callable[[], None]] = []
        self._asked, self._active = 0, False
        self._deadline = float("inf")
        self._thread = threading.Thread(target=self._listen, name="stop-request", daemon=True)

    def __call__(self) -> bool:
        return self._asked != 0 and self._patience[self._asked] > 0

    def interrupted(self) -> bool:
        """Whether somebody has asked, and it is not a failure elsewhere that ends this worker."""
        return self._asked == signal.SIGINT

    def before_hard_end(self, rescue: Callable[[], None]) -> None:
        self._rescues.append(rescue)

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._old_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._old = {signum: signal.signal(signum, _note) for signum in self._patience}
        self._active = True
        in_every_child(self._patience, self._forget)
        self._thread.start()
        return self

    def _forget(self) -> None:
        """In a child of this process: it would write its signals into the pipe that this process reads."""
        if not self._active:
            return
        self._active = False
        signal.set_wakeup_fd(-1)
        for signum, handler in self._old.items():
            if signal.getsignal(signum) is _note:
                signal.signal(signum, handler)

    def __exit__(self, *_: object) -> None:
        self._active = False
        for signum, handler in self._old.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._old_fd)
        os.write(self._write, bytes([_LEAVE]))
        self._thread.join()
        os.close(self._read)
        os.close(self._write)

    def _listen(self) -> None:
        while True:
            left = self._deadline - time.monotonic()
            ready = left > 0 and select.select([self._read], [], [], min(left, 3600.0))[0]
            for signum in os.read(self._read, 64) if ready else b"":
                if signum == _LEAVE:
                    return
                if signum in self._patience:
                    again = signum == signal.SIGINT == self._asked
                    self._asked = self._asked or signum
                    due = 0.0 if again else time.monotonic() + self._patience[signum]
                    self._deadline = min(self._deadline, due)
            if time.monotonic() >= self._deadline:
                for rescue in self._rescues:
                    # In a thread, because a disk that does not answer must not keep the process alive.
                    thread = threading.Thread(target=rescue, daemon=True)
                    thread.start()
                    thread.join(RESCUE)
                self._hard_end(self._asked)
                self._deadline = float("inf")


def die_with(launcher: int | None) -> None:
    """Get SIGTERM when the launcher dies, however it dies; one that is gone already ends this process here."""
    if launcher is not None:
        die_with_parent(signal.SIGTERM)
        if os.getppid() != launcher:
            raise SystemExit(1)


def leave(code: int) -> NoReturn:
    """End the process without taking torch apart, which costs a second and may block; threads are not awaited."""
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
