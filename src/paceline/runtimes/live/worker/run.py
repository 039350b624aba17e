"""What one live worker holds, from the first weights to the summary."""

from collections.abc import Callable
from contextlib import ExitStack

import torch

from paceline.collectives import NATIVE
from paceline.records.checkpoints import Checkpoints
from paceline.records.events import EventWriter, MetricsRow, append_metrics
from paceline.records.files import from_document, to_document, write_json
from paceline.records.folder import RunFolder
from paceline.records.ledger import TimeLedger
from paceline.records.load import HostLoad, usable_cores
from paceline.records.observer import Observer, Started
from paceline.records.servers import ServerTotals
from paceline.records.spans import Totals
from paceline.records.summary import Summary
from paceline.records.system import SystemSampler
from paceline.runtimes.config import already_complete
from paceline.runtimes.live.worker.checkpoint import load_shared, restore
from paceline.runtimes.live.worker.comm import Group
from paceline.runtimes.live.worker.drift import Alike, Replicas, Unlike
from paceline.runtimes.live.worker.engine import Beating, Engine
from paceline.runtimes.live.worker.recorder import Recorder
from paceline.runtimes.live.worker.run_folder import FolderKeeper, Home, go_on, recorded_time
from paceline.runtimes.live.worker.slowness import Slowness
from paceline.runtimes.live.worker.speaking import FirstSpeaks
from paceline.runtimes.live.worker.stopping import Agreement
from paceline.runtimes.prepare import Prepared
from paceline.runtimes.replica import Replica, stream_seed
from paceline.runtimes.session import Ending, Position, Session
from paceline.specs import shorten
from paceline.strategies import STRATEGIES
from paceline.strategies.base import Worker


def seed_device(device: torch.device, seed: int, rank: int) -> None:
    """Give a worker its own stream of random numbers where it computes on a GPU; the CPU's is the replica's."""
    if device.type == "cuda":
        torch.cuda.manual_seed(stream_seed(seed, rank))


class WorkerRun:
    """What one worker holds while it runs."""

    def __init__(
        self,
        prepared: Prepared,
        group: Group,
        device: torch.device,
        observer: Observer,
        heartbeat: Beating,
    ) -> None:
        self.prepared, self.group, self.heartbeat = prepared, group, heartbeat
        self.observer = FirstSpeaks(observer, group)
        settings = prepared.settings
        self.replica = Replica(prepared.job, prepared.shards, group.rank, settings.seed, device, group.zeros)
        self.replica.streams.set(self.replica.rng)
        seed_device(device, settings.seed, group.rank)
        flat = self.replica.flat
        self.me = Worker(group.rank, group.workers, flat.params, flat.grad, self.replica.buffers)
        self.me.servers = prepared.servers
        self.position = Position()
        self.ledger, self.begun = TimeLedger(), 0.0
        self.last_row: MetricsRow | None = None
        self.loads: list[HostLoad] = []
        self.leaving: Callable[[], bool] = lambda: False

    def restore(self, folder: RunFolder, checkpoints: Checkpoints) -> None:
        """Become the worker that was saved; nothing in the folder changes."""
        replicated = self.prepared.strategy.replicated
        step, tree = load_shared(folder, checkpoints, self.group, self.observer.noted, replicated=replicated)
        settings, last = self.prepared.settings, self.prepared.agenda.last
        restore(tree, self.replica, self.me, self.position, settings.target_accuracy)
        if self.position.met >= last:
            raise already_complete(folder, settings, last, step)

    @property
    def folder(self) -> RunFolder:
        """The run folder, once this worker has moved in."""
        return self.home.folder

    def move_in(self, home: Home) -> None:
        """Take the run folder over; records and checkpoints beyond this worker's state are dropped."""
        self._move_in(home, self.me.clock)

    def _move_in(self, home: Home, clock: int) -> None:
        self.home = home
        damaged = go_on(home, self.group.rank, clock, self.position.progress)
        self.ledger, end = recorded_time(home.folder, self.group.rank)
        told = self.group.exchange({"begun": max(self.me.now, end), "damaged": damaged})
        for sentence in (sentence for other in told for sentence in other["damaged"]):
            self.observer.noted(sentence)
        self.begun = max(other["begun"] for other in told)

    def live(
        self,
        agreed: Agreement,
        before_hard_end: Callable[[Callable[[], None]], None],
        sampler: SystemSampler | None,
    ) -> Summary:
        """Train to the end; the first worker of a host has a sampler of the system."""
        with ExitStack() as stack:
            if sampler:
                stack.enter_context(sampler)
            events = stack.enter_context(EventWriter(self.folder.events(self.group.rank)))
            before_hard_end(events.flush)
            self.observer.started(self._started())
            ending = self._train(stack.enter_context(agreed), events)
        if ending == "left":  # the others go on, and have nothing to tell yet
            return self._summary(ending, [self.ledger.totals()], [])
        summary = self._summary(
            ending, self._all_totals(sampler.load if sampler else None), self.server_totals()
        )
        self.home.lock.check()
        if sampler:
            summary.cpu_percent, summary.memory_bytes = sampler.cpu_percent, sampler.memory_bytes
        if self.observer.speaks:
            write_json(self.folder.summary, summary.to_json())
        self.observer.finished(summary)
        return summary

    def _all_totals(self, load: HostLoad | None = None) -> list[Totals]:
        """Every worker's, at the place of its rank; of one that has gone, as far as it has recorded them here."""
        mine = {"totals": to_document(self.ledger.totals()), "load": to_document(load)}
        given = self.group.exchange({"rank": self.group.rank, **mine})
        self.loads = [HostLoad(**one["load"]) for one in given if one["load"]]
        totals = {one["rank"]: from_document(one["totals"], Totals) for one in given}
        gone = set(range(self.group.workers)) | set(self.folder.event_files())
        for rank in gone - set(totals):
            totals[rank] = recorded_time(self.folder, rank)[0].totals()
        return [
            totals.get(rank, Totals()) for rank in range(max(totals) + 1)
        ]  # a rank may never have been used

    def keeper(self) -> FolderKeeper:
        """Who saves this worker."""
        settings = self.prepared.settings
        return FolderKeeper(self.home, settings, self.replica, self.me, self.position, self.observer)

    def compared(self) -> Group:
        """Those with whom this worker compares how long each stood in an exchange."""
        return self.group

    def server_totals(self) -> list[ServerTotals]:
        """What the servers did."""
        return []

    def _train(self, agreed: Agreement, events: EventWriter) -> Ending:
        settings = self.prepared.settings
        self.line_up()
        recorder = Recorder(
            self.compared(), events.append, self.ledger, self.begun, events.flush, self._replicas()
        )
        engine = Engine(
            me=self.me,
            replica=self.replica,
            group=self.group,
            recorder=recorder,
            keeper=self.keeper(),
            observer=self.observer,
            heartbeat=self.heartbeat,
            agreement=agreed,
            leaving=self.leaving,
            slowness=self._slowness(),
            share_buffers=settings.buffers == "rank0",
        )

        def report(row: MetricsRow) -> None:
            self.last_row = row
            if self.observer.speaks:
                self.home.lock.check()
                append_metrics(self.folder.metrics, row)
            self.observer.evaluated(row)

        try:
            ending = engine.run(self._session(engine, report))
            self.me.now = recorder.now
        except BaseException:
            recorder.give_up(self.me.clock)
            raise
        finally:
            self.replica.close()
        return ending

    def _replicas(self) -> Replicas:
        if self.group.alone or not self.prepared.strategy.replicated:
            return Unlike()
        return Alike(self.group, self.me)

    def _slowness(self) -> Slowness:
        settings, rank = self.prepared.settings, self.group.rank
        return Slowness(settings.slow.get(rank, 1.0), rank, settings.slow_turns)

    def line_up(self) -> None:
        """Let all clocks start together, at the same reading."""
        self.me.now = self.begun
        self.group.minimum(torch.zeros(1))

    def _session(self, engine: Engine, report: Callable[[MetricsRow], None]) -> Session:
        prepared = self.prepared
        return Session(
            strategy=prepared.strategy,
            me=self.me,
            agenda=prepared.agenda,
            shards=prepared.shards,
            position=self.position,
            metrics=tuple(prepared.job.metrics),
            target=prepared.settings.target_accuracy,
            buffers=prepared.settings.buffers,
            learning_rate=self.replica.learning_rate,
            report=report,
            stopping=engine.stopping,
        )

    def _started(self) -> Started:
        prepared = self.prepared
        return Started(
            name=self.folder.path.name,
            job=prepared.job.name,
            parameters=self.me.params.numel(),
            strategy=shorten(prepared.settings.strategy, STRATEGIES),
            batch_sizes=prepared.settings.batch_sizes,
            step=prepared.job.step,
            transport=self._transport(),
            last_step=prepared.agenda.last,
            steps_per_epoch=prepared.agenda.steps_per_epoch,
            first_step=self.position.progress,
            seconds=self.begun,
            target=prepared.settings.target_accuracy,
            folder=str(self.folder.path),
            threads=torch.get_num_threads(),
            cores=usable_cores(),
        )

    def _transport(self) -> str:
        collective, transport = self.prepared.settings.collective, self.group.transport
        plain = collective == NATIVE or self.group.workers == 1
        return transport if plain else f"{transport}, by {collective}"

    def _summary(self, ending: Ending, totals: list[Totals], servers: list[ServerTotals]) -> Summary:
        row = self.last_row.to_json() if self.last_row else {}
        return Summary(
            name=self.folder.path.name,
            runtime="live",
            ending=ending,
            workers=self.group.workers,
            steps=self.position.progress,
            epochs=self.prepared.agenda.epoch(self.position.progress),
            seconds=self.me.now,
            samples=sum(part.samples for part in totals),
            parameters=self.me.params.numel(),
            target=self.prepared.settings.target_accuracy,
            target_seconds=self.position.reached,
            final=row,
            totals=totals,
            servers=servers,
            loads=self.loads,
        )
