"""The communicator as torch.distributed sees it: a process group that DDP and any script can use."""

# torch calls the forms below with options; its stubs list further forms that only its C++ classes have.
# mypy: disable-error-code="override,assignment"

from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from time import monotonic
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from paceline.shm import call
from paceline.shm.barrier import PeerLost
from paceline.shm.hierarchical_comm import HierarchicalComm
from paceline.shm.local_comm import LocalComm
from paceline.shm.operations import OPERATIONS, InvalidCall
from paceline.shm.work_queue import QueuedWork, Task, WorkQueue

_NAMES = {operation.torch_op: name for name, operation in OPERATIONS.items()}
_MANY = 64
"""Partners and tags beyond which those without work are forgotten."""
_GRACE = 2.0
"""Seconds that messages have to leave before their sender does."""


class SharedMemoryGroup(ProcessGroup):
    """Collectives run one after the other: in the caller's thread if it waits, else in one of the group's own.

    Messages have a thread for each partner that they go to, and for each partner and tag that they come from, so that
    sending never waits for receiving, nor one conversation for another.
    """

    def __init__(self, comm: LocalComm | HierarchicalComm) -> None:
        super().__init__(comm.rank, comm.size)  # type: ignore[call-arg]  # the form without a store
        self.comm = comm
        self._name = self._purpose = ""
        self._queue = WorkQueue("paceline-shm")
        self._queues: dict[tuple[str, int, int], WorkQueue] = {}
        self._choosing = Lock()

    def getBackendName(self) -> str:  # noqa: N802  torch's name
        return "shm"

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Torch says what the group is called; without this, it could not be destroyed alone."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupDesc(self, text: str) -> None:  # noqa: N802
        self._purpose = text

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._purpose

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        op = _operation(opts)
        return self._change_each(tensors, lambda whole: self.comm.all_reduce(whole, op), opts, op)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> Work:
        return self._change_each(tensors, lambda whole: self.comm.broadcast(whole, opts.rootRank), opts)

    def reduce(self, tensors: Sequence[Tensor], opts: Any) -> Work:
        op = _operation(opts)
        return self._change_each(tensors, lambda whole: self.comm.reduce(whole, opts.rootRank, op), opts, op)

    def _change_each(
        self, tensors: Sequence[Tensor], change: Callable[[Tensor], None], opts: Any, op: str = ""
    ) -> Work:
        def task() -> None:
            for tensor in tensors:
                _changing(tensor, change)

        return self._run(task, tensors, opts, op=op)

    def allgather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        def task() -> None:
            for targets, tensor in zip(outputs, inputs, strict=True):
                _filling(targets, partial(self.comm.all_gather, tensor=_whole(tensor)))

        return self._run(task, _flat(outputs), opts, inputs)

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [given], opts)

    _allgather_base = all_gather_single

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        """Several tensors, listed by rank."""
        return self.allgather([list(column) for column in zip(*outputs, strict=True)], inputs, opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        """Several tensors, each with all outputs."""

        def task() -> None:
            for output, given in zip(outputs, inputs, strict=True):
                whole = _whole(given)
                _changing(output, lambda parts: self.comm.all_gather(self._rows(parts), whole))  # noqa: B023

        return self._run(task, outputs, opts, inputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> Work:
        op = _operation(opts)

        def task() -> None:
            for output, given in zip(outputs, inputs, strict=True):
                parts = [_whole(part) for part in given]
                _changing(output, partial(self.comm.reduce_scatter, inputs=parts, op=op))

        return self._run(task, outputs, opts, _flat(inputs), op)

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter([output], [self._rows(given)], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        return self.reduce_scatter(outputs, [self._rows(given) for given in inputs], opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def gather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any) -> Work:
        targets = outputs[0] if outputs else []

        def task() -> None:
            given = _whole(inputs[0])
            _filling(targets, lambda whole: self.comm.gather(whole, given, opts.rootRank))

        return self._run(task, targets, opts, inputs)

    def scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any) -> Work:
        def task() -> None:
            parts = [_whole(part) for part in inputs[0]] if inputs else []
            _changing(outputs[0], lambda whole: self.comm.scatter(whole, parts, opts.rootRank))

        return self._run(task, outputs, opts, _flat(inputs))

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> Work:
        def task() -> None:
            given = [_whole(part) for part in inputs]
            _filling(outputs, lambda whole: self.comm.all_to_all(whole, given))

        return self._run(task, outputs, opts, inputs)

    def all_to_all_single(
        self,
        output: Tensor,
        given: Tensor,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
        opts: Any = None,
    ) -> Work:
        """One tensor on each side; ``splits`` count along the first dimension, equal if not given."""
        size = self.comm.size

        def task() -> None:
            parts = _split(_whole(given), input_splits, size)
            _changing(output, lambda whole: self.comm.all_to_all(_split(whole, output_splits, size), parts))

        return self._run(task, [output], opts, [given])

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> Work:
        return self._run(self.comm.barrier, (), opts)

    def zeros(self, length: int, dtype: torch.dtype) -> Tensor:
        """A tensor of zeros in shared memory, made by all ranks together, in turn with their collectives."""
        made: list[Tensor] = []

        def task() -> None:
            if problem := call.problem_with_zeros(length, dtype):
                self.comm.refuse(InvalidCall(problem))
            made.append(self.comm.zeros(length, dtype))

        self._queue.now(partial(self._carry_out, task))
        return made[0]

    def send(self, tensors: Sequence[Tensor], to: int, tag: int = 0) -> Work:
        _check(tensors[0])
        tensor = _whole(tensors[0])
        return self._talk("send", to, 0, QueuedWork(lambda: self.comm.send(tensor, to, tag), tensors))

    def recv(self, tensors: Sequence[Tensor], source: int, tag: int = 0) -> Work:
        _check(tensors[0])

        def task() -> None:
            _changing(tensors[0], lambda whole: self.comm.receive(whole, source, tag))

        return self._talk("recv", source, tag, QueuedWork(task, tensors, source))

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> Work:
        _check(tensors[0])

        def receive(whole: Tensor) -> None:
            work.source = self.comm.receive_any(whole, tag)

        work = QueuedWork(lambda: _changing(tensors[0], receive), tensors)
        return self._talk("recv", -1, tag, work)

    def _rows(self, tensor: Tensor) -> list[Tensor]:
        """A part for each rank; what cannot be cut stays whole, and is refused with all ranks."""
        return [tensor] if call.problem_with(tensor) else _split(_whole(tensor), (), self.comm.size)

    def _talk(self, direction: str, partner: int, tag: int, work: QueuedWork) -> Work:
        """Leave a message to the thread for its partner; several threads may ask, and order is kept for each."""
        key = direction, partner, tag
        with self._choosing:
            if key not in self._queues:
                if len(self._queues) > _MANY:
                    self._queues = {other: queue for other, queue in self._queues.items() if not queue.idle}
                self._queues[key] = WorkQueue(f"paceline-shm-{direction}-{partner}")
            return self._queues[key].add(work)

    def _run(
        self, task: Task, tensors: Sequence[Tensor], opts: Any, given: Sequence[Tensor] = (), op: str = ""
    ) -> Work:
        """Do it in turn: change ``tensors`` by what is ``given``. Where that cannot be, all ranks must raise."""
        if problem := _problem(tensors, given, op):
            task = partial(self.comm.refuse, InvalidCall(problem))
        if opts is not None and not opts.asyncOp:
            return self._queue.now(partial(self._carry_out, task), tensors)
        return self._queue.later(partial(self._carry_out, task), tensors)

    def _carry_out(self, task: Task) -> None:
        """Do it; a rank that leaves a collective for anything but a mistake of all cannot take part again."""
        try:
            task()
        except InvalidCall:
            raise
        except PeerLost as error:
            self.comm.close()
            raise self.comm.explain(error) from error
        except BaseException:
            self.comm.close()
            raise

    def shutdown(self) -> None:
        """Leave in good order: collectives that were asked for are done first, messages have a moment to leave."""
        self._queue.close()
        end = monotonic() + _GRACE
        with self._choosing:
            sending = [queue for (direction, *_), queue in self._queues.items() if direction == "send"]
        for queue in sending:
            queue.close(max(0.0, end - monotonic()))
        self.comm.close()

    def abort(self) -> None:
        """Leave at once; the others notice."""
        self.comm.close()


def _operation(opts: Any) -> str:
    """Our name of what torch asks for, or torch's if there is no such operation."""
    if opts is None:
        return "sum"
    asked = opts.reduceOp.op
    return _NAMES.get(asked) or str(asked.name)


def _problem(tensors: Sequence[Tensor], given: Sequence[Tensor], op: str) -> str:
    """Why this rank cannot do what it is asked for, in a sentence; "" if it can."""
    if op and op not in OPERATIONS:
        return f"shm has no {op}; choose one of: {', '.join(OPERATIONS)}"
    for tensor in (*tensors, *given):
        if problem := call.problem_with(tensor):
            return problem
    return ""


def _check(tensor: Tensor) -> None:
    if problem := call.problem_with(tensor):
        raise InvalidCall(problem)


def _flat(lists: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [tensor for tensors in lists for tensor in tensors]


def _whole(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _split(tensor: Tensor, splits: Sequence[int], size: int) -> list[Tensor]:
    """One tensor as parts for each rank; no parts where it cannot be cut: then all ranks raise."""
    if splits:
        return list(torch.split(tensor, list(splits))) if sum(splits) == len(tensor) else []
    return list(tensor.view(size, tensor.numel() // size)) if tensor.numel() % size == 0 else []


def _changing(tensor: Tensor, change: Callable[[Tensor], None]) -> None:
    """Work on a tensor in place, or on a contiguous copy that is written back."""
    whole = _whole(tensor)
    change(whole)
    if whole is not tensor:
        tensor.copy_(whole)


def _filling(tensors: Sequence[Tensor], fill: Callable[[list[Tensor]], None]) -> None:
    wholes = [_whole(tensor) for tensor in tensors]
    fill(wholes)
    for tensor, whole in zip(tensors, wholes, strict=True):
        if whole is not tensor:
            tensor.copy_(whole)
