"""What a run reports while it trains and when it ends: to the observer of its first worker, and in its folder."""

from dataclasses import replace

import torch

from paceline.jobs.job import Job
from paceline.records.events import MetricsRow, append_metrics
from paceline.records.files import from_document, to_document, write_json
from paceline.records.folder import RunFolder
from paceline.records.load import HostLoad, SystemSampler, usable_cores
from paceline.records.servers import ServerTotals
from paceline.records.spans import TimeLedger, Totals
from paceline.records.summary import Observer, Started, Summary
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.runtimes.live.worker.run_folder import HeldFolder, recorded_time
from paceline.runtimes.prepare import Prepared
from paceline.runtimes.session import Ending, Position
from paceline.strategies.base import Worker


class RunReporter:
    """Reports while this worker is the first member; one that becomes it says so, and how the run began."""

    def __init__(self, observer: Observer, comm: SoloComm, prepared: Prepared[Job]) -> None:
        self._observer, self._comm, self._prepared = observer, comm, prepared
        self._started: Started | None = None
        self._introduced = False
        self._last_row: MetricsRow | None = None

    @property
    def is_first(self) -> bool:
        return self._comm.members[0] == self._comm.rank

    def noted(self, sentence: str) -> None:
        if self.is_first:
            self._observer.noted(sentence)

    def started(self, held: HeldFolder, parameters: int, first_step: int, seconds: float) -> None:
        path = held.folder.path
        started = self._prepared.started(path.name, parameters, self._comm.transport, str(path))
        threads = torch.get_num_threads()
        self._started = replace(
            started, first_step=first_step, seconds=seconds, threads=threads, cores=usable_cores()
        )
        if self.is_first:
            self._introduced = True
            self._observer.started(self._started)

    def stepped(self, progress: int, samples: int, loss: float, seconds: float) -> None:
        if self._introduced:
            self._observer.stepped(progress, samples, loss, seconds)

    def evaluated(self, row: MetricsRow, held: HeldFolder) -> None:
        self._last_row = row
        if self.is_first:
            held.lock.check()
            append_metrics(held.folder.metrics, row)
            self._take_over()
            self._observer.evaluated(row)

    def _take_over(self) -> None:
        if not self._introduced:
            self._introduced = True
            self._observer.noted(f"rank {self._comm.rank} reports from here on: the ranks before it are gone")
            if self._started is not None:
                self._observer.started(self._started)

    def finished(
        self,
        ending: Ending,
        held: HeldFolder,
        me: Worker,
        position: Position,
        ledger: TimeLedger,
        sampler: SystemSampler | None,
    ) -> Summary:
        totals, loads, servers = [ledger.totals()], list[HostLoad](), list[ServerTotals]()
        left = ending == "left"  # then the other workers train on and have nothing to report yet
        if not left:
            totals, loads = gather_totals(self._comm, held.folder, ledger, sampler.load if sampler else None)
            servers = [from_document(document, ServerTotals) for document in self._comm.server_totals()]
            held.lock.check()
        summary = Summary(
            name=held.folder.path.name,
            runtime="live",
            ending=ending,
            workers=self._comm.workers,
            steps=position.progress,
            epochs=self._prepared.triggers.epoch(position.progress),
            seconds=me.now,
            samples=sum(one.samples for one in totals),
            parameters=me.params.numel(),
            target=self._prepared.settings.target_accuracy,
            target_seconds=position.reached,
            final=self._last_row.to_json() if self._last_row else {},
            totals=totals,
            servers=servers,
            cpu_percent=sampler.cpu_percent if sampler else None,
            memory_bytes=sampler.memory_bytes if sampler else None,
            loads=loads,
        )
        if self.is_first and not left:
            write_json(held.folder.summary, summary.to_json())
            self._take_over()
            self._observer.finished(summary)
        return summary


def gather_totals(
    comm: SoloComm, folder: RunFolder, ledger: TimeLedger, load: HostLoad | None = None
) -> tuple[list[Totals], list[HostLoad]]:
    """Every worker's totals, at the index of its rank; of one that is gone, what it has recorded on this host."""
    mine = {"totals": to_document(ledger.totals()), "load": to_document(load)}
    gathered = comm.exchange({"rank": comm.rank, **mine})
    totals = {one["rank"]: from_document(one["totals"], Totals) for one in gathered}
    for rank in {*range(comm.workers), *folder.event_files()} - set(totals):
        totals[rank] = recorded_time(folder, rank)[0].totals()
    by_rank = [totals.get(rank, Totals()) for rank in range(max(totals) + 1)]  # not every rank is in use
    return by_rank, [HostLoad(**one["load"]) for one in gathered if one["load"]]
