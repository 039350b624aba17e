"""How the workers of a run reach each other: what differs between runs with servers and without."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from paceline.records.observer import Observer
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.worker.comm import Group, join
from paceline.runtimes.live.worker.engine import Beating
from paceline.runtimes.live.worker.run import WorkerRun
from paceline.runtimes.live.worker.stopping import Agreement, agreement
from paceline.runtimes.prepare import Prepared


class WorkerBackend(Protocol):
    """One worker's way to the others, from the first word on; its methods are called in this order."""

    def join(self, device: torch.device, note: Callable[[str], None]) -> Group:
        """Meet the others."""

    def life(self, device: torch.device, observer: Observer, heartbeat: Beating) -> WorkerRun:
        """What this worker holds."""

    def agree(self, life: WorkerRun, asked: dict[str, Any]) -> Agreement:
        """Get ready to train; ``asked`` is what this worker was started for."""


@dataclass
class AmongWorkers:
    """Without servers: collectives of torch.distributed."""

    prepared: Prepared
    place: ProcessInfo
    options: LiveOptions
    stop_requested: Callable[[], bool]

    def join(self, device: torch.device, note: Callable[[str], None]) -> Group:
        """Form a process group."""
        collective = self.prepared.settings.collective
        self._group = join(self.place, self.options, device, collective, note)
        return self._group

    def life(self, device: torch.device, observer: Observer, heartbeat: Beating) -> WorkerRun:
        """An ordinary one."""
        return WorkerRun(self.prepared, self._group, device, observer, heartbeat)

    def agree(self, life: WorkerRun, asked: dict[str, Any]) -> Agreement:  # noqa: ARG002
        """All workers decide together where to stop."""
        return agreement(
            self._group,
            self.prepared.strategy.sync_point,
            life.me,
            requested=self.stop_requested,
            note=life.observer.noted,
            patience=self.options.timeout,
        )
