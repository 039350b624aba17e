"""Reductions and broadcasts among live workers; with every mean travel its weights, and votes to stop."""

from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from paceline.codecs.exchanges import Reduction, Sum
from paceline.collectives.traffic import broadcast_bytes
from paceline.runtimes.compression import Compressor
from paceline.runtimes.flat import CONTROL, VOTE, WEIGHT
from paceline.runtimes.live.worker.background import ReductionResult, ReductionThread
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.runtimes.live.worker.overlap import Overlap
from paceline.runtimes.live.worker.recorder import StepRecorder
from paceline.runtimes.live.worker.stopping import StopByVote
from paceline.runtimes.replica import Replica
from paceline.strategies.base import Worker
from paceline.strategies.effects import AllReduce, Broadcast, StartAllReduce, Wait


class Reductions:
    """Carries out what a program asks for; a ``compressor`` encodes gradients, parameters and their means."""

    def __init__(
        self,
        me: Worker,
        replica: Replica,
        comm: SoloComm,
        compressor: Compressor | None,
        recorder: StepRecorder,
        stop: StopByVote,
    ) -> None:
        self._me, self._replica, self._comm = me, replica, comm
        self._compressor, self._recorder, self._stop = compressor, recorder, stop
        self._background = ReductionThread(me, replica, comm, recorder)

    def finish(self, overlap: Overlap) -> None:
        """Reduce what is left of a gradient whose buckets are reduced while backward runs."""
        storage = self._replica.flat.grad_storage
        self._fill_control(storage, self._me.samples)
        for start, end in overlap.finish():
            self._recorder.hide(start, end)
        self._read_control(storage)
        self._recorder.exchanged(overlap.sent, overlap.received)

    @torch.no_grad()
    def all_reduce(self, effect: AllReduce) -> None:
        me, tensor = self._me, effect.tensor
        if self._comm.alone:
            me.total_weight = effect.weight
        elif self._compressor and tensor is me.grad and effect.op == "sum":
            self._reduce(self._compressor.reduce_whole_gradient())
        elif effect.offset is not None:
            self._take_over(self._reduce_update(self._stop.vote(), effect, tensor))
        elif effect.op == "sum":
            self._sum(tensor)
        elif tensor is me.params or tensor is me.grad:
            flat = self._replica.flat
            storage = flat.params_storage if tensor is me.params else flat.grad_storage
            self._fill_control(storage, effect.weight)
            if self._compressor:
                self._compressed_mean(self._compressor, effect, storage)
            else:
                tensor.mul_(effect.weight)
                self._sum(storage)
                self._read_control(storage)
                tensor.div_(me.total_weight)
        else:
            self._take_over(self._reduce_tensor(effect, tensor))
        if tensor is me.params or effect.offset is not None:
            me.samples_since_sync = 0

    @torch.no_grad()
    def start(self, effect: StartAllReduce) -> None:
        me, is_difference = self._me, effect.offset is not None
        if self._comm.alone:
            me.total_weight = effect.weight
        else:
            vote = self._stop.vote()
            self._background.start(
                effect, partial(self._reduce_update, vote) if is_difference else self._reduce_tensor
            )
        if is_difference:
            me.samples_since_sync = 0

    @property
    def under_way(self) -> bool:
        return self._background.under_way

    def raise_failure(self) -> None:
        self._background.raise_failure()

    @torch.no_grad()
    def wait(self, _: Wait | None = None) -> None:
        """What is left of reductions that were started; the rest is hidden behind computing."""
        for exchanged in self._background.wait():
            self._take_over(exchanged)

    def _take_over(self, exchanged: ReductionResult) -> None:
        self._me.total_weight = exchanged.total_weight
        self._stop.count(exchanged.votes)
        self._recorder.exchanged(exchanged.sent, exchanged.received)

    def _reduce_update(self, vote: float, effect: AllReduce, update: Tensor) -> ReductionResult:
        """A difference of parameters: by the codec, if there is one, once a worker's share of the mean is known."""
        assert effect.offset is not None
        found = ReductionResult(effect.weight)
        if effect.op == "mean":
            control = update.new_zeros(CONTROL)
            control[WEIGHT], control[VOTE] = effect.weight, vote
            self._comm.sum(control)
            found.sent, found.received = self._comm.traffic(control)
            found.total_weight, found.votes = control[: VOTE + 1].tolist()
            found.begun = perf_counter()
            update.mul_(effect.weight / found.total_weight)
        compressor = self._compressor
        program = compressor.reduce_update(update, effect.offset) if compressor else _summed(update)
        sent, received = self._comm.reduce(program)
        found.sent, found.received = found.sent + sent, found.received + received
        return found

    def _reduce_tensor(self, effect: AllReduce, tensor: Tensor) -> ReductionResult:
        """What is sent as it is, with its weight in front where it is a mean."""
        message = tensor.to(self._replica.device)
        if effect.op == "mean":
            weight = message.new_full((1,), effect.weight)
            message = torch.cat((weight, message.reshape(-1) * effect.weight))
        self._comm.sum(message)
        found = ReductionResult(effect.weight, 0.0, *self._comm.traffic(message))
        if effect.op == "mean":
            found.total_weight = message[0].item()
            message = message[1:].view_as(tensor) / found.total_weight
        if message is not tensor:
            tensor.copy_(message)
        return found

    def broadcast(self, effect: Broadcast) -> None:
        comm, tensor = self._comm, effect.tensor
        if comm.alone or not tensor.numel():
            return
        comm.broadcast(tensor, effect.root)
        if self._compressor and tensor is self._me.params:
            self._compressor.take_reference()
        self._recorder.exchanged(*broadcast_bytes(tensor.nbytes, comm.workers, comm.rank, effect.root))

    def _compressed_mean(self, compressor: Compressor, effect: AllReduce, storage: Tensor) -> None:
        """The control elements go first, exactly: a worker's share of the mean must be known before it is encoded."""
        self._sum(storage[:CONTROL])
        self._read_control(storage)
        share = effect.weight / self._me.total_weight
        if effect.tensor is self._me.params:
            self._reduce(compressor.reduce_params(share))
        else:
            effect.tensor.mul_(share)
            self._reduce(compressor.reduce_whole_gradient())

    def _fill_control(self, storage: Tensor, weight: float) -> None:
        storage[WEIGHT] = weight
        storage[VOTE] = self._stop.vote()

    def _read_control(self, storage: Tensor) -> None:
        self._me.total_weight, votes = storage[: VOTE + 1].tolist()
        self._stop.count(votes)

    def _reduce(self, program: Reduction) -> None:
        self._recorder.exchanged(*self._comm.reduce(program))

    def _sum(self, tensor: Tensor) -> None:
        there = tensor.to(self._replica.device)
        self._comm.sum(there)
        if there is not tensor:
            tensor.copy_(there)
        self._recorder.exchanged(*self._comm.traffic(there))


def _summed(vector: Tensor) -> Reduction:
    yield Sum(vector)
