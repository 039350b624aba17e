"""What is known of this host's processes: the notes they left, how far they came and how they ended."""

from collections.abc import Callable, Sequence
from pathlib import Path
from signal import SIGTERM

from paceline.records.folder import RunFolder
from paceline.runtimes.live.failure_report import killed_by
from paceline.runtimes.live.failures import Failure, read_note
from paceline.runtimes.live.heartbeat import Pulse, read_pulse
from paceline.runtimes.live.launcher.plan import Launch
from paceline.runtimes.live.launcher.processes import Process
from paceline.runtimes.live.process_info import host_name


class Witness:
    """Reads the launch folder of these processes; ``failed_at`` tells when the run failed, if it has."""

    def __init__(
        self,
        plan: Launch,
        folder: Path,
        processes: Sequence[Process],
        began: float,
        failed_at: Callable[[], float | None],
    ) -> None:
        self._plan, self._folder, self._began, self._failed_at = plan, folder, began, failed_at
        self.processes = processes
        self.workers = [process for process in processes if process.role == "worker"]
        self.serves = len(self.workers) < len(processes)
        """Whether this host has servers, so that it has part in the run until its end."""

    def note(self, process: Process) -> Failure | None:
        """The note of a process, if it left one."""
        return read_note(self._folder, process.rank, process.role)

    def notes(self) -> dict[Process, Failure]:
        """The note of each process that left one."""
        return {process: note for process in self.processes if (note := self.note(process)) is not None}

    def pulse(self, process: Process) -> Pulse:
        """How far a process has come."""
        return read_pulse(self._folder, process.rank, process.role)

    def run_folder(self) -> Path | None:
        """Where the run is kept: as it was resumed, or once anybody here has said so."""
        known = map(self.pulse, self.processes)
        return next((pulse.run for pulse in known if pulse.run is not None), self._plan.resume)

    def begun(self) -> bool:
        """Whether every worker that is left here has finished a step, so that there is something to save."""
        return all(self.pulse(worker).at for worker in self.workers if worker.alive)

    def anybody_trained(self) -> bool:
        """Whether a worker or a server here has finished anything."""
        return any(self.pulse(process).step for process in self.processes)

    def workers_left(self) -> bool:
        """Whether a worker of this host still runs."""
        return any(worker.alive for worker in self.workers)

    def over(self) -> bool:
        """Whether the run is, though some process here still lives."""
        if any(process.code == 0 for process in self.processes):
            return True
        return self._plan.servers > 0 and self._plan.nodes == 1 and not self.workers_left()

    def ended_well(self) -> bool:
        """Whether a run with servers has, as far as this host can tell, when all of its processes have ended."""
        if any(note.kind == "abandoned" for note in self.notes().values()):
            return False
        if any(worker.code == 0 for worker in self.workers):
            return True
        return self.serves if self._plan.nodes > 1 else self._summed_up()

    def _summed_up(self) -> bool:
        """Whether a worker that joined has finished what all of the others left."""
        run = self.run_folder()
        try:
            return run is not None and RunFolder(run).summary.stat().st_mtime >= self._began
        except FileNotFoundError:
            return False

    def failure(self, process: Process) -> Failure | None:
        """How a process failed: as it said itself, else as its exit code tells."""
        note, code = self.note(process), process.code
        if note is not None or code is None:
            return note
        pulse = self.pulse(process)
        ended = process.ended_at or 0.0
        # A SIGKILL that this launcher did not send is a cause, however late it is seen: memory may have run out.
        stopped = process.killed or (code == -SIGTERM and ended > (self._failed_at() or ended))
        return Failure(
            rank=process.rank,
            role=process.role,
            host=host_name(),
            kind="stopped" if stopped else "killed" if code < 0 else "exited",
            step=pulse.step,
            message=killed_by(code),
            run=str(pulse.run) if pulse.run else None,
            at=ended,
        )
