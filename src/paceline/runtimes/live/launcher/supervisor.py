"""Watches one host's processes in the launcher's main thread: who ends first, who must end, and what was asked."""

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from types import FrameType

from paceline.runtimes.live.launcher.hangs import Episode, HangWatch
from paceline.runtimes.live.launcher.processes import Process
from paceline.runtimes.live.timeouts import AFTER_INTERRUPT, BEFORE_KILL, GLANCE

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""The signals that ask a launcher to stop."""

_NEVER = float("inf")


class Weight(Enum):
    """What one process's failure means for the others."""

    ENDS = "ends"
    """The run has failed: all must end."""
    SPARES = "spares"
    """The others go on."""
    UNCLEAR = "unclear"
    """It may follow from a failure that is not known yet: ask again."""


class Supervisor:
    """Runs processes to their end. After a failure all end within BEFORE_KILL, after Ctrl-C they may save first."""

    def __init__(
        self,
        processes: Sequence[Process],
        *,
        weigh: Callable[[Process], Weight],
        died: Callable[[Process], None],
        lost_node: Callable[[], int | None],
        failed_elsewhere: Callable[[], bool],
        begun: Callable[[], bool],
        hangs: HangWatch,
        over: Callable[[], bool],
        spares: bool,
    ) -> None:
        """``weigh`` is asked what a failure means until it is clear, ``died`` is told of each at once.

        ``lost_node`` is asked for a node that is lost, ``failed_elsewhere`` whether another host has told of a failure,
        ``begun`` whether there is anything to save, and ``over`` whether the run is, whoever still lives. A run that
        ``spares`` may go on without some of its processes.
        """
        self.processes = processes
        self._weigh, self._died, self._lost_node, self._begun = weigh, died, lost_node, begun
        self._failed_elsewhere, self._hangs, self._over, self._spares = failed_elsewhere, hangs, over, spares
        self._unjudged: list[Process] = []
        self._asked: list[int] = []
        self._deadline = _NEVER
        self._over_at: float | None = None
        self.failed_at: float | None = None
        """When the run failed: when the first process did whose failure ends all."""
        self.lost: int | None = None
        """The rank of a node that was lost before anything failed here."""
        self.signal = 0
        """The first signal that asked this launcher to stop."""

    def run(self, start: Callable[[], None]) -> None:
        """Start the processes and return when all have ended; call it in the main thread."""
        with hearing(SIGNALS, self._hear):
            try:
                start()
                while self.step():
                    time.sleep(GLANCE)
            finally:
                for process in self._alive():
                    process.kill()

    def step(self) -> bool:
        """Look once, and act; False when all have ended."""
        self._reap()
        self._obey()
        self._judge()
        if self.failed_at is None:
            self._listen()
            self._watch()
        if time.monotonic() > self._deadline:
            self._kill(self._alive())
        return any(True for _ in self._alive())

    def _alive(self) -> Iterator[Process]:
        return (process for process in self.processes if process.child is not None and process.alive)

    def _reap(self) -> None:
        for process in self._alive():
            if process.reap():
                process.ended_at = time.time()
                if process.code:
                    self._unjudged.append(process)
                    self._died(process)

    def _hear(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._asked.append(signum)

    def _obey(self) -> None:
        """The first signal asks processes that have begun to stop in agreement, the second ends them."""
        while self._asked:
            signum = self._asked.pop(0)
            at_once = self.signal or signum == signal.SIGQUIT or not self._begun()
            self.signal = self.signal or signum
            if at_once:
                self._kill(self._alive())
                continue
            self._deadline = min(self._deadline, time.monotonic() + AFTER_INTERRUPT)
            # SIGINT whatever came in: workers take SIGTERM for news of a failure and have less patience then.
            self._send(signal.SIGINT)

    def _judge(self) -> None:
        for process in list(self._unjudged):
            if self.failed_at is not None or process.spared:
                self._unjudged.remove(process)
            elif self.signal:
                self._unjudged.remove(process)
                if not self._spares:  # without it the others cannot agree any more
                    self._end_soon()
            else:
                self._judge_one(process)

    def _judge_one(self, process: Process) -> None:
        assert process.ended_at is not None
        if not self._spares:
            self._fail(process.ended_at)  # before its cause is looked for: the others wait for nothing
        weight = self._weigh(process)
        if weight is Weight.UNCLEAR:
            return
        self._unjudged.remove(process)
        if weight is Weight.SPARES:
            process.spared = True
        elif self.failed_at is None:
            self._fail(process.ended_at)

    def _listen(self) -> None:
        """Other hosts may have failed, or gone silent: then there is nobody to wait for."""
        self.lost = self._lost_node()
        if self.lost is not None:
            self.failed_at, self._deadline = time.time(), 0.0
        elif not self.signal and self._failed_elsewhere():
            self._fail(time.time())

    def _watch(self) -> None:
        if self._over_at is None and self._over():
            self._over_at = time.monotonic()
        for episode in self._hangs.look(self._over_at):
            self.end_hung(episode)

    def end_hung(self, episode: Episode) -> None:
        """End a process that stands still; its failure counts as any other unless the run is over."""
        episode.process.spared = self._spares and self._over_at is not None
        self._hangs.end(episode, over=self._over_at is not None)

    def _fail(self, when: float) -> None:
        self.failed_at = when
        self._end_soon()

    def _end_soon(self) -> None:
        self._send(signal.SIGTERM)
        self._deadline = min(self._deadline, time.monotonic() + BEFORE_KILL)

    def _send(self, signum: int) -> None:
        for process in self._alive():
            process.send(signum)

    def _kill(self, processes: Iterable[Process]) -> None:
        for process in processes:
            process.kill()


@contextmanager
def hearing(signums: Sequence[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle these signals for a while, but for those that are ignored, as nohup has it."""
    old = {signum: signal.getsignal(signum) for signum in signums}
    for signum, before in old.items():
        if before is not signal.SIG_IGN:
            signal.signal(signum, handler)
    try:
        yield
    finally:
        for signum, before in old.items():
            signal.signal(signum, before)
