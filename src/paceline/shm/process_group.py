"""The communicator as torch.distributed sees it: a process group that DDP and any script can use."""

# torch calls the forms below with options; its stubs list further forms that only its C++ classes have.
# mypy: disable-error-code="override,assignment"

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, product
from operator import index
from threading import Lock
from time import monotonic
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from paceline.shm.barrier import PeerLost
from paceline.shm.call import Call, Tensors, problem_with
from paceline.shm.hierarchical_comm import HierarchicalComm
from paceline.shm.local_comm import LocalComm
from paceline.shm.operations import OPERATIONS, InvalidCall, find_operation, operation_name
from paceline.shm.work_queue import FinishedWork, ShmWork, WorkQueue

Calls = Sequence[tuple[Tensors, Tensors]]
Done = TypeVar("Done")
_MANY = 64
"""Partners and tags beyond which those without work are forgotten."""
_GRACE = 2.0
"""Seconds that messages have to leave before their sender does."""


class SharedMemoryGroup(ProcessGroup):
    """Collectives run one after the other: in the caller's thread if it waits, else in one of the group's own.

    Messages have a thread for each partner to send to, and for each partner and tag to receive from.
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
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupDesc(self, text: str) -> None:  # noqa: N802
        self._purpose = text

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._purpose

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        if opts is not None and not opts.asyncOp and len(tensors) == 1 and self._queue.idle:
            with self._queue.turn:
                repeat = partial(self.comm.repeat, tensors[0], operation_name(opts.reduceOp.op))
                if self._together(repeat):
                    return FinishedWork(tensors)
        return self._run("all_reduce", [([tensor], ()) for tensor in tensors], opts)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        return self._run("broadcast", [([tensor], ()) for tensor in tensors], opts)

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        return self._run("reduce", [([tensor], ()) for tensor in tensors], opts)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        return self._run("all_gather", [(o, [i]) for o, i in zip(outputs, inputs, strict=True)], opts)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        return self.allgather(list(zip(*outputs, strict=True)), inputs, opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        return self.allgather([self._rows(output) for output in outputs], inputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Work:
        return self.allgather([self._rows(output)], [given], opts)

    _allgather_base = all_gather_single

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Work:
        return self._run("reduce_scatter", [([o], i) for o, i in zip(outputs, inputs, strict=True)], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        return self.reduce_scatter(outputs, [self._rows(given) for given in inputs], opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter([output], [self._rows(given)], opts)

    _reduce_scatter_base = reduce_scatter_single

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:
        return self._run("gather", [(outputs[0] if outputs else (), inputs)], opts)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        return self._run("scatter", [(outputs, inputs[0] if inputs else ())], opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        return self._run("all_to_all", [(outputs, inputs)], opts)

    def all_to_all_single(
        self,
        output: Tensor,
        given: Tensor,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
        opts: Any = None,
    ) -> Work:
        return self.alltoall(self._rows(output, output_splits), self._rows(given, input_splits), opts)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> Work:
        return self._run("barrier", [((), ())], opts)

    def _rows(self, tensor: Tensor, splits: Sequence[int] = ()) -> Tensors:
        size = self.comm.size
        if problem_with(tensor):
            return [tensor]
        if not splits and tensor.is_contiguous() and tensor.numel() % size == 0:
            return list(tensor.view(size, tensor.numel() // size))
        count = len(tensor) if tensor.dim() else 1
        splits = list(splits) or [count // size] * size
        return list(torch.split(tensor, splits)) if sum(splits) == count else []

    def _run(self, kind: str, calls: Calls, opts: Any) -> Work:
        """Carry collectives out in turn, each on outputs and inputs."""
        changed = [tensor for outputs, _ in calls for tensor in outputs]
        root, op, problem = getattr(opts, "rootRank", -1), "", ""
        if "reduce" in kind:
            op = "sum" if opts is None else operation_name(opts.reduceOp.op)
            if op not in OPERATIONS:
                problem = f"shm has no {op}; choose one of: {', '.join(OPERATIONS)}"
        for outputs, inputs in calls:
            for tensor in (*outputs, *inputs):
                problem = problem or problem_with(tensor)

        def task() -> None:
            for outputs, inputs in calls:
                targets = [_flat(tensor) for tensor in outputs]
                self._move(Call(kind, targets, [_flat(tensor) for tensor in inputs], op, root))
                for tensor, target in zip(outputs, targets, strict=True):
                    if not tensor.is_contiguous():
                        tensor.detach().copy_(target.view(tensor.shape))

        carry_out = self._queue.later if opts is None or opts.asyncOp else self._queue.now
        return carry_out(partial(self._together, task, problem), changed)

    def _together(self, task: Callable[[], Done], problem: str = "") -> Done:
        """Do it, if this rank can; if not, take part in the others' call, so that all ranks raise.

        A rank that leaves a collective for anything but a mistake of all cannot take part again.
        """
        try:
            if problem:
                self._disagree(InvalidCall(problem))
            return task()
        except InvalidCall:
            raise
        except PeerLost as error:
            self.comm.close()
            raise self.comm.explain(error) from error
        except BaseException:
            self.comm.close()
            raise

    def _move(self, call: Call) -> None:
        comm, outputs, inputs, root = self.comm, call.outputs, call.inputs, call.root
        if call.kind != "all_reduce":
            comm.agree(call)
        match call.kind:
            case "all_reduce":
                comm.all_reduce(call)  # in which the ranks agree by themselves
            case "broadcast":
                comm.broadcast(outputs[0], root)
            case "reduce":
                comm.reduce(outputs[0], root, find_operation(call.op, outputs[0].dtype))
            case "reduce_scatter":
                comm.reduce_scatter(outputs[0], inputs, find_operation(call.op, outputs[0].dtype))
            case "all_gather" | "gather":
                comm.gather(outputs, inputs[0])
            case "scatter":
                comm.scatter(outputs[0], inputs, root)
            case "all_to_all":
                comm.all_to_all(outputs, inputs, self._longest(outputs, inputs))

    def _longest(self, outputs: Tensors, inputs: Tensors) -> int:
        comm, names = self.comm, self.comm.names
        found = torch.empty(comm.size, 2, comm.size, dtype=torch.int64)
        mine = torch.tensor([len(part) for part in chain(inputs, outputs)])
        comm.gather(list(found.view(comm.size, -1)), mine)
        gives, takes = found.unbind(1)
        for one, other in product(range(comm.size), repeat=2):
            if gives[one, other] != takes[other, one]:
                raise InvalidCall(
                    f"all_to_all does not fit: rank {names[one]} gives {gives[one, other]} elements to rank "
                    f"{names[other]}, which expects {takes[other, one]}"
                )
        return int(gives.max())

    def _disagree(self, problem: InvalidCall) -> NoReturn:
        try:
            self.comm.agree(Call("unknown"))
        except InvalidCall as error:
            raise error from problem
        raise problem

    def zeros(self, length: int, dtype: torch.dtype) -> Tensor:
        made = list[Tensor]()
        try:  # callers may have given anything
            like = torch.empty(index(length), dtype=dtype, device="meta")
            problem = problem_with(like)
        except (TypeError, RuntimeError) as error:
            why = str(error).splitlines()[0]
            problem = f"zeros takes a length and a torch.dtype, not {length!r} and {dtype}: {why}"

        def task() -> None:
            self.comm.agree(Call("zeros", [like]))
            made.append(self.comm.zeros(len(like), dtype))

        self._queue.now(partial(self._together, task, problem), [])
        return made[0]

    def send(self, tensors: Tensors, to: int, tag: int = 0) -> Work:
        work = ShmWork(list(tensors), lambda: self.comm.send(tensors[0].contiguous(), to, tag))
        return self._talk("send", to, 0, work)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Work:
        tensor = tensors[0]

        def task() -> None:
            whole = tensor.contiguous()
            if source < 0:
                work.source = self.comm.receive_any(whole, tag)
            else:
                self.comm.receive(whole, source, tag)
            if whole is not tensor:
                tensor.copy_(whole)

        work = ShmWork(list(tensors), task, source)
        return self._talk("recv", source, tag, work)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        return self.recv(tensors, -1, tag)

    def _talk(self, direction: str, partner: int, tag: int, work: ShmWork) -> Work:
        """Leave a message to the thread for its partner; several threads may ask, and order is kept for each."""
        if problem := problem_with(work.result()[0]):
            raise InvalidCall(problem)
        key = direction, partner, tag
        with self._choosing:
            if key not in self._queues:
                if len(self._queues) > _MANY:
                    for other in [other for other, queue in self._queues.items() if queue.idle]:
                        self._queues.pop(other).close(0)
                self._queues[key] = WorkQueue(f"paceline-shm-{direction}-{partner}")
            return self._queues[key].add(work)

    def shutdown(self) -> None:
        self._queue.close()
        end = monotonic() + _GRACE
        with self._choosing:
            for (direction, *_), queue in self._queues.items():
                queue.close(max(0.0, end - monotonic()) if direction == "send" else 0)
        self.comm.close()

    def abort(self) -> None:
        self.comm.close()


def _flat(tensor: Tensor) -> Tensor:
    """A contiguous tensor of one dimension, which wants no gradient: the same memory where possible."""
    return (tensor.detach() if tensor.requires_grad else tensor).contiguous().view(-1)
