"""How a run's end is reported: an exit code, or the root cause."""

from dataclasses import replace

from paceline.errors import BEFORE_FIRST_STEP, RunFailed, UsageError
from paceline.records.folder import RunFolder
from paceline.runtimes.live.failures import Failure, failure_report, root_cause, safe, sentence
from paceline.runtimes.live.launcher.supervisor import Supervisor
from paceline.runtimes.live.process_info import host_name
from paceline.runtimes.live.timeouts import BEFORE_KILL, HEARSAY
from paceline.units import show_seconds


class ExitReporter:
    """Of a supervisor whose processes have all ended."""

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
        failed = any(process.code for process in self._host.all)
        if self._plan.servers:
            failed = self._supervisor.failed_at is not None or not self._host.ended_well()
        if self._supervisor.signal:
            return self._interrupted()
        if failed:
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
        if cause.traceback:
            who = f"{'server' if cause.role == 'server' else 'rank'} {cause.rank}"
            supervisor.say(f"the traceback of {who} follows\n{cause.traceback.rstrip()}")
        others, trains = self._others(cause), supervisor.trains
        return RunFailed(
            failure_report(cause, run=self._run, others=others, safe=self._safe(), trains=trains)
        )

    def _cause(self) -> Failure:
        supervisor = self._supervisor
        found = {process: supervisor.failure(process) for process in self._host.all if process.code}
        # A process with exit code 0 may have left a note all the same.
        found |= self._host.notes()
        if supervisor.failed_at is not None:  # processes whose end ended nothing are not the cause
            found = {process: failure for process, failure in found.items() if not process.spared}
        failures = [failure for failure in found.values() if failure is not None]
        ended = Failure(rank=self._host.all[0].rank, host=host_name(), kind="stopped", message="was ended")
        return root_cause(failures or [ended])

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
            (process.role, process.rank): process.ended_at for process in self._host.all if process.ended_at
        }
        if failed_at is None or len(deaths) < 2 or (cause.role, cause.rank) not in deaths:
            return ""
        return f"; the others stopped after {show_seconds(max(deaths.values()) - failed_at)}"

    def _interrupted(self) -> int:
        failed = any(process.code for process in self._host.all)
        if not failed or (self._plan.servers and self._host.ended_well()):
            return self._report_saved()
        step = max(self._host.progress(worker).step for worker in self._host.workers)
        note = Failure(rank=self._host.all[0].rank, host=host_name(), kind="interrupted", step=step)
        self._supervisor.peers.post(note)
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
        elif self._supervisor.trains and not self._host.trained():
            self._supervisor.say(BEFORE_FIRST_STEP)
        return 130

    def _safe(self) -> list[str]:
        supervisor = self._supervisor
        if self._run is None or not supervisor.trains:
            return []
        peers, patience = supervisor.peers, BEFORE_KILL + HEARSAY
        return safe(
            self._run, self._plan.settings, lambda mine: peers.exchange_steps(mine, supervisor.lost, patience)
        )
