"""What is known of this host's processes: the notes they left, how far they came and how they ended."""

from pathlib import Path
from signal import SIGKILL, SIGTERM

from paceline.records.folder import RunFolder
from paceline.runtimes.live.failures import Failure, read_note
from paceline.runtimes.live.heartbeat import Pulse, read_pulse
from paceline.runtimes.live.overseer import BEFORE_KILL, Overseer
from paceline.runtimes.live.place import Role, host_name
from paceline.runtimes.live.plan import Launch
from paceline.runtimes.live.verdict import killed_by

_ROLES: tuple[Role, ...] = ("worker", "server")


def was_stopped(code: int, after: float) -> bool:
    """Whether a process that ended so many seconds after the first failure was ended by this launcher because of it.

    SIGKILL comes late from here. One that comes early is the cause itself: the others may well notice a killed worker,
    and end, before the system has cleared it away.
    """
    return after > 0 and (code == -SIGTERM or (code == -SIGKILL and after >= BEFORE_KILL - 1))


class Witness:
    """Reads the launch folder, and sees through an overseer who has ended; local ranks count workers, then servers."""

    def __init__(self, plan: Launch, folder: Path, overseer: Overseer, began: float) -> None:
        self._plan, self._folder, self._overseer, self._began = plan, folder, overseer, began
        self.seats = plan.seats

    def notes(self) -> dict[int, Failure]:
        """The note of each local rank that left one."""
        notes = {local: self._note(local) for local in range(len(self.seats))}
        return {local: note for local, note in notes.items() if note is not None}

    def pulses(self, role: Role) -> dict[int, Pulse]:
        """How far each local rank of a role has come."""
        return {local: self._pulse(local) for local, seat in enumerate(self.seats) if seat[0] == role}

    def run_folder(self) -> Path | None:
        """Where the run is kept, once anybody here has said so."""
        known = [*self.pulses("worker").values(), *self.pulses("server").values()]
        return next((pulse.run for pulse in known if pulse.run is not None), None)

    def begun(self) -> bool:
        """Whether every worker that is left here has finished a step, so that there is something to save."""
        pulses = self.pulses("worker")
        return all(pulse.at for local, pulse in pulses.items() if local not in self._overseer.deaths)

    def anybody_trained(self) -> bool:
        """Whether a worker or a server here has finished anything."""
        return any(pulse.step for role in _ROLES for pulse in self.pulses(role).values())

    def workers_left(self) -> bool:
        """Whether a worker of this host still runs."""
        return any(local not in self._overseer.deaths for local in self.pulses("worker"))

    def serves(self) -> bool:
        """Whether this host has servers, so that it has part in the run until its end."""
        return any(role == "server" for role, _ in self.seats)

    def ended_well(self) -> bool:
        """Whether a run with servers has, as far as this host can tell, when all of its processes have ended."""
        if any(note.kind == "abandoned" for note in self.notes().values()):
            return False
        if any(self._overseer.codes.get(local) == 0 for local in self.pulses("worker")):
            return True
        return self.serves() if self._plan.nodes > 1 else self._summed_up()

    def _summed_up(self) -> bool:
        """Whether a worker that joined has finished what all of the others left."""
        run = self.run_folder()
        try:
            return run is not None and RunFolder(run).summary.stat().st_mtime >= self._began
        except FileNotFoundError:
            return False

    def failure(self, local_rank: int, code: int | None) -> Failure | None:
        """How a process failed: as it said itself, else as its exit code tells."""
        note = self._note(local_rank)
        if note is not None or code is None:
            return note
        role, rank = self.seats[local_rank]
        pulse = self._pulse(local_rank)
        ended = self._overseer.deaths.get(local_rank, 0.0)
        after = ended - (self._overseer.failed_at or ended)
        late = local_rank in self._overseer.ended or was_stopped(code, after)
        return Failure(
            rank=rank,
            role=role,
            host=host_name(),
            kind="stopped" if late else "killed" if code < 0 else "exited",
            step=pulse.step,
            message=killed_by(code),
            run=str(pulse.run) if pulse.run else None,
            at=ended,
        )

    def _note(self, local_rank: int) -> Failure | None:
        role, rank = self.seats[local_rank]
        return read_note(self._folder, rank, role)

    def _pulse(self, local_rank: int) -> Pulse:
        role, rank = self.seats[local_rank]
        return read_pulse(self._folder, rank, role)
