"""A worker of a served run: it trains through the servers, and goes on when others die."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sys import maxsize
from typing import Any

import torch

from paceline.errors import UsageError
from paceline.records.checkpoints import Checkpoints
from paceline.records.files import from_document, read_json
from paceline.records.folder import RunFolder
from paceline.records.observer import Observer
from paceline.records.servers import ServerTotals
from paceline.records.summary import Summary
from paceline.records.system import SystemSampler
from paceline.runtimes.config import already_complete
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.wire.shared_flat import SharedFlat
from paceline.runtimes.live.worker.checkpoint import restore
from paceline.runtimes.live.worker.comm import Group, SoloComm
from paceline.runtimes.live.worker.engine import Beating
from paceline.runtimes.live.worker.run import WorkerRun
from paceline.runtimes.live.worker.run_folder import FolderKeeper, Home, last_recorded_step
from paceline.runtimes.live.worker.server_client import ServerClient
from paceline.runtimes.live.worker.server_comm import Entering, ServedGroup
from paceline.runtimes.live.worker.stopping import Agreement, ByServers
from paceline.runtimes.prepare import Prepared


@dataclass
class ThroughServers:
    """With servers: everything goes through them."""

    prepared: Prepared
    place: ProcessInfo
    options: LiveOptions
    stop_requested: Callable[[], bool]

    def join(self, device: torch.device, note: Callable[[str], None]) -> Group:  # noqa: ARG002
        """Meet at the store; the servers are there too."""
        name = self.place.launch.name if self.place.launch else str(self.place.port)
        self._group = Entering(self.place, self.options, SharedFlat(name))
        return self._group

    def life(self, device: torch.device, observer: Observer, heartbeat: Beating) -> WorkerRun:
        """One that knows of servers."""
        self._life = ServedWorkerRun(self.prepared, self._group, device, observer, heartbeat)
        return self._life

    def agree(self, life: WorkerRun, asked: dict[str, Any]) -> Agreement:
        """Tell the servers what is run and connect to them."""
        run = {
            "name": life.folder.path.name,
            "run": life.home.identity.run,
            "asked": asked,
            "begun": life.begun,
            "step": self._life.step,
            "workers": read_json(life.folder.env)["workers"],
        }
        if why := self._group.memory.why:
            life.observer.noted(f"gradients go through sockets: {why}")
        line = self._group.open(self.options.timeout, self.stop_requested, run)
        return ByServers(line, life.observer.noted)


class ServedWorkerRun(WorkerRun):
    """A worker's life where servers keep the parameters and others may come and go."""

    group: ServedGroup
    step: int | None = None
    """The step of the checkpoint that the run goes on from, where it does."""
    _recorded_to: int = maxsize

    @property
    def line(self) -> ServerClient:
        """The line to the servers, once there is one."""
        return self.group.line

    def restore(self, folder: RunFolder, checkpoints: Checkpoints) -> None:
        """Become the worker that was saved. The servers' checkpoints decide: a worker without one goes on counting."""
        assert isinstance(self.group, Entering)
        settings = self.prepared.settings
        servers = self.group.servers()
        for sentence in (sentence for server in servers for sentence in server["refused"]):
            self.observer.noted(sentence)
        saved = [set(server["whole"]) for server in servers]
        shared = set.intersection(*saved)
        if not shared:
            raise UsageError(
                f"{folder.path} holds no checkpoint that is whole on all {len(saved)} servers; "
                "start the run anew"
            )
        self.step = max(shared)
        if self.step >= self.prepared.agenda.last:
            raise already_complete(folder, settings, self.prepared.agenda.last, self.step)
        whole, refused = checkpoints.valid_steps(self.group.rank)
        for sentence in refused:
            self.observer.noted(sentence)
        if self.step in whole:
            tree = checkpoints.load(self.step, self.group.rank)
            restore(tree, self.replica, self.me, self.position, settings.target_accuracy)
            self._recorded_to = self.me.clock
        else:
            self.position.progress = self.position.met = self.step

    def move_in(self, home: Home) -> None:
        """Take the run folder over; what a worker that begins anew had recorded in it stays."""
        self._move_in(home, self._recorded_to)
        if self._recorded_to == maxsize:  # no step is recorded twice, and no mini-batch drawn again
            self.me.clock = last_recorded_step(home.folder, self.group.rank)

    def keeper(self) -> FolderKeeper:
        """Saves this worker, and has the servers save themselves."""
        settings = self.prepared.settings
        keeper = ServedKeeper(self.home, settings, self.replica, self.me, self.position, self.observer)
        keeper.line, keeper.heartbeat = self.line, self.heartbeat
        return keeper

    def compared(self) -> Group:
        """Nobody: workers of a parameter server share no exchange."""
        return SoloComm()

    def live(
        self,
        agreed: Agreement,
        before_hard_end: Callable[[Callable[[], None]], None],
        sampler: SystemSampler | None,
    ) -> Summary:
        """As any worker does; the servers hear of its end."""
        summary = super().live(agreed, before_hard_end, sampler)
        self.line.leave(self.me.clock, "left" if summary.ending == "left" else "finished")
        return summary

    def server_totals(self) -> list[ServerTotals]:
        """As the servers tell them."""
        return [from_document(document, ServerTotals) for document in self.line.server_totals()]


class ServedKeeper(FolderKeeper):
    """Saves one worker, and has the servers save their parts; all workers are quiet meanwhile."""

    line: ServerClient
    heartbeat: Beating

    def commit(self, members: Sequence[int]) -> None:
        """Have every server save its part, now that all workers have saved theirs; then it counts."""
        self.heartbeat.enter("exchange")
        self.line.save_shards(self.position.progress)
        super().commit(members)
