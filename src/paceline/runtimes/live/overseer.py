"""The launcher's side of a run: sees who dies first, passes Ctrl-C on, ends who does not stop."""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from torch.distributed.elastic.agent.server.api import WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from paceline.runtimes.live.surroundings import SIGNALS, Streams

AFTER_FAILURE = 9.0
"""Seconds that workers have to end once one of them has failed."""

AFTER_INTERRUPT = 65.0
"""Seconds that workers have to save and end after Ctrl-C; a little more than they give themselves."""

BEFORE_KILL = 5
"""Seconds between the agent's SIGTERM to those that are left after a failure, and its SIGKILL."""

_GLANCE = 0.02


class Overseer:
    """Watches the workers of this host while the elastic agent runs them.

    The agent looks ten times a second and does not tell who died first; this looks closer, without reaping.
    """

    def __init__(
        self,
        *,
        failed: Callable[[int, int | None], None],
        lost_node: Callable[[], int | None],
        begun: Callable[[], bool],
    ) -> None:
        """``failed`` is told once, in a thread: which local rank failed first, and its exit code if seen.

        ``lost_node`` is asked now and again for a node that is lost, and ``begun`` whether there is anything to save.
        """
        self._failed, self._lost_node, self._begun = failed, lost_node, begun
        self._pids: Mapping[int, int] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="overseer", daemon=True)
        self.deaths: dict[int, float] = {}
        """Local rank to when it ended, in seconds since the epoch."""
        self.codes: dict[int, int] = {}
        """Local rank to its exit code, where this saw it before the agent did."""
        self.ended: set[int] = set()
        """Local ranks that this ended by SIGKILL: they did not begin anything."""
        self.failed_at: float | None = None
        """When the first worker failed."""
        self.lost: int | None = None
        """The rank of a node that was lost before anything failed here."""
        self.signal = 0
        """The first signal that asked this launcher to stop."""
        self._deadline = float("inf")

    def start(self, pids: Mapping[int, int]) -> None:
        """Watch these workers, local rank to process."""
        self._pids = pids
        self._thread.start()

    def stop(self) -> None:
        """Look a last time; harmless where nothing was started or all is over."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._done.wait(_GLANCE):
            self._look()
            self._listen()
            if time.monotonic() > self._deadline:
                self.send(signal.SIGKILL)

    def _listen(self) -> None:
        if self.failed_at is None:
            self.lost = self._lost_node()
            if self.lost is not None:
                self.failed_at, self._deadline = time.time(), 0.0

    def _look(self) -> None:
        for local_rank, pid in self._pids.items():
            if local_rank in self.deaths:
                continue
            ended, code = _glance(pid)
            if ended:
                self.deaths[local_rank] = time.time()
                if code is not None:
                    self.codes[local_rank] = code
                if code != 0 and self.failed_at is None and not self.signal:
                    self.failed_at = self.deaths[local_rank]
                    self._deadline = min(self._deadline, time.monotonic() + AFTER_FAILURE)
                    self._failed(local_rank, code)

    def send(self, signum: int) -> None:
        """Signal every worker that still runs, with whatever it has started."""
        for local_rank, pid in self._pids.items():
            if _glance(pid) == (False, None):
                if signum == signal.SIGKILL:
                    self.ended.add(local_rank)
                os.killpg(pid, signum)

    def interrupt(self, signum: int, frame: FrameType | None = None) -> None:  # noqa: ARG002
        """Handle a signal: the first asks workers that have begun to stop in agreement, the second ends them."""
        if self.signal or signum == signal.SIGQUIT or not self._begun():
            self.signal = self.signal or signum
            self.send(signal.SIGKILL)
            return
        self.signal = signum
        self._deadline = min(self._deadline, time.monotonic() + AFTER_INTERRUPT)
        # SIGINT whatever came in: workers take SIGTERM for news of a failure and have less patience then.
        self.send(signal.SIGINT)


def _glance(pid: int) -> tuple[bool, int | None]:
    """Whether a child has ended, and its code as subprocess has it; None where the agent reaped it first."""
    try:
        status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return True, None
    if status is None:
        return False, None
    return True, status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


class Agent(LocalElasticAgent):
    """Torch's agent, watched by an overseer from the moment its workers run."""

    def __init__(self, spec: WorkerSpec, variables: Mapping[str, str], overseer: Overseer) -> None:
        super().__init__(spec, Streams(variables), exit_barrier_timeout=5.0, shutdown_timeout=BEFORE_KILL)
        self._overseer = overseer
        self._ignored = [signum for signum in SIGNALS if signal.getsignal(signum) is signal.SIG_IGN]

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        pids: dict[int, Any] = super()._start_workers(worker_group)
        # The agent has just installed handlers of its own, which give no time to save and forget nohup.
        for signum in SIGNALS:
            signal.signal(signum, signal.SIG_IGN if signum in self._ignored else self._overseer.interrupt)
        self._overseer.start(pids)
        return pids

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        super()._shutdown(death_sig, timeout)
        self._overseer.stop()
