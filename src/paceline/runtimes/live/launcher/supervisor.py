"""Supervises one host's processes in the launcher's main thread: which ends first, which must end, what was asked."""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Literal

from paceline.runtimes.live import timeouts
from paceline.runtimes.live.failures import Failure, join_command, sentence
from paceline.runtimes.live.launch_folder import read_servers
from paceline.runtimes.live.launcher.hangs import Hang, HangWatch
from paceline.runtimes.live.launcher.peers import LauncherGroup
from paceline.runtimes.live.launcher.plan import LaunchPlan
from paceline.runtimes.live.launcher.processes import HostProcesses, Process
from paceline.runtimes.live.process_info import local_servers
from paceline.runtimes.live.secret import Secret, wire_key
from paceline.runtimes.live.wire.channel import connect
from paceline.runtimes.live.wire.encoding import pack
from paceline.runtimes.live.wire.messages import Goodbye

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""The signals that ask a launcher to stop."""
_NEVER = float("inf")


class Supervisor:
    """Runs processes to their end. After a failure all end within seconds, after Ctrl-C they may save first.

    With servers the run may go on without some of its workers.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        peers: LauncherGroup,
        folder: Path,
        say: Callable[[str], None],
        *,
        trains: bool = True,
        secret: Secret | None = None,
    ) -> None:
        self.plan, self.peers, self.folder, self.say, self.trains = plan, peers, folder, say, trains
        self.host = HostProcesses(plan, folder)
        self.hang_watch = HangWatch(
            self.host.all, folder, plan, say, lambda sentence: peers.notify(sentence), trains=trains
        )
        self._secret, self._notifying = secret, list[threading.Thread]()
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

    def run(self, start: Callable[[], Iterable[int]]) -> None:
        with handling(SIGNALS, lambda signum, _: self._asked.append(signum)):
            try:
                for process, pid in zip(self.host.all, start(), strict=True):
                    process.pid = pid  # at once, so that it is ended if the next one cannot be started
                while self.step():
                    time.sleep(timeouts.GLANCE)
            finally:
                self._kill()
        end = time.monotonic() + timeouts.LAST_NOTICES  # a server that takes no notice has ended
        for thread in self._notifying:
            thread.join(max(0.0, end - time.monotonic()))

    def step(self) -> bool:
        self._reap()
        self._obey()
        for process in list(self._unjudged):
            self._judge(process)
        if self.failed_at is None:
            self._listen()
            if self._over_at is None and self.host.over():
                self._over_at = time.monotonic()
            for hang in self.hang_watch.look(self._over_at):
                self._end_hung(hang)
        if time.monotonic() > self._deadline:
            self._kill()
        return bool(self.host.alive())

    def failure(self, process: Process) -> Failure | None:
        return self.host.failure(process, self.failed_at)

    def lost_node(self) -> int | None:
        """A node that is lost and that the run cannot do without."""
        lost = self.peers.lost_node()
        if lost is None or not self.plan.servers or local_servers(lost, self.plan.nodes, self.plan.servers):
            return lost
        if not self.host.trained():  # a run begins with all workers, or not at all
            return lost
        self.peers.forget(lost)
        self.say(f"{self.silence_of(lost)}; the run goes on with the others.")
        return None

    def silence_of(self, node: int) -> str:
        return f"node rank {node} ({self.peers.hosts[node]}) has not answered for {self.plan.silence:g} s"

    def join_command(self) -> list[str]:
        near = self.plan.node_rank == 0
        return join_command(self.host.run_folder(), near, read_servers(self.folder), self.plan.secret_file)

    def _reap(self) -> None:
        for process in self.host.alive():
            if process.reap() and process.code:
                self._unjudged.append(process)
                if process.role == "worker":
                    self._notify_servers(process)

    def _notify_servers(self, process: Process) -> None:
        death = Goodbye(process.rank, self.host.progress(process).step, "died")
        for endpoint in read_servers(self.folder) if self._secret else ():
            thread = threading.Thread(target=notify_death, args=(self._secret, death, endpoint), daemon=True)
            thread.start()
            self._notifying.append(thread)

    def _obey(self) -> None:
        """The first signal asks processes that have begun to stop in agreement, the second ends them."""
        while self._asked:
            signum = self._asked.pop(0)
            at_once = self.signal or signum == signal.SIGQUIT or not self.host.begun()
            self.signal = self.signal or signum
            if at_once:
                self._kill()
            else:  # by SIGINT: workers take SIGTERM for news of a failure and have less patience then
                self._end(signal.SIGINT, timeouts.AFTER_INTERRUPT)

    def _judge(self, process: Process) -> None:
        """What the failure of a process means for the run; one that may follow from another is judged later."""
        assert process.ended_at is not None
        if self.failed_at is not None or process.spared or self.signal:
            self._unjudged.remove(process)
            if self.failed_at is None and not self.plan.servers:  # the others cannot agree any more
                self._end(signal.SIGTERM, timeouts.BEFORE_KILL)
            return
        if not self.plan.servers:
            self._fail(process.ended_at)  # before its cause is looked for: the others wait for nothing
        failure = self.failure(process)
        means = "ends" if failure is None else self._meaning(failure, process)
        if means == "unclear":
            return
        self._unjudged.remove(process)
        if means == "spares":
            process.spared = True
            self._say_spared(failure)
        elif self.failed_at is None:
            self._fail(process.ended_at)
        if means == "ends" and failure is not None and failure.kind not in ("lost-peer", "stopped"):
            self.peers.post(failure)  # other hosts learn a cause while this one still clears up

    def _meaning(self, failure: Failure, process: Process) -> Literal["ends", "spares", "unclear"]:
        """What a failure means: all end, the others go on, or it may follow from one that is not known yet.

        Servers hold the run, and so does every process until it has begun; later it can do without any worker.
        """
        if failure.kind == "diverged":  # which the others will too: they train the same model
            return "ends"
        if failure.kind == "lost-peer" and self._end_causing_hangs():
            return "unclear" if self.plan.servers else "ends"
        if not self.plan.servers or failure.role == "server" or not self.host.trained():
            return "ends"
        if failure.kind == "mistake" and failure.step == 0:
            return "ends"
        if failure.kind == "lost-peer" and time.time() - (process.ended_at or 0.0) < timeouts.HEARSAY:
            return "unclear"
        return "spares"

    def _end_causing_hangs(self) -> bool:
        """A process that lost contact with one that hangs did so because of that: that one is ended now."""
        hangs = self.hang_watch.hangs.values()
        causes = [hang for hang in hangs if hang.process.role == "server" or not self.plan.servers]
        for hang in causes:
            self._end_hung(hang)
        return bool(causes)

    def _say_spared(self, failure: Failure | None) -> None:
        """Say that the run goes on, where this host still has part in it; else its end is reported in one piece."""
        if failure and (self.host.workers_left() or (self.plan.nodes > 1 and self.host.serves)):
            hint = self.join_command() if failure.kind == "expelled" else []
            self.say("\n".join([f"{sentence(failure)}; the run goes on with the others.", *hint]))

    def _listen(self) -> None:
        for notice in self.peers.notices():
            self.say(notice)
        self.lost = self.lost_node()
        if self.lost is not None:
            self.failed_at, self._deadline = time.time(), 0.0
        elif not self.signal and self.peers.failed:
            self._fail(time.time())

    def _end_hung(self, hang: Hang) -> None:
        over = self._over_at is not None
        hang.process.spared = self.plan.servers > 0 and over
        self.hang_watch.end(hang, over=over)

    def _fail(self, when: float) -> None:
        self.failed_at = when
        self._end(signal.SIGTERM, timeouts.BEFORE_KILL)

    def _end(self, signum: int, patience: float) -> None:
        for process in self.host.alive():
            process.send(signum)
        self._deadline = min(self._deadline, time.monotonic() + patience)

    def _kill(self) -> None:
        for process in self.host.alive():
            process.kill()


def notify_death(secret: Secret, death: Goodbye, endpoint: str) -> None:
    """Notify a server that a worker has died, so that it need not wait for its silence."""
    with suppress(OSError):
        channel = connect(endpoint, wire_key(secret), patience=timeouts.DEATH_NOTICE)
        channel.send(pack(death), most=1)
        channel.close()


@contextmanager
def handling(signums: Sequence[int], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handle these signals for a while, except those that are ignored, as nohup has it."""
    old = {signum: signal.getsignal(signum) for signum in signums}
    for signum, before in old.items():
        if before is not signal.SIG_IGN:
            signal.signal(signum, handler)
    try:
        yield
    finally:
        for signum, before in old.items():
            signal.signal(signum, before)
