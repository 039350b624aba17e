"""Supervises one host's processes in the launcher's main thread, and reports how the run ended."""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Literal

from paceline.errors import BEFORE_FIRST_STEP, RunFailed, ScriptExited, UsageError
from paceline.records.folder import RunFolder, short_path
from paceline.runtimes.live import failures, timeouts
from paceline.runtimes.live.failures import Failure, sentence
from paceline.runtimes.live.launch_folder import read_servers
from paceline.runtimes.live.launcher.hangs import HangWatch
from paceline.runtimes.live.launcher.peers import LauncherGroup
from paceline.runtimes.live.launcher.processes import HostProcesses, LaunchPlan, Process
from paceline.runtimes.live.process_info import file_stem, local_servers
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.timeouts import BEFORE_KILL, HEARSAY
from paceline.runtimes.live.wire.channel import connect
from paceline.runtimes.live.wire.encoding import pack
from paceline.runtimes.live.wire.messages import Goodbye
from paceline.units import show_seconds

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_NEVER = float("inf")


class Supervisor:
    """Runs processes to their end. With servers the run may go on without some of its workers."""

    def __init__(
        self, plan: LaunchPlan, peers: LauncherGroup, folder: Path, say: Callable[[str], None]
    ) -> None:
        self.plan, self.peers, self.folder, self.say = plan, peers, folder, say
        self.host = HostProcesses(plan, folder)
        self.hang_watch = HangWatch(self.host.all, plan, say, lambda sentence: peers.notify(sentence))
        self._notifying: list[threading.Thread] = []
        self._asked: list[int] = []
        self._deadline = _NEVER
        self.failed_at: float | None = None
        """When the run failed: when the first process did whose failure ends all."""
        self.lost: int | None = None
        """The rank of a node that was lost before anything failed here."""
        self.signal = 0

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
        for process in self.host.all:
            process.left_early = process.left_early or self._has_left_early(process)
            if process.failed and not process.judged:
                self._judge(process)
        if self.failed_at is None:
            self._listen()
            alone = self.plan.servers and self.plan.nodes == 1 and not self.host.workers_left()
            if alone or any(process.is_done for process in self.host.all):
                self.hang_watch.run_is_over()
            for hang in self.hang_watch.look():
                self.hang_watch.end(hang)
        if self.plan.kind == "script" and not self.host.workers_left():
            self._end_unused()
        if time.monotonic() > self._deadline:
            self._kill()
        return bool(self.host.alive())

    def _has_left_early(self, process: Process) -> bool:
        """A script that has never joined the run may end as it likes, unless others have."""
        if process.code != 0 or process.is_done or self.signal:
            return False
        if self.plan.kind != "script" or process.progress().phase != "starting":
            return True
        return any(worker.progress().phase != "starting" for worker in self.host.workers if worker.alive)

    def _end_unused(self) -> None:
        """The servers of a run that its script has never joined: nobody will tell them that it is over."""
        for process in self.host.alive():
            if process.progress().run is None:
                process.spared = True
                process.kill()

    def lost_node(self) -> int | None:
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
        if self.plan.kind == "script":
            return []
        near = self.plan.node_rank == 0
        return failures.join_command(
            self.host.run_folder(), near, read_servers(self.folder), self.plan.secret_file
        )

    def _reap(self) -> None:
        for process in self.host.alive():
            if not process.reap() or not process.code or process.info.role == "server":
                continue
            death = Goodbye(process.info.rank, process.progress().step, "died")
            for endpoint in read_servers(self.folder):
                told = (self.peers.secret, death, endpoint)
                self._notifying.append(threading.Thread(target=notify_death, args=told, daemon=True))
                self._notifying[-1].start()

    def _obey(self) -> None:
        """The first signal asks processes that have begun to stop in agreement, the second ends them."""
        while self._asked:
            signum = self._asked.pop(0)
            begun = all(worker.progress().at for worker in self.host.workers if worker.alive)
            at_once = self.signal or signum == signal.SIGQUIT or not begun  # there is nothing to save
            self.signal = self.signal or signum
            if at_once:
                self._kill()
            else:  # by SIGINT: workers take SIGTERM for news of a failure and have less patience then
                self._end(signal.SIGINT, timeouts.AFTER_INTERRUPT)

    def _judge(self, process: Process) -> None:
        """What the failure of a process means for the run; one that may follow from another is judged later."""
        assert process.ended_at is not None
        if self.failed_at is not None or process.spared or self.signal:
            process.judged = True
            if self.failed_at is None and not self.plan.servers:  # the others can no longer agree
                self._end(signal.SIGTERM, timeouts.BEFORE_KILL)
            return
        failure = process.failure(self.failed_at)
        means = self._meaning(failure, process)  # which ends one that hangs before it is told to end itself
        if not self.plan.servers:
            self._fail(process.ended_at)
        process.judged = means != "unclear"
        if means == "spares":
            process.spared = True
            self._say_spared(failure)
        elif means == "ends" and self.failed_at is None:
            self._fail(process.ended_at)
        if means == "ends" and failure.kind not in ("lost-peer", "stopped"):
            self.peers.post(failure)  # other hosts learn a cause while this one still clears up

    def _meaning(self, failure: Failure, process: Process) -> Literal["ends", "spares", "unclear"]:
        """All end, the others go on, or it may follow from a failure that is not known yet.

        Servers hold the run, and so does every process until it has begun; later it can do without any worker.
        """
        if failure.kind == "diverged":  # which the others will too: they train the same model
            return "ends"
        if failure.kind == "lost-peer" and self._end_causing_hangs():
            return "unclear" if self.plan.servers else "ends"
        if not self.plan.servers or failure.role == "server" or not self.host.trained():
            return "ends"
        if self.plan.kind == "script" and failure.kind in ("error", "exited", "mistake"):
            return "ends"  # what one script does wrong the others will do too
        if failure.kind == "mistake" and failure.step == 0:
            return "ends"
        if failure.kind == "lost-peer" and time.time() - (process.ended_at or 0.0) < timeouts.HEARSAY:
            return "unclear"
        return "spares"

    def _end_causing_hangs(self) -> bool:
        """A process that lost contact with one that hangs did so because of that: that one is ended now."""
        hangs = self.hang_watch.hangs.values()
        may_go_on = self.plan.servers > 0 and self.plan.kind == "training"
        causes = [hang for hang in hangs if hang.process.info.role == "server" or not may_go_on]
        for hang in causes:
            self.hang_watch.end(hang)
        return bool(causes)

    def _say_spared(self, failure: Failure) -> None:
        """Say that the run goes on, where this host still has part in it; else its end is reported in one piece."""
        if self.host.workers_left() or (self.plan.nodes > 1 and self.host.serves):
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
    with suppress(OSError, UsageError):
        channel = connect(endpoint, secret.key("wire"), patience=timeouts.DEATH_NOTICE)
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


class ExitReporter:
    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor, self._plan, self._host = supervisor, supervisor.plan, supervisor.host
        self._run = self._host.run_folder()
        self._goes_on_elsewhere = (
            self._plan.servers > 0 and supervisor.failed_at is None and not self._host.serves
        )
        """Whether the run has lost this host's workers only."""

    def exit_code(self) -> int:
        """0 done, 3 a failed check, 130 interrupted; or an exception with the root cause."""
        if self._run is not None and self._plan.servers and self._plan.node_rank == 0:  # where server 0 was
            RunFolder(self._run).join.unlink(missing_ok=True)  # which it leaves where it was killed
            RunFolder(self._run).join_secret.unlink(missing_ok=True)
        if self._supervisor.signal:
            return self._interrupted()
        servers_failed = self._plan.servers and self._supervisor.failed_at is not None
        if servers_failed or not self._host.ended_well():
            raise self._failed()
        kinds = {note.kind for note in self._host.notes().values()}
        if "interrupted" in kinds:
            return self._report_saved()
        return 3 if "check" in kinds else 0

    def _failed(self) -> UsageError | RunFailed:
        supervisor, cause = self._supervisor, self._cause()
        if cause.kind in ("lost-peer", "stopped", "interrupted"):
            cause = self._cause_elsewhere(cause)
        elif self._goes_on_elsewhere:
            text = f"{sentence(cause)}; no worker is left on this host, and the run goes on without it."
            return RunFailed("\n".join([text, *supervisor.join_command()]))
        else:
            # A failure that was never judged, as in a run that was over, is not known to the others.
            supervisor.peers.post(cause)
        if cause.kind == "mistake":
            return UsageError(cause.message)
        lost_servers = cause.kind == "lost-host" and self._plan.servers > 0 and not self._host.serves
        if lost_servers or (cause.kind in ("lost-peer", "stopped") and self._goes_on_elsewhere):
            text = (
                f"{sentence(cause)}.\nWhat is safe is known where the servers are; if the run goes on there:"
            )
            return RunFailed("\n".join([text, *supervisor.join_command()]))
        if found := cause.traceback or self._script_traceback(cause):
            who = file_stem(cause.rank, cause.role).replace("-", " ")
            supervisor.say(f"the traceback of {who} follows\n{found.rstrip()}")
        if cause.kind == "exited" and self._plan.kind == "script":
            return ScriptExited("\n".join(self._report(cause)), cause.code)
        return RunFailed("\n".join(self._report(cause)))

    def _script_traceback(self, cause: Failure) -> str:
        """What a script has raised is shown at once; of a job it is in the run folder only."""
        if self._plan.kind != "script" or cause.kind != "error" or self._run is None:
            return ""
        with suppress(OSError):
            return RunFolder(self._run).failure(file_stem(cause.rank, cause.role)).read_text()
        return ""

    def _report(self, cause: Failure) -> list[str]:
        lines = [f"{sentence(cause, self._plan.kind)}{self._others(cause)}."]
        safe = self._safe() if self._run else [f"Safe: nothing was saved yet; {failures.AGAIN}"]
        if self._plan.kind == "measurement":
            safe = [failures.AGAIN.capitalize()]
        elif self._plan.kind == "script":
            safe = failures.recorded(self._run)
        elif self._run and cause.kind == "error":
            saved = RunFolder(self._run).failure(file_stem(cause.rank, cause.role))
            lines += [f"Traceback: {short_path(saved)}"] if saved.exists() else []
        return lines + [failures.what_next(line, cause) for line in safe]

    def _cause(self) -> Failure:
        supervisor = self._supervisor
        failed_at = supervisor.failed_at
        found = {process: process.failure(failed_at) for process in self._host.all if process.failed}
        # A process with exit code 0 may have left a note, too.
        found |= self._host.notes()
        if failed_at is not None:  # processes whose end ended nothing are not the cause
            found = {process: failure for process, failure in found.items() if not process.spared}
        return failures.root_cause(
            found.values() or [Failure.of(self._host.all[0].info, "stopped", 0, "was ended")]
        )

    def _cause_elsewhere(self, cause: Failure) -> Failure:
        supervisor, lost = self._supervisor, self._supervisor.lost
        if lost is None:
            return supervisor.peers.posted(HEARSAY) or cause
        host = supervisor.peers.hosts[lost]
        return replace(cause, kind="lost-host", host=host, message=supervisor.silence_of(lost))

    def _others(self, cause: Failure) -> str:
        failed_at = self._supervisor.failed_at
        if self._plan.servers and failed_at is None:
            return "; no worker was left" if self._plan.nodes == 1 else "; no worker was left on this host"
        deaths = {
            (process.info.role, process.info.rank): process.ended_at
            for process in self._host.all
            if process.ended_at
        }
        if failed_at is None or len(deaths) < 2 or (cause.role, cause.rank) not in deaths:
            return ""
        return f"; the others stopped after {show_seconds(max(deaths.values()) - failed_at)}"

    def _interrupted(self) -> int:
        if self._host.ended_well():
            return self._report_saved()
        step = max(worker.progress().step for worker in self._host.workers)
        self._supervisor.peers.post(Failure.of(self._host.all[0].info, "interrupted", step))
        self._supervisor.say("\n".join(["interrupted before the workers could save.", *self._safe()]))
        return 130

    def _report_saved(self) -> int:
        """Every host has its own command to go on with; a launcher that does not answer was what ended the run."""
        lines, peers = self._safe(), self._supervisor.peers
        silent = peers.unanswered
        if silent and not self._supervisor.signal:
            gone = ", ".join(f"{node} ({peers.hosts[node]})" for node in sorted(silent))
            text = f"the launcher of node rank {gone} has gone; all workers have stopped in agreement."
            raise RunFailed("\n".join([text, *lines]))
        if lines:
            self._supervisor.say("\n".join(["interrupted; all workers have stopped in agreement.", *lines]))
        elif self._plan.kind != "measurement" and not self._host.trained():
            self._supervisor.say(BEFORE_FIRST_STEP)
        return 130

    def _safe(self) -> list[str]:
        supervisor = self._supervisor
        if self._run is None or self._plan.kind == "measurement":
            return []
        if self._plan.kind == "script":
            return failures.recorded(self._run)
        peers, patience = supervisor.peers, BEFORE_KILL + HEARSAY
        return failures.safe(
            self._run, self._plan.settings, lambda mine: peers.exchange_steps(mine, supervisor.lost, patience)
        )
