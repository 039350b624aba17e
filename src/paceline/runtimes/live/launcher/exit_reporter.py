"""What a failure means for a run, and how the run's end is told: an exit code, or the root cause."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import BEFORE_FIRST_STEP, RunFailed, UsageError
from paceline.records.folder import RunFolder
from paceline.runtimes.live.failure_report import join, sentence, verdict
from paceline.runtimes.live.failures import Failure, root_cause
from paceline.runtimes.live.launch_folder import read_servers
from paceline.runtimes.live.launcher.plan import Launch
from paceline.runtimes.live.launcher.processes import Process
from paceline.runtimes.live.launcher.rendezvous import Rendezvous
from paceline.runtimes.live.launcher.supervisor import Supervisor, Weight
from paceline.runtimes.live.launcher.witness import Witness
from paceline.runtimes.live.process_info import host_name, local_servers
from paceline.runtimes.live.safe_checkpoints import CompleteSteps, safe
from paceline.runtimes.live.timeouts import BEFORE_KILL, HEARSAY
from paceline.units import show_seconds

if TYPE_CHECKING:
    from paceline.runtimes.live.launcher.hangs import HangWatch


class ExitReporter:
    """Weighs failures while processes run, and tells the end when all have ended."""

    supervisor: Supervisor
    hangs: "HangWatch"

    def __init__(
        self,
        plan: Launch,
        meeting: Rendezvous,
        folder: Path,
        witness: Witness,
        say: Callable[[str], None],
        *,
        trains: bool,
    ) -> None:
        self.plan, self.meeting, self.folder, self.witness = plan, meeting, folder, witness
        self.say, self.trains = say, trains

    def weigh(self, process: Process) -> Weight:
        """What a process's failure means; other hosts learn a cause while this one still clears up."""
        failure = self.witness.failure(process)
        if failure is None:
            return Weight.ENDS
        weight = self._weight_of(failure, process)
        if weight is Weight.SPARES and self._goes_on_here():
            hint = self._join() if failure.kind == "expelled" else []
            self.say("\n".join([f"{sentence(failure)}; the run goes on with the others.", *hint]))
        if weight is Weight.ENDS and failure.kind not in ("lost-peer", "stopped"):
            self.meeting.bulletin.post(failure)
        return weight

    def _goes_on_here(self) -> bool:
        """Whether anybody of this host is left in the run; else its end is told in one piece."""
        return self.witness.workers_left() or (self.plan.nodes > 1 and self.witness.serves)

    def _weight_of(self, failure: Failure, process: Process) -> Weight:
        """Servers hold the run, and so does everybody until it has begun; later it can do without any worker."""
        if failure.kind == "diverged":  # which the others will too: they train the same model
            return Weight.ENDS
        if failure.kind == "lost-peer" and self._blame_a_hang():
            return Weight.UNCLEAR if self.plan.servers else Weight.ENDS
        if not self.plan.servers or failure.role == "server" or not self.witness.anybody_trained():
            return Weight.ENDS
        if failure.kind == "mistake" and failure.step == 0:
            return Weight.ENDS
        if failure.kind == "lost-peer" and time.time() - (process.ended_at or 0.0) < HEARSAY:
            return Weight.UNCLEAR
        return Weight.SPARES

    def _blame_a_hang(self) -> bool:
        """Who has lost contact with a process that stands still did so because of that: it is ended now."""
        culprits = [
            episode
            for process, episode in self.hangs.episodes.items()
            if process.role == "server" or not self.plan.servers
        ]
        for episode in culprits:
            self.supervisor.end_hung(episode)
        return bool(culprits)

    def lost_node(self) -> int | None:
        """A node that is lost and that the run cannot do without."""
        lost = self.meeting.lost()
        if lost is None or not self.plan.servers or local_servers(lost, self.plan.nodes, self.plan.servers):
            return lost
        if not self.witness.anybody_trained():  # a run begins with everybody, or not at all
            return lost
        self.meeting.bulletin.forget(lost)
        self.say(f"{self._silence_of(lost)}; the run goes on with the others.")
        return None

    def _silence_of(self, node: int) -> str:
        return f"node rank {node} ({self.meeting.hosts[node]}) has not answered for {self.plan.silence:g} s"

    def tell(self) -> int:
        """The exit code of a run whose processes have all ended, or an exception with the root cause."""
        self._close_join()
        if self.supervisor.signal:
            return self._interrupted()
        if self._has_failed():
            raise self._failed()
        kinds = {note.kind for note in self.witness.notes().values()}
        if "interrupted" in kinds:
            return self._tell_saved()
        return 3 if "check" in kinds else 0

    def _close_join(self) -> None:
        """A server that was killed has left the files that say how to join its run."""
        run = self.witness.run_folder()
        if run is not None and self.plan.servers and self.plan.node_rank == 0:  # where server 0 was
            RunFolder(run).join.unlink(missing_ok=True)
            RunFolder(run).join_secret.unlink(missing_ok=True)

    def _has_failed(self) -> bool:
        if not self.plan.servers:
            return self._failed_codes()
        return self.supervisor.failed_at is not None or not self.witness.ended_well()

    def _failed_codes(self) -> bool:
        return any(process.code for process in self.witness.processes)

    def _failed(self) -> UsageError | RunFailed:
        cause = self._cause()
        if cause.kind in ("lost-peer", "stopped", "interrupted"):
            cause = self._hearsay(cause)
        elif self._goes_on_elsewhere():
            told = f"{sentence(cause)}; no worker is left on this host, and the run goes on without it."
            return RunFailed("\n".join([told, *self._join()]))
        else:
            # Where its failure was never weighed, as in a run that was over, nobody has told the others.
            self.meeting.bulletin.post(cause)
        if cause.kind == "mistake":
            return UsageError(cause.message)
        if self._lost_the_servers(cause):
            told = (
                f"{sentence(cause)}.\nWhat is safe is known where the servers are; if the run goes on there:"
            )
            return RunFailed("\n".join([told, *self._join()]))
        if cause.traceback:
            who = f"{'server' if cause.role == 'server' else 'rank'} {cause.rank}"
            self.say(f"the traceback of {who} follows\n{cause.traceback.rstrip()}")
        text = verdict(
            cause,
            run=self.witness.run_folder(),
            others=self._others(cause),
            safe=self._safe(),
            trains=self.trains,
        )
        return RunFailed(text)

    def _lost_the_servers(self, cause: Failure) -> bool:
        """Whether this host alone may have left: nobody has told it that the run, which is kept elsewhere, ended."""
        if cause.kind == "lost-host":
            return self.plan.servers > 0 and not self.witness.serves
        return cause.kind in ("lost-peer", "stopped") and self._goes_on_elsewhere()

    def _goes_on_elsewhere(self) -> bool:
        """Whether the run has lost this host's workers only."""
        return self.plan.servers > 0 and self.supervisor.failed_at is None and not self.witness.serves

    def _join(self) -> list[str]:
        """How a worker of this host comes back to the run; its folder says so only where server 0 is."""
        near = self.plan.node_rank == 0
        return join(self.witness.run_folder(), near, read_servers(self.folder), self.plan.secret_file)

    def _cause(self) -> Failure:
        processes = self.witness.processes
        found = {process: self.witness.failure(process) for process in processes if process.code}
        # Who ended well for its launcher may have left a note all the same.
        found |= self.witness.notes()
        if self.supervisor.failed_at is not None:  # those whose end ended nothing are not the cause
            found = {process: failure for process, failure in found.items() if not process.spared}
        unknown = Failure(rank=self.plan.seats[0][1], host=host_name(), kind="stopped", message="was ended")
        return root_cause([failure for failure in found.values() if failure is not None] or [unknown])

    def _hearsay(self, cause: Failure) -> Failure:
        """What other hosts know of a failure that did not begin here."""
        lost = self.supervisor.lost
        if lost is None:
            return self.meeting.bulletin.posted(HEARSAY) or cause
        return replace(cause, kind="lost-host", host=self.meeting.hosts[lost], message=self._silence_of(lost))

    def _others(self, cause: Failure) -> str:
        """What became of the others, where this host could see it."""
        failed_at = self.supervisor.failed_at
        if self.plan.servers and failed_at is None:
            return "; no worker was left" if self.plan.nodes == 1 else "; no worker was left on this host"
        deaths = {
            (process.role, process.rank): process.ended_at
            for process in self.witness.processes
            if process.ended_at is not None
        }
        if failed_at is None or len(deaths) < 2 or (cause.role, cause.rank) not in deaths:
            return ""
        return f"; the others stopped after {show_seconds(max(deaths.values()) - failed_at)}"

    def _interrupted(self) -> int:
        if self._failed_codes() and not (self.plan.servers and self.witness.ended_well()):
            step = max(self.witness.pulse(worker).step for worker in self.witness.workers)
            note = Failure(rank=self.plan.seats[0][1], host=host_name(), kind="interrupted", step=step)
            self.meeting.bulletin.post(note)
            self.say("\n".join(["interrupted before the workers could save.", *self._safe()]))
            return 130
        return self._tell_saved()

    def _tell_saved(self) -> int:
        """Every host has its own command to go on with; a launcher that does not answer was what ended the run."""
        lines, silent = self._safe(), self.meeting.bulletin.unanswered
        if silent and not self.supervisor.signal:
            gone = ", ".join(f"{node} ({self.meeting.hosts[node]})" for node in sorted(silent))
            told = f"the launcher of node rank {gone} has gone; all workers have stopped in agreement."
            raise RunFailed("\n".join([told, *lines]))
        if lines:
            self.say("\n".join(["interrupted; all workers have stopped in agreement.", *lines]))
        elif self.trains and not self.witness.anybody_trained():
            self.say(BEFORE_FIRST_STEP)
        return 130

    def _safe(self) -> list[str]:
        """What all hosts that can still be asked agree on."""
        run = self.witness.run_folder()
        if run is None or not self.trains:
            return []

        def ask(mine: CompleteSteps) -> list[CompleteSteps]:
            return self.meeting.bulletin.exchange_steps(mine, self.supervisor.lost, BEFORE_KILL + HEARSAY)

        return safe(run, self.plan.options, ask)
