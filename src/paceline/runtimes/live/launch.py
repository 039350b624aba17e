"""Starts the workers of this host, and tells how it ended."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from paceline.errors import Mistake, RunFailed
from paceline.runtimes.live import place
from paceline.runtimes.live.addresses import interface_towards
from paceline.runtimes.live.failures import Failure, root_cause
from paceline.runtimes.live.meeting import Meeting
from paceline.runtimes.live.overseer import Agent, Overseer, Weight
from paceline.runtimes.live.place import host_name, local_servers
from paceline.runtimes.live.plan import Launch
from paceline.runtimes.live.served.keys import Secret
from paceline.runtimes.live.surroundings import undisturbed
from paceline.runtimes.live.verdict import safe, sentence, verdict
from paceline.runtimes.live.witness import Witness
from paceline.units import show_seconds

_HEARSAY = 2.0


def train_command(argv: Sequence[str]) -> list[str]:
    """The command of one worker, from the arguments after "paceline"."""
    return [sys.executable, "-m", "paceline", *argv]


def say_on_stderr(sentence: str) -> None:
    """Tell the user something that is not a result; whether anybody still reads it changes nothing."""
    with suppress(OSError):
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
    """Run ``command`` once a worker and server of this host, to the end.

    Returns 0 for done, 3 for a failed check, 130 for interrupted by a signal. A worker that fails ends them all within
    ten seconds and raises RunFailed with the root cause, or Mistake where the user can fix it. Where there are servers,
    only they do, and workers before the run has begun: later the others go on, until no worker is left. What workers
    print passes through untouched. Call it in the main thread. Failures of what ``trains`` are told with the step and
    the checkpoint that is safe.
    """
    folder = Path(tempfile.mkdtemp(prefix="paceline-"))
    meeting: Meeting | None = None
    try:
        secret_file = plan.secret(folder)
        meeting = plan.meeting(say, Secret.read(secret_file))
        with undisturbed():
            return _Run(plan, meeting, folder, say, trains=trains).go(
                command, variables(plan, meeting.port, folder, secret_file, environ)
            )
    finally:
        if meeting is not None:
            meeting.leave()
        shutil.rmtree(folder, ignore_errors=True)


class _Rendezvous(RendezvousHandler):
    """The meeting, as the elastic agent asks for it."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for every launcher."""
        meeting = self._meeting
        meeting.gather()
        store = PrefixStore("agents", meeting.store)
        where = RendezvousStoreInfo(meeting.address, meeting.port)
        return RendezvousInfo(store, meeting.node_rank, meeting.nodes, where)

    def get_backend(self) -> str:
        """A name for the agent's log."""
        return "paceline"

    def get_run_id(self) -> str:
        """A name for the agent's log."""
        return "paceline"

    @property
    def use_agent_store(self) -> bool:
        """The workers join this store instead of making one."""
        return True

    def is_closed(self) -> bool:
        """Nobody joins twice."""
        return False

    def set_closed(self) -> None:
        """Nothing to close."""

    def num_nodes_waiting(self) -> int:
        """Nobody joins late."""
        return 0

    def shutdown(self) -> bool:
        """Nothing to shut down; the meeting is left at the end."""
        return True


def variables(
    plan: Launch, port: int, folder: Path, secret_file: Path, environ: Mapping[str, str]
) -> dict[str, str]:
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
        place.SECRET_FILE: str(secret_file),
    }
    return ours | {name: value for name, value in wishes.items() if value and name not in environ}


class _Run:
    """One launch: the agent's run, and what is made of its end."""

    def __init__(
        self, plan: Launch, meeting: Meeting, folder: Path, say: Callable[[str], None], *, trains: bool = True
    ) -> None:
        self.plan, self.meeting, self.say, self.trains = plan, meeting, say, trains
        self.overseer = Overseer(
            failed=self._weigh,
            lost_node=self._lost_node,
            failed_elsewhere=lambda: meeting.bulletin.told(),
            begun=lambda: self.witness.begun(),
            spares=plan.servers > 0,
        )
        self.witness = Witness(plan, folder, self.overseer, time.time())

    def go(self, command: Sequence[str], variables: Mapping[str, str]) -> int:
        spec = WorkerSpec(
            role="worker",
            local_world_size=len(self.plan.seats),
            entrypoint=command[0],
            args=tuple(command[1:]),
            rdzv_handler=_Rendezvous(self.meeting),
            max_restarts=0,
            monitor_interval=0.1,
            master_addr=self.meeting.address,
            master_port=self.meeting.port,
        )
        result = Agent(spec, variables, self.overseer).run()
        if self.overseer.signal:
            return self._interrupted(result)
        if self._has_failed(result):
            raise self._failed(result)
        kinds = {note.kind for note in self.witness.notes().values()}
        return 130 if "interrupted" in kinds else 3 if "check" in kinds else 0

    def _has_failed(self, result: RunResult) -> bool:
        if not self.plan.servers:
            return result.is_failed()
        return self.overseer.failed_at is not None or not self.witness.ended_well()

    def _weigh(self, local_rank: int, code: int | None) -> Weight:
        """Called in the overseer's thread: other hosts learn the cause while this one still clears up."""
        failure = self.witness.failure(local_rank, code)
        if failure is None:
            return Weight.ENDS
        weight = self._weight_of(failure, local_rank)
        if weight is Weight.SPARES and self._goes_on_here():
            self.say(f"{sentence(failure)}; the run goes on with the others.")
        if weight is Weight.ENDS and failure.kind not in ("lost-peer", "stopped"):
            self.meeting.bulletin.post(failure)
        return weight

    def _goes_on_here(self) -> bool:
        """Whether anybody of this host is left in the run; else its end is told in one piece."""
        return self.witness.workers_left() or (self.plan.nodes > 1 and self.witness.serves())

    def _weight_of(self, failure: Failure, local_rank: int) -> Weight:
        """Servers hold the run, and so does everybody until it has begun; later it can do without any worker."""
        if not self.plan.servers or failure.role == "server" or not self.witness.anybody_trained():
            return Weight.ENDS
        if failure.kind == "mistake" and failure.step == 0:
            return Weight.ENDS
        if failure.kind == "lost-peer" and time.time() - self.overseer.deaths[local_rank] < _HEARSAY:
            return Weight.UNCLEAR
        return Weight.SPARES

    def _lost_node(self) -> int | None:
        """A node that is lost and that the run cannot do without."""
        lost = self.meeting.lost()
        if lost is None or not self.plan.servers or local_servers(lost, self.plan.nodes, self.plan.servers):
            return lost
        self.meeting.bulletin.forget(lost)
        self.say(f"{self._silence_of(lost)}; the run goes on with the others.")
        return None

    def _silence_of(self, node: int) -> str:
        return f"node rank {node} ({self.meeting.hosts[node]}) has not answered for {self.plan.silence:g} s"

    def _failed(self, result: RunResult) -> Mistake | RunFailed:
        cause = self._cause(result)
        if cause.kind in ("lost-peer", "stopped", "interrupted"):
            cause = self._hearsay(cause)
        elif self.plan.servers and self.overseer.failed_at is None and not self.witness.serves():
            return RunFailed(
                f"{sentence(cause)}; no worker is left on this host, and the run goes on without it."
            )
        else:
            # Where the agent reaped the worker before the overseer saw how it ended, nobody has told the others.
            self.meeting.bulletin.post(cause)
        if cause.kind == "mistake":
            return Mistake(cause.message)
        if cause.traceback:
            who = f"{'server' if cause.role == 'server' else 'rank'} {cause.rank}"
            self.say(f"the traceback of {who} follows\n{cause.traceback.rstrip()}")
        text = verdict(
            cause,
            run=self.witness.run_folder(),
            others=self._others(cause),
            options=self.plan.options,
            trains=self.trains,
        )
        return RunFailed(text)

    def _cause(self, result: RunResult) -> Failure:
        codes = {rank: code for rank, code in self.overseer.codes.items() if code}
        codes |= {failure.local_rank: failure.exitcode for failure in result.failures.values()}
        # The agent knows who had ended when it looked; whoever began it may have ended a moment later.
        found = {
            rank: self.witness.failure(rank, code) for rank, code in codes.items()
        } | self.witness.notes()
        if self.overseer.failed_at is not None:  # those whose end ended nothing are not the cause
            found = {rank: failure for rank, failure in found.items() if rank not in self.overseer.spared}
        unknown = Failure(rank=self.plan.seats[0][1], host=host_name(), kind="stopped", message="was ended")
        return root_cause([failure for failure in found.values() if failure is not None] or [unknown])

    def _hearsay(self, cause: Failure) -> Failure:
        """What other hosts know of a failure that did not begin here."""
        lost = self.overseer.lost
        if lost is None:
            return self.meeting.bulletin.posted(_HEARSAY) or cause
        return replace(cause, kind="lost-host", host=self.meeting.hosts[lost], message=self._silence_of(lost))

    def _others(self, cause: Failure) -> str:
        """What became of the others, where this host could see it."""
        if self.plan.servers and self.overseer.failed_at is None:
            return "; no worker was left" if self.plan.nodes == 1 else "; no worker was left on this host"
        deaths, failed_at = self.overseer.deaths, self.overseer.failed_at
        seat = (cause.role, cause.rank)
        if failed_at is None or len(deaths) < 2 or seat not in self.plan.seats:
            return ""
        if self.plan.seats.index(seat) not in deaths:
            return ""
        return f"; the others stopped after {show_seconds(max(deaths.values()) - failed_at)}"

    def _interrupted(self, result: RunResult) -> int:
        if result.is_failed() and not (self.plan.servers and self.witness.ended_well()):
            step = max(pulse.step for pulse in self.witness.pulses("worker").values())
            note = Failure(rank=self.plan.seats[0][1], host=host_name(), kind="interrupted", step=step)
            self.meeting.bulletin.post(note)
            run = self.witness.run_folder()
            lines = safe(run, self.plan.options) if run else []
            self.say("\n".join(["interrupted before the workers could save.", *lines]))
        return 130
