"""Repeat a recorded run with servers, message by message, to the same parameters."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from paceline.clusters.cluster import Cluster, Host, Link
from paceline.costs.base import Times
from paceline.errors import UsageError
from paceline.jobs.job import Job
from paceline.records.folder import RunFolder
from paceline.records.observer import Observer
from paceline.records.servers import Damaged, Entry, Received, Updated, read_server_log
from paceline.records.summary import Summary
from paceline.runtimes.config import read_config, read_run
from paceline.runtimes.prepare import Prepared, prepare
from paceline.runtimes.randomness import AllStreams, undisturbed
from paceline.runtimes.session import Session
from paceline.runtimes.settings import Settings
from paceline.runtimes.virtual.circle import VirtualCollectives
from paceline.runtimes.virtual.node import Node
from paceline.runtimes.virtual.record_mail import RecordMail
from paceline.runtimes.virtual.recorder import Recorder
from paceline.runtimes.virtual.run import Run
from paceline.runtimes.virtual.timeline import Timeline
from paceline.runtimes.virtual.world import World
from paceline.strategies.effects import Gradient, Program, Receive

INSTANT = Link(bandwidth=1e18, latency=0.0)


class Untimed:
    """Nothing takes any time of its own: the record says when things happened."""

    steady = False

    def gradient(self, rank: int, samples: int, step: int) -> Times:  # noqa: ARG002
        """No time."""
        return Times(0.0, 0.0, 0.0)

    def apply(self, rank: int, step: int) -> float:  # noqa: ARG002
        """No time."""
        return 0.0

    def evaluate(self, rank: int, samples: int) -> float:  # noqa: ARG002
        """No time."""
        return 0.0

    def checkpoint(self, rank: int, size: int) -> float:  # noqa: ARG002
        """No time."""
        return 0.0

    def serve(self, rank: int, size: int) -> float:  # noqa: ARG002
        """No time."""
        return 0.0

    def update(self, rank: int, share: float, gradients: int) -> float:  # noqa: ARG002
        """No time."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What a replay follows."""

    folder: RunFolder
    settings: Settings
    gradients: bool
    threads: int
    """With how many a worker computed."""
    founders: tuple[int, ...]
    """The workers with which the run began."""
    logs: Mapping[int, Sequence[Entry]]
    """The servers' entries, by rank."""

    @property
    def workers(self) -> int:
        """One more than the highest rank that there was."""
        ranks = [entry.worker for entry in self.logs[0] if isinstance(entry, Received)]
        return max([*ranks, self.settings.workers - 1]) + 1


def read_recording(folder: RunFolder) -> Recording:
    """Read a run that is to be repeated, or raise a UsageError that says why it cannot be."""
    settings, machinery = read_run(folder)
    if origin := read_config(folder).origin:
        raise UsageError(
            f"--replay {folder.path}: the run began at a checkpoint of {origin}, and what came before it was not "
            "recorded there; give a run that was recorded from its first step"
        )
    files = folder.server_event_files()
    if not files:
        raise UsageError(
            f"--replay {folder.path}: the run recorded no messages; give a run of ps, ssp or async of which every "
            "step was kept"
        )
    if missing := set(range(settings.servers)) - set(files):
        raise UsageError(f"--replay {folder.path}: the log of server {min(missing)} is not there")
    logs = {rank: list(read_server_log(files[rank])) for rank in range(settings.servers)}
    if any(isinstance(entry, Damaged) for log in logs.values() for entry in log):
        raise UsageError(
            f"--replay {folder.path}: lines of a server's log were damaged when the run resumed, so its messages are "
            "not all known; give a run that was recorded whole"
        )
    if not any(isinstance(entry, Updated) for log in logs.values() for entry in log):
        raise UsageError(
            f"--replay {folder.path}: the run ended before its first update, so there is nothing to repeat"
        )
    return Recording(
        folder=folder,
        settings=settings,
        gradients=machinery.get("gradients", True),
        threads=machinery.get("threads") or 1,
        founders=_founders(settings, machinery.get("cluster", {})),
        logs=logs,
    )


def _founders(settings: Settings, cluster: Mapping[str, Any]) -> tuple[int, ...]:
    """All workers of a live run; of a simulated one, those whose host had no start of its own."""
    starts = [
        group["host"].get("start", 0.0)
        for group in cluster.get("groups", [])
        for _ in range(group["count"] * group["host"]["workers"])
    ]
    return tuple(rank for rank in range(settings.workers) if not (starts and starts[rank]))


def replay(
    recording: Recording,
    *,
    observer: Observer,
    recorder: Recorder,
    prepared: Prepared | None = None,
    name: str = "",
    folder: str | None = None,
) -> Summary:
    """Run it again. Raises RunFailed at the first update that is not the recorded one."""
    prepared = prepared or prepare(recording.settings)
    run = Replay(recording, prepared, observer, recorder, name, folder)
    with undisturbed(AllStreams()):
        return run.run()


class Replay(Run):
    """A run whose servers take their messages in the recorded order."""

    def __init__(
        self,
        recording: Recording,
        prepared: Prepared,
        observer: Observer,
        recorder: Recorder,
        name: str,
        folder: str | None,
    ) -> None:
        host = Host(name="replay", link=INSTANT, inside=INSTANT, workers=recording.workers)
        job: Job = prepared.job
        super().__init__(
            recording.settings,
            job,
            Cluster.of([host]),
            Untimed(),
            recording.gradients,
            prepared.strategy,
            observer,
            recorder,
            name,
            folder,
            inf,
        )
        self._recording = recording
        self._finishers = {
            entry.worker
            for entry in recording.logs[0]
            if isinstance(entry, Received) and entry.how == "finished"
        }
        self.carrier = self._carry
        self._mail: RecordMail | None = None

    def _carry(
        self, world: World, timeline: Timeline, ready: deque[Node], circle: VirtualCollectives
    ) -> RecordMail:
        self._mail = RecordMail(self._recording.logs, world, timeline, ready, circle)
        return self._mail

    @property
    def founders(self) -> tuple[int, ...]:
        """As recorded."""
        return self._recording.founders

    def _transport(self) -> str:
        return f"a replay of {self._recording.folder.path}"

    def _next_word(self, rank: int) -> str | None:
        assert self._mail is not None
        return self._mail.next_word(rank)

    def _stops(self, rank: int) -> bool:
        """Whether a worker goes to a meeting next, which may be an early one."""
        return self._next_word(rank) == "Pause"

    def _program(self, session: Session) -> Program:
        """The worker's program, begun anew where the run was resumed; it computes nothing that was not handed in."""
        rank = session.me.rank
        while True:
            program, answer = session.program(), None
            while True:
                try:
                    effect = program.send(answer)
                except StopIteration as end:
                    return end.value
                if type(effect) is Gradient:
                    word = self._next_word(rank)
                    if word == "Join":
                        program.close()
                        break
                    if word is None and rank in self._finishers:
                        return "interrupted"  # it stopped at the last meeting, because it was asked to
                    if word != "Push":
                        yield Receive()  # nobody writes to it any more
                answer = yield effect
