"""Starts the workers of this host, and tells how it ended."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGTERM

from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec

from paceline.errors import Mistake, RunFailed
from paceline.runtimes.live import place
from paceline.runtimes.live.addresses import interface_towards
from paceline.runtimes.live.failures import Failure, read_note, root_cause
from paceline.runtimes.live.heartbeat import Pulse, read_pulse
from paceline.runtimes.live.meeting import Meeting
from paceline.runtimes.live.overseer import BEFORE_KILL, Agent, Overseer
from paceline.runtimes.live.place import host_name
from paceline.runtimes.live.plan import Launch
from paceline.runtimes.live.served.keys import Secret
from paceline.runtimes.live.surroundings import undisturbed
from paceline.runtimes.live.verdict import killed_by, safe, verdict

_HEARSAY = 2.0


def train_command(argv: Sequence[str]) -> list[str]:
    """The command of one worker, from the arguments after "paceline"."""
    return [sys.executable, "-m", "paceline", *argv]


def say_on_stderr(sentence: str) -> None:
    """Tell the user something that is not a result."""
    sys.stderr.write(f"paceline: {sentence}\n")
    sys.stderr.flush()


def launch(
    command: Sequence[str],
    plan: Launch,
    environ: Mapping[str, str] = os.environ,
    say: Callable[[str], None] = say_on_stderr,
    *,
    trains: bool = True,
) -> int:
    """Run ``command`` once a worker of this host, to the end; 0 is done, 3 a failed check, 130 interrupted by a signal.

    A worker that fails ends them all within ten seconds and raises RunFailed with the root cause, or Mistake
    where the user can fix it. What workers print passes through untouched. Call it in the main thread.
    Failures of what ``trains`` are told with the step and the checkpoint that is safe.
    """
    meeting = plan.meeting(say)
    folder = Path(tempfile.mkdtemp(prefix="paceline-"))
    try:
        if plan.servers and plan.secret_file is None:
            Secret.new().write(place.secret_path(folder))
        with undisturbed():
            return _Run(plan, meeting, folder, say, trains=trains).go(
                command, variables(plan, meeting.port, folder, environ)
            )
    finally:
        meeting.leave()
        shutil.rmtree(folder, ignore_errors=True)


def variables(plan: Launch, port: int, folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What the workers' environment has besides the launcher's own and the agent's."""
    interface = interface_towards(plan.endpoint[0], port)
    # Gloo would look for the address of the host's own name, which may be none or not what others can reach.
    wishes = {"GLOO_SOCKET_IFNAME": interface, "TORCH_CPP_LOG_LEVEL": "ERROR"}
    if len(plan.seats) > 1:
        wishes["OMP_NUM_THREADS"] = "1"
    ours = {
        place.FOLDER: str(folder),
        place.LAUNCHER: str(os.getpid()),
        place.SERVERS: str(plan.servers),
    }
    return ours | {name: value for name, value in wishes.items() if value and name not in environ}


def _was_stopped(code: int, after: float) -> bool:
    """Whether a worker that ended so many seconds after the first failure was ended by this launcher because of it.

    SIGKILL comes late from here. One that comes early is the cause itself: the others may well notice a killed worker,
    and end, before the system has cleared it away.
    """
    return after > 0 and (code == -SIGTERM or (code == -SIGKILL and after >= BEFORE_KILL - 1))


class _Run:
    """One launch: the agent's run, and what is made of its end."""

    def __init__(
        self, plan: Launch, meeting: Meeting, folder: Path, say: Callable[[str], None], *, trains: bool = True
    ) -> None:
        self.plan, self.meeting, self.folder, self.say, self.trains = plan, meeting, folder, say, trains
        self.seats = plan.seats
        self.overseer = Overseer(failed=self._first_failure, lost_node=meeting.lost, begun=self._begun)

    def go(self, command: Sequence[str], variables: Mapping[str, str]) -> int:
        spec = WorkerSpec(
            role="worker",
            local_world_size=len(self.seats),
            entrypoint=command[0],
            args=tuple(command[1:]),
            rdzv_handler=self.meeting,
            max_restarts=0,
            monitor_interval=0.1,
            master_addr=self.meeting.address,
            master_port=self.meeting.port,
        )
        result = Agent(spec, variables, self.overseer).run()
        if self.overseer.signal:
            return self._interrupted(result)
        if result.is_failed():
            raise self._failed(result)
        kinds = {note.kind for note in self._notes()}
        return 130 if "interrupted" in kinds else 3 if "check" in kinds else 0

    def _rank(self, local_rank: int) -> int:
        return self.plan.node_rank * self.plan.workers + local_rank

    def _notes(self) -> list[Failure]:
        notes = (read_note(self.folder, self._rank(local)) for local in range(self.plan.workers))
        return [note for note in notes if note is not None]

    def _pulses(self) -> list[Pulse]:
        return [read_pulse(self.folder, self._rank(local)) for local in range(self.plan.workers)]

    def _begun(self) -> bool:
        return all(pulse.at for pulse in self._pulses())

    def _run_folder(self) -> Path | None:
        return next((pulse.run for pulse in self._pulses() if pulse.run is not None), None)

    def _first_failure(self, local_rank: int, code: int | None) -> None:
        """Called in the overseer's thread: other hosts learn the cause while this one still clears up."""
        failure = self._failure(local_rank, code)
        if failure is not None and failure.kind not in ("lost-peer", "stopped"):
            self.meeting.bulletin.post(failure)

    def _failure(self, local_rank: int, code: int | None) -> Failure | None:
        rank = self._rank(local_rank)
        note = read_note(self.folder, rank)
        if note is not None or code is None:
            return note
        pulse = read_pulse(self.folder, rank)
        ended = self.overseer.deaths.get(local_rank, 0.0)
        after = ended - (self.overseer.failed_at or ended)
        late = local_rank in self.overseer.ended or _was_stopped(code, after)
        return Failure(
            rank=rank,
            host=host_name(),
            kind="stopped" if late else "killed" if code < 0 else "exited",
            step=pulse.step,
            message=killed_by(code),
            run=str(pulse.run) if pulse.run else None,
            at=ended,
        )

    def _failed(self, result: RunResult) -> Mistake | RunFailed:
        codes = {rank: code for rank, code in self.overseer.codes.items() if code}
        codes |= {failure.local_rank: failure.exitcode for failure in result.failures.values()}
        found = [self._failure(local_rank, code) for local_rank, code in codes.items()]
        # The agent knows who had ended when it looked; whoever began it may have ended a moment later.
        cause = root_cause([*(failure for failure in found if failure is not None), *self._notes()])
        if cause.kind in ("lost-peer", "stopped"):
            cause = self._hearsay(cause)
        else:
            # Where the agent reaped the worker before the overseer saw how it ended, nobody has told the others.
            self.meeting.bulletin.post(cause)
        if cause.kind == "mistake":
            return Mistake(cause.message)
        if cause.traceback:
            self.say(f"the traceback of rank {cause.rank} follows\n{cause.traceback.rstrip()}")
        text = verdict(
            cause,
            run=self._run_folder(),
            noticed=self._noticed(cause),
            options=self.plan.options,
            trains=self.trains,
        )
        return RunFailed(text)

    def _hearsay(self, cause: Failure) -> Failure:
        """What other hosts know of a failure that did not begin here."""
        lost = self.overseer.lost
        if lost is None:
            return self.meeting.bulletin.posted(_HEARSAY) or cause
        host = self.meeting.hosts[lost]
        message = f"node rank {lost} ({host}) has not answered for {self.plan.silence:g} s"
        return replace(cause, kind="lost-host", host=host, message=message)

    def _noticed(self, cause: Failure) -> float | None:
        """How long the others took to stop, where this host could see it."""
        deaths, failed_at = self.overseer.deaths, self.overseer.failed_at
        local = cause.rank - self._rank(0)
        if failed_at is None or len(deaths) < 2 or local not in deaths:
            return None
        return max(deaths.values()) - failed_at

    def _interrupted(self, result: RunResult) -> int:
        if result.is_failed():
            step = max(pulse.step for pulse in self._pulses())
            note = Failure(rank=self._rank(0), host=host_name(), kind="interrupted", step=step)
            self.meeting.bulletin.post(note)
            run = self._run_folder()
            lines = safe(run, self.plan.options) if run else []
            self.say("\n".join(["interrupted before the workers could save.", *lines]))
        return 130
