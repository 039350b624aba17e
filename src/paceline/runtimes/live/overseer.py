"""The launcher's side of a run: sees who dies first, passes Ctrl-C on, ends who does not stop."""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum
from types import FrameType
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from paceline.runtimes.live.surroundings import SIGNALS, Streams

AFTER_FAILURE = 9.0
"""Seconds that workers have to end once one of them has failed."""

AFTER_INTERRUPT = 65.0
"""Seconds that workers have to save and end after Ctrl-C; a little more than they give themselves."""

BEFORE_KILL = 5
"""Seconds between the agent's SIGTERM to those that are left after a failure, and its SIGKILL."""

_GLANCE = 0.02


class Weight(Enum):
    """What one process's failure means for the others."""

    ENDS = "ends"
    """The run has failed: all must end."""
    SPARES = "spares"
    """The others go on."""
    UNCLEAR = "unclear"
    """It may follow from a failure that is not known yet: ask again."""


class Overseer:
    """Watches the workers and servers of this host while the elastic agent runs them.

    The agent looks ten times a second and does not tell who died first; this looks closer, without reaping.
    """

    def __init__(
        self,
        *,
        failed: Callable[[int, int | None], Weight],
        lost_node: Callable[[], int | None],
        failed_elsewhere: Callable[[], bool],
        begun: Callable[[], bool],
        spares: bool = False,
    ) -> None:
        """``failed`` is told in a thread, until it says that all must end: which local rank, and its exit code if seen.

        ``lost_node`` is asked now and again for a node that is lost, ``failed_elsewhere`` whether another host has told
        of a failure, and ``begun`` whether there is anything to save. Where it never ``spares`` the others, the agent
        ends them by itself.
        """
        self._failed, self._lost_node, self._begun = failed, lost_node, begun
        self._failed_elsewhere, self._spares = failed_elsewhere, spares
        self._pids: Mapping[int, int] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="overseer", daemon=True)
        self.deaths: dict[int, float] = {}
        """Local rank to when it ended, in seconds since the epoch."""
        self.codes: dict[int, int] = {}
        """Local rank to its exit code, where this saw it before the agent did."""
        self.ended: set[int] = set()
        """Local ranks that this ended by SIGKILL: they did not begin anything."""
        self.spared: set[int] = set()
        """Local ranks whose failure did not end the run."""
        self._unjudged: list[int] = []
        self.failed_at: float | None = None
        """When the run failed: when the first process did whose failure ends all."""
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
        if self.failed_at is not None:
            return
        self.lost = self._lost_node()
        if self.lost is not None:
            self.failed_at, self._deadline = time.time(), 0.0
        elif self._spares and not self.signal and self._failed_elsewhere():
            self._fail(time.time())
            self.send(signal.SIGTERM)  # nobody here has failed, so the agent would let them go on

    def _fail(self, when: float) -> None:
        self.failed_at = when
        self._deadline = min(self._deadline, time.monotonic() + AFTER_FAILURE)

    def _look(self) -> None:
        for local_rank, pid in self._pids.items():
            if local_rank in self.deaths:
                continue
            ended, code = _glance(pid)
            if ended:
                self.deaths[local_rank] = time.time()
                if code is not None:
                    self.codes[local_rank] = code
                if code != 0 and not self.signal:
                    self._unjudged.append(local_rank)
        for local_rank in list(self._unjudged):
            self._judge(local_rank)

    def _judge(self, local_rank: int) -> None:
        if self.failed_at is not None:
            self._unjudged.clear()
            return
        if not self._spares:
            self._fail(self.deaths[local_rank])  # the agent acts at once: when it began must be known
        weight = self._failed(local_rank, self.codes.get(local_rank))
        if weight is Weight.UNCLEAR:
            return
        self._unjudged.remove(local_rank)
        if weight is Weight.SPARES:
            self.spared.add(local_rank)
        elif self.failed_at is None:
            self._fail(self.deaths[local_rank])

    @property
    def keeps_going(self) -> bool:
        """Whether the agent is to let everybody go on, whoever has ended."""
        watched = self._thread.is_alive() and len(self.deaths) < len(self._pids)
        return self._spares and self.failed_at is None and watched

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

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """As torch's, which ends all when one has failed; not where the overseer spares the others."""
        if not self._overseer.keeps_going:
            result: RunResult = super()._monitor_workers(worker_group)
            return result
        assert isinstance(self._pcontext, SubprocessContext)
        for local_rank in list(self._overseer.deaths):
            self._pcontext.subprocess_handlers[
                local_rank
            ].proc.poll()  # leaves no zombies while the run goes on
        return RunResult(state=WorkerState.HEALTHY)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        super()._shutdown(death_sig, timeout)
        self._overseer.stop()
