"""The run of a script's loop: it begins with the first mini-batch, and ends with the script."""

from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.codecs import build_codec
from paceline.errors import UsageError, say_on_stderr
from paceline.loop.barrier import LoopBarrier, ServedPlaces
from paceline.loop.hooks import LoopHooks
from paceline.loop.mini_batch import FirstBatch, find_equal
from paceline.loop.process import ScriptProcess
from paceline.loop.replica import LoopReplica, LoopRun, prepare_script
from paceline.loop.saved import begin_at
from paceline.loop.served import MODEL, ServedOptimizer, describe
from paceline.loop.uneven import UnevenLoops
from paceline.records.events import EventWriter
from paceline.records.files import to_document
from paceline.records.load import SystemSampler
from paceline.runtimes.live.run_store import MemberStore, check_equal
from paceline.runtimes.live.worker.comm import ProcessGroupComm, SoloComm, join_group
from paceline.runtimes.live.worker.server_comm import ServerComm
from paceline.runtimes.live.worker.start import agree_to_stop, sample_system
from paceline.runtimes.prepare import check_settings
from paceline.runtimes.replica import check_momentum_of
from paceline.runtimes.session import Ending, Session
from paceline.runtimes.settings import Settings
from paceline.strategies.effects import Program, Wait

TOGETHER = "all workers must get there after equally many steps"
EVENLY = (
    "all workers must take equally many steps: divide the data by worker.shard(loader), or put the loop in 'with "
    "worker.join():'"
)


class LoopSteps:
    """One worker of a run. The run begins with the first mini-batch: only then are the batch sizes known."""

    _session: Session
    _recording: AbstractContextManager[EventWriter]
    _sampler: SystemSampler | None = None
    _barrier: LoopBarrier | ServedPlaces | None = None

    def __init__(
        self, process: ScriptProcess, settings: Settings, model: nn.Module, optimizer: Optimizer
    ) -> None:
        self._process, self.settings = process, settings
        if any(one.is_cuda for one in model.parameters()):  # as the script has it
            process.options = replace(process.options, device="cuda")
        if build_codec(settings.codec).has_momentum:
            check_momentum_of(optimizer, settings.codec, "", "SGD with momentum=0")
        self._observer = process.observe(settings)
        served = check_settings(settings).served
        process.heartbeat.enter("exchange")
        self.comm: SoloComm = self._join_servers() if served else self._join_group()
        check_equal(self.comm.exchange({"strategy": settings.strategy, "codec": settings.codec}))
        learners = check_settings(settings).learner_plan.count or 1
        self.replica = LoopReplica(
            model, optimizer, self.comm.rank, self.comm.workers, self.comm.zeros, learners
        )
        self._served: ServedOptimizer | None = None
        if isinstance(self.comm, ServerComm):
            self._served = ServedOptimizer(self.replica, self.comm, process.info.servers)
        told = self.comm.exchange([process.seed, *self.replica.elements])
        self.seed: int = told[0][0]
        _check_same_model([elements for _, *elements in told])
        if not self._served:
            self._share(self.replica.flat.params)
            self.replica.share_untrained(self._share)
        self.loaded: dict[str, Any] = {}
        self._stack = ExitStack()
        self._hooks = LoopHooks(self.replica, self._served, process.heartbeat, self._open)
        self.synchronize, self.evaluated = self._hooks.synchronize, self._hooks.evaluated
        process.heartbeat.enter("script")

    @property
    def run(self) -> LoopRun | None:
        """Since all workers have had their first mini-batch."""
        return self._hooks.run

    def _join_group(self) -> SoloComm:
        return join_group(self._process.info, self._process.options, note=self._observer.noted)

    def _join_servers(self) -> ServerComm:
        info, timeout = self._process.info, timedelta(seconds=self._process.options.timeout)
        return ServerComm(info.rank, info.workers, MemberStore(info, timeout))

    def _share(self, vector: Tensor) -> None:
        """Give all workers what rank 0 has."""
        if vector.numel():
            self.comm.broadcast(vector, 0)

    def central(self) -> tuple[Tensor, Tensor]:
        """The parameters and buffers of the central model; all workers ask at the same step."""
        found = self._central()
        if found is None:
            raise KeyboardInterrupt
        return found

    def _central(self) -> tuple[Tensor, Tensor] | None:
        """None where all workers stop here: those of servers learn of a stop when they synchronize."""
        assert self.run is not None
        if self._hooks.uneven:
            raise UsageError(
                "central_model() inside of join(), where workers whose loops have ended do not come; use it after "
                "join()"
            )
        self._hooks.take_skipped()
        self.replica.check_attached()
        self._wait_for_all("central_model()", TOGETHER)
        self.run.heartbeat.enter("exchange")
        found: tuple[Tensor, Tensor] | None = self.run.carry_out(self._session.central())
        self.run.heartbeat.enter("script")
        if found is None:
            self._hooks.ending = "interrupted"
        return found

    def wait(self) -> None:
        """Have the result of every reduction that was started: no state has half of one."""
        if self.run:
            self.run.carry_out(_waited())

    def begin_join(self) -> None:
        if self._hooks.uneven:
            raise UsageError(
                "join() inside of join(): workers wait for each other at the end of the outer one"
            )
        if not self.comm.alone and not self._served:  # servers wait for nobody who has ended
            self._hooks.uneven = UnevenLoops(self._hooks, self.comm)

    def end_join(self, *, failed: bool) -> None:
        """This worker's loop has ended: follow the others until theirs have, unless an exception ended it."""
        hooks = self._hooks
        try:
            if hooks.uneven and not failed:
                if self.run is None:  # without a mini-batch
                    self._open(FirstBatch())
                hooks.follow_others(hooks.uneven)
        finally:
            hooks.uneven = None

    def _wait_for_all(self, where: str, together: str) -> None:
        """Wait for all workers to be at this point of their scripts.

        With servers, workers that have agreed to stop do so wherever they are.
        """
        assert self.run is not None
        self.run.heartbeat.enter("exchange")
        if self._barrier and not (self._served and self.stopped):
            self._barrier.wait(where, together)

    @property
    def agrees(self) -> bool:
        return self.run is not None

    @property
    def stopped(self) -> bool:
        return self._hooks.ending == "interrupted"

    def finish(self) -> Ending:
        """The script has ended: add up what all workers did."""
        if self.comm.gone:
            say_on_stderr(
                "the script has destroyed its process group before the run was added up, so that its record has no "
                "summary; call worker.close() first"
            )
            self.abandon()
            return self._hooks.ending
        try:
            if self.run is None and not self.comm.alone:
                self._open(FirstBatch(ended=True))
            if self.run is not None:
                self._end(self.run)
        except BaseException:
            self.abandon()
            raise
        self._hooks.remove()
        with closing(self._observer), self.comm, self._stack:
            if self.run is not None:
                self._recording.__exit__(None, None, None)
                self.run.conclude(self._hooks.ending, self._sampler)
        return self._hooks.ending

    def _end(self, run: LoopRun) -> None:
        """The last that all workers do together."""
        if not self.stopped:
            self._hooks.take_skipped()
        self._wait_for_all("the end of its script", EVENLY)
        self._hooks.remove()
        if self._served and not self.stopped:  # the others may have steps to take
            self._central()
        self._process.heartbeat.enter("finishing")
        if self._barrier:
            self._barrier.close()
        self._hooks.end()
        run.settle()

    def abandon(self) -> None:
        """The script has failed: keep what was recorded, and let the other workers notice at once."""
        self._hooks.remove()
        if self._barrier:
            self._barrier.close()
        if self.run is not None:
            self.run.recorder.give_up(self.run.me.clock)
            self._recording.__exit__(None, None, None)
        self.comm.close(failed=True)
        self._stack.close()
        self._observer.close()

    def _open(self, batch: FirstBatch) -> None:
        """All workers have their first mini-batch: the run begins, and its program asks for the first gradient.

        Workers whose scripts end without one begin it too; where all do, there is no run.
        """
        process, replica = self._process, self.replica
        process.heartbeat.enter("exchange")
        batches = [FirstBatch(**one) for one in self.comm.exchange(asdict(batch))]
        if all(one.ended for one in batches):
            return
        sizes = tuple(max(1, one.samples // len(replica.learners)) for one in batches)
        settings = process.settings(self.settings.strategy, self.settings.codec, sizes)
        if isinstance(self.comm, ServerComm) and self.comm.rank == 0:
            self.comm.post(MODEL, to_document(describe(replica, settings.codec, sizes)))
        prepared = prepare_script(settings, check_settings(settings), replica.model, replica.users_optimizer)
        replica.prepare(prepared.job, prepared.shards)
        run = LoopRun(prepared, self.comm, replica, self._observer, process.heartbeat)
        task = process.task(settings)
        self._stack.enter_context(run.records.hold(task, None))
        process.heartbeat.show(run.records.folder.path)
        run.records.open(0, restored=True)
        begin_at(self.loaded, run)
        if equal := find_equal(batches):
            run.records.noted(
                f"ranks {equal[0]} and {equal[1]} begin with the same mini-batch: divide the data by "
                "worker.shard(loader), or each of them computes what another one does"
            )
        self._sampler = (
            sample_system(run.records, task, self._observer) if process.info.local_rank == 0 else None
        )
        stop = agree_to_stop(run, task)
        if isinstance(self.comm, ProcessGroupComm):
            self._barrier = LoopBarrier(self.comm.open_store(), run, process.options.timeout)
        if isinstance(self.comm, ServerComm):
            self._barrier = ServedPlaces(self.comm.store, run)
        if self._served:
            self._served.begin()
            replica.share_untrained(self._share)
        self._recording = run.recording(task.before_hard_end, self._sampler)
        self._session = run.begin_session(self._recording.__enter__(), stop)
        self._hooks.begin(run, run.computations(self._session))


def _check_same_model(elements: list[list[int]]) -> None:
    for rank, own in enumerate(elements):
        if own != elements[0]:
            raise UsageError(
                f"the model has {_elements(elements[0])} on rank 0 and {_elements(own)} on rank {rank}, and all "
                "workers train the same; make it alike on all ranks"
            )


def _elements(counts: list[int]) -> str:
    trained, buffers, others = counts
    return f"{trained:,} trained elements and {buffers + others:,} others"


def _waited() -> Program:
    yield Wait()
