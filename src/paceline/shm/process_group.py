"""The party as torch.distributed sees it: a process group that DDP and anybody's script can use."""

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
from paceline.shm.operations import OPERATIONS, InvalidCall
from paceline.shm.party import Party
from paceline.shm.peers import PeerLost
from paceline.shm.works import Lane, Promised, Task

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

    def __init__(self, party: Party) -> None:
        super().__init__(party.rank, party.size)  # type: ignore[call-arg]  # the form without a store
        self.party = party
        self._name = self._purpose = ""
        self._lane = Lane("paceline-shm")
        self._lanes: dict[tuple[str, int, int], Lane] = {}
        self._choosing = Lock()

    def getBackendName(self) -> str:  # noqa: N802  torch's name
        """What torch calls this backend."""
        return "shm"

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Torch says what the group is called; without this, it could not be destroyed alone."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        """What torch called it."""
        return self._name

    def setGroupDesc(self, text: str) -> None:  # noqa: N802
        """Torch says what the group is for."""
        self._purpose = text

    def getGroupDesc(self) -> str:  # noqa: N802
        """What torch said."""
        return self._purpose

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        """Make every rank's tensors the combination of all."""
        op = _operation(opts)

        def task() -> None:
            for tensor in tensors:
                _changing(tensor, lambda whole: self.party.all_reduce(whole, op))

        return self._run(task, tensors, opts, op=op)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> Work:
        """Make every rank's tensors those of the root."""

        def task() -> None:
            for tensor in tensors:
                _changing(tensor, lambda whole: self.party.broadcast(whole, opts.rootRank))

        return self._run(task, tensors, opts)

    def reduce(self, tensors: Sequence[Tensor], opts: Any) -> Work:
        """Make the root's tensors the combination of all."""
        op = _operation(opts)

        def task() -> None:
            for tensor in tensors:
                _changing(tensor, lambda whole: self.party.reduce(whole, opts.rootRank, op))

        return self._run(task, tensors, opts, op=op)

    def allgather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        """Fill the outputs with every rank's input."""

        def task() -> None:
            for targets, tensor in zip(outputs, inputs, strict=True):
                _filling(targets, partial(self.party.all_gather, tensor=_whole(tensor)))

        return self._run(task, [tensor for targets in outputs for tensor in targets], opts, inputs)

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Work:
        """The same with one tensor that holds all outputs."""
        return self.all_gather_single_coalesced([output], [given], opts)

    _allgather_base = all_gather_single

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        """The same for several tensors, listed by rank."""
        return self.allgather([list(column) for column in zip(*outputs, strict=True)], inputs, opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        """The same for several tensors, each with all outputs."""

        def task() -> None:
            for output, given in zip(outputs, inputs, strict=True):
                whole = _whole(given)
                _changing(output, lambda parts: self.party.all_gather(self._rows(parts), whole))  # noqa: B023

        return self._run(task, outputs, opts, inputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> Work:
        """Combine everybody's input for each rank."""
        op = _operation(opts)

        def task() -> None:
            for output, given in zip(outputs, inputs, strict=True):
                parts = [_whole(part) for part in given]
                _changing(output, partial(self.party.reduce_scatter, inputs=parts, op=op))

        return self._run(task, outputs, opts, [part for given in inputs for part in given], op)

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Work:
        """The same with one tensor that holds all inputs."""
        return self.reduce_scatter([output], [self._rows(given)], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        """The same for several tensors, each with all inputs."""
        return self.reduce_scatter(outputs, [self._rows(given) for given in inputs], opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def gather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any) -> Work:
        """Fill the root's outputs with every rank's input."""
        targets = outputs[0] if outputs else []

        def task() -> None:
            given = _whole(inputs[0])
            _filling(targets, lambda whole: self.party.gather(whole, given, opts.rootRank))

        return self._run(task, targets, opts, inputs)

    def scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any) -> Work:
        """Give the root's inputs to the ranks."""

        def task() -> None:
            parts = [_whole(part) for part in inputs[0]] if inputs else []
            _changing(outputs[0], lambda whole: self.party.scatter(whole, parts, opts.rootRank))

        return self._run(task, outputs, opts, [part for given in inputs for part in given])

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> Work:
        """Give each rank its input, and get one from each."""

        def task() -> None:
            given = [_whole(part) for part in inputs]
            _filling(outputs, lambda whole: self.party.all_to_all(whole, given))

        return self._run(task, outputs, opts, inputs)

    def all_to_all_single(
        self,
        output: Tensor,
        given: Tensor,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
        opts: Any = None,
    ) -> Work:
        """The same with one tensor on each side; ``splits`` count along the first dimension, equal if not given."""
        size = self.party.size

        def task() -> None:
            parts = _split(_whole(given), input_splits, size)
            _changing(output, lambda whole: self.party.all_to_all(_split(whole, output_splits, size), parts))

        return self._run(task, [output], opts, [given])

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> Work:
        """Wait for everybody."""
        return self._run(self.party.barrier, (), opts)

    def zeros(self, length: int, dtype: torch.dtype) -> Tensor:
        """A tensor of zeros in shared memory, made by all ranks together, in turn with their collectives."""
        made: list[Tensor] = []

        def task() -> None:
            if problem := call.problem_with_zeros(length, dtype):
                self.party.refuse(InvalidCall(problem))
            made.append(self.party.zeros(length, dtype))

        self._lane.now(partial(self._carry_out, task))
        return made[0]

    def send(self, tensors: Sequence[Tensor], to: int, tag: int = 0) -> Work:
        """Send a tensor to one rank."""
        _check(tensors[0])
        tensor = _whole(tensors[0])
        return self._talk("send", to, 0, Promised(lambda: self.party.send(tensor, to, tag), tensors))

    def recv(self, tensors: Sequence[Tensor], source: int, tag: int = 0) -> Work:
        """Receive a tensor from one rank."""
        _check(tensors[0])

        def task() -> None:
            _changing(tensors[0], lambda whole: self.party.receive(whole, source, tag))

        return self._talk("recv", source, tag, Promised(task, tensors, source))

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> Work:
        """Receive a tensor from whoever sends one."""
        _check(tensors[0])

        def task() -> None:
            _changing(tensors[0], lambda whole: work.came_from(self.party.receive_any(whole, tag)))

        work = Promised(task, tensors)
        return self._talk("recv", -1, tag, work)

    def _rows(self, tensor: Tensor) -> list[Tensor]:
        """A part for each rank; what cannot be cut stays whole, and is refused with all ranks."""
        return [tensor] if call.problem_with(tensor) else _split(_whole(tensor), (), self.party.size)

    def _talk(self, direction: str, partner: int, tag: int, work: Promised) -> Work:
        """Leave a message to the thread for its partner; several threads may ask, and order is kept for each."""
        key = direction, partner, tag
        with self._choosing:
            if key not in self._lanes:
                if len(self._lanes) > _MANY:
                    self._lanes = {other: lane for other, lane in self._lanes.items() if not lane.idle}
                self._lanes[key] = Lane(f"paceline-shm-{direction}-{partner}")
            return self._lanes[key].add(work)

    def _run(
        self, task: Task, tensors: Sequence[Tensor], opts: Any, given: Sequence[Tensor] = (), op: str = ""
    ) -> Work:
        """Do it in turn: change ``tensors`` by what is ``given``. Where that cannot be, all ranks must hear of it."""
        if problem := _problem(tensors, given, op):
            task = partial(self.party.refuse, InvalidCall(problem))
        if opts is not None and not opts.asyncOp:
            return self._lane.now(partial(self._carry_out, task), tensors)
        return self._lane.later(partial(self._carry_out, task), tensors)

    def _carry_out(self, task: Task) -> None:
        """Do it; a rank that is torn out of a collective by anything but a mistake of all cannot take part again."""
        try:
            task()
        except InvalidCall:
            raise
        except PeerLost as error:
            self.party.close()
            raise self.party.explain(error) from error
        except BaseException:
            self.party.close()
            raise

    def shutdown(self) -> None:
        """Leave in good order: collectives that were asked for are done first, messages have a moment to leave."""
        self._lane.close()
        end = monotonic() + _GRACE
        with self._choosing:
            sending = [lane for (direction, *_), lane in self._lanes.items() if direction == "send"]
        for lane in sending:
            lane.close(max(0.0, end - monotonic()))
        self.party.close()

    def abort(self) -> None:
        """Leave at once; the others are told."""
        self.party.close()


def _operation(opts: Any) -> str:
    """Our name of what torch asks for, or torch's if there is no such operation."""
    if opts is None:
        return "sum"
    asked = opts.reduceOp.op
    return _NAMES.get(asked) or str(asked.name)


def _problem(tensors: Sequence[Tensor], given: Sequence[Tensor], op: str) -> str:
    """Why this rank cannot do what it is asked for, in a sentence; nothing if it can."""
    if op and op not in OPERATIONS:
        return f"shm has no {op}; choose one of: {', '.join(OPERATIONS)}"
    for tensor in (*tensors, *given):
        if problem := call.problem_with(tensor):
            return problem
    return ""


def _check(tensor: Tensor) -> None:
    if problem := call.problem_with(tensor):
        raise InvalidCall(problem)


def _whole(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _split(tensor: Tensor, splits: Sequence[int], size: int) -> list[Tensor]:
    """One tensor as parts for each rank; where there are none, no parts: the party tells everybody."""
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
