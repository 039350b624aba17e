"""What a codec costs: its own code, run on meta tensors, tells what it exchanges and which operators it calls."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from paceline.codecs.base import Codec, Context, Identity, Layout, Reduction
from paceline.codecs.reduction import AllGather, AllToAll, Sum, encode_once, reduce
from paceline.codecs.state import CodecState
from paceline.costs.trace.operator import Operator
from paceline.costs.trace.recorder import HeldMemory, OperatorRecorder
from paceline.costs.trace.trace import trace_function, without_values

STEADY = 2**62
"""A round in which every warm-up is over."""

Timed = Callable[[Operator], float]


class Exchange(NamedTuple):
    """What each rank gives to an exchange of a reduction."""

    kind: Literal["sum", "all-gather", "all-to-all"]
    size: int
    """Bytes of the tensor that is summed, of what all ranks get, or of what each other rank gets."""
    element: int


@dataclass(frozen=True, slots=True)
class CodedReduction:
    """A reduction of encoded vectors: exchanges, and coding before each of them and after the last."""

    exchanges: tuple[Exchange, ...]
    seconds: tuple[float, ...]
    """Of coding: one more than exchanges."""
    held: float
    """Bytes of memory that coding takes, messages of other ranks included."""

    @property
    def coding(self) -> float:
        return sum(self.seconds)

    @property
    def gathers(self) -> bool:
        """Whether every rank gets the whole message of every other."""
        return {exchange.kind for exchange in self.exchanges} == {"all-gather"}


@dataclass(frozen=True, slots=True)
class CodedMessage:
    """A message to one receiver: its bytes, and the seconds to encode and to decode it."""

    size: int
    encode: float
    decode: float
    held: float


def no_time(operator: Operator) -> float:  # noqa: ARG001
    return 0.0


@dataclass(frozen=True, kw_only=True)
class CodecCosts:
    """A codec on one device; parts of the flat vector are given by their layouts."""

    codec: Codec = Identity()
    timed: Timed = no_time
    """Seconds of an operator."""
    scale: float = 1.0
    """How many times as long coding takes."""
    by_round: bool = False
    """Whether the codec is as it is in each round, or as after all warm-ups."""

    @property
    def compresses(self) -> bool:
        return not isinstance(self.codec, Identity)

    def at(self, round: int) -> Codec:  # noqa: A002
        return self.codec.at(round) if self.by_round else self.codec

    def reduction(
        self, layout: Layout, dtype: torch.dtype, workers: int, codec: Codec | None = None
    ) -> CodedReduction:
        """Of a part of the vector, among at least two workers; by ``codec`` instead, where a round has its own."""
        exchanges, seconds, held = _reduction(codec or self.codec, self.timed, layout, dtype, workers)
        return CodedReduction(exchanges, tuple(self.scale * one for one in seconds), held)

    def message(self, layout: Layout, dtype: torch.dtype, codec: Codec | None = None) -> CodedMessage:
        """Of a part of the vector, to a server."""
        size, encode, decode, held = _message(codec or self.codec, self.timed, layout, dtype)
        return CodedMessage(size, self.scale * encode, self.scale * decode, held)

    def state_bytes(self, layout: Layout, dtype: torch.dtype) -> int:
        """What a worker keeps from round to round."""
        return sum(one.numel() * dtype.itemsize for one in _state(self.codec, layout, dtype).values())


UNCODED = CodecCosts()


class _Traced(NamedTuple):
    exchanges: tuple[Exchange, ...]
    operators: tuple[Counter[Operator], ...]
    """One more than exchanges."""
    held: int


@lru_cache(maxsize=4096)
def _reduction(
    codec: Codec, timed: Timed, layout: Layout, dtype: torch.dtype, workers: int
) -> tuple[tuple[Exchange, ...], tuple[float, ...], int]:
    """Programs loop over ranks: loops over two and over three of them tell how long those over all take.

    What is the same among two workers as among three does not depend on their number.
    """
    two, three = (_traced(codec, layout, dtype, many, many) for many in (2, 3))
    more = 0
    if workers > 2 and two != three:
        two, three = (_traced(codec, layout, dtype, workers, shown) for shown in (2, 3))
        more = workers - 2
    first, second = ([_seconds(one, timed) for one in traced.operators] for traced in (two, three))
    seconds = tuple(one + more * (other - one) for one, other in zip(first, second, strict=False))
    received = max((one.size for one in two.exchanges if one.kind != "sum"), default=0)
    held = two.held + more * (three.held - two.held) + (workers - 1) * received
    return two.exchanges, seconds, held


def _seconds(operators: Mapping[Operator, int], timed: Timed) -> float:
    return sum(many * timed(operator) for operator, many in operators.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class _FewRanks(Context):
    """Chunks are as long as among all workers, and as the longest of them, but there are only a few."""

    shown: int

    def chunks(self) -> list[tuple[slice, Context]]:
        return [self.chunk(self.workers - 1)] * self.shown


@lru_cache(maxsize=4096)
def _traced(codec: Codec, layout: Layout, dtype: torch.dtype, workers: int, shown: int) -> _Traced:
    """One rank's program among ``workers``, of which it sees only some."""
    context = _FewRanks(
        layout=layout,
        state=_state(codec, layout, dtype),
        round=STEADY,
        workers=workers,
        share=1 / workers,
        shown=shown,
    )
    vector = torch.empty(layout.elements, dtype=dtype, device="meta")
    recorder = OperatorRecorder(without_values, HeldMemory())
    with recorder:
        # What is looked up once, such as lengths of messages, is found before operators are counted.
        for _ in _exchanges(reduce(codec, vector, context), shown):
            pass
        recorder.phase = "forward"
        exchanges, operators = list[Exchange](), list[list[Operator]]()
        for exchange in _exchanges(reduce(codec, vector, context), shown):
            exchanges.append(exchange)
            operators.append(_taken(recorder))
        operators.append(_taken(recorder))
    held = max((one.held for found in operators for one in found), default=0)
    return _Traced(tuple(exchanges), tuple(map(Counter, operators)), held)


def _taken(recorder: OperatorRecorder) -> list[Operator]:
    found = [operator for operator, _ in recorder.calls["forward"]]
    recorder.begin()
    return found


def _exchanges(program: Reduction, shown: int) -> Iterator[Exchange]:
    """Run a program as if every rank had given the same as this one."""
    answer: list[Tensor] | None = None
    with suppress(StopIteration):
        while True:
            match program.send(answer):
                case Sum(tensor=tensor):
                    answer = None
                    yield Exchange("sum", tensor.nbytes, tensor.itemsize)
                case AllGather(vector=vector):
                    answer = [vector] * shown
                    yield Exchange("all-gather", vector.nbytes, vector.itemsize)
                case AllToAll(vectors=vectors):
                    answer = list(vectors)
                    yield Exchange("all-to-all", vectors[0].nbytes, vectors[0].itemsize)


@lru_cache(maxsize=4096)
def _message(codec: Codec, timed: Timed, layout: Layout, dtype: torch.dtype) -> tuple[int, float, float, int]:
    context = Context(layout=layout, state=_state(codec, layout, dtype), round=STEADY)
    vector = torch.empty(layout.elements, dtype=dtype, device="meta")
    message, encoding = trace_function(lambda: encode_once(codec, vector, context))
    _, decoding = trace_function(lambda: codec.add(message, vector, context))
    held = max((one.held for one in (*encoding, *decoding)), default=0)
    encode, decode = (_seconds(Counter(found), timed) for found in (encoding, decoding))
    return sum(one.nbytes for one in message), encode, decode, held


def _state(codec: Codec, layout: Layout, dtype: torch.dtype) -> Mapping[str, Tensor]:
    with torch.device("meta"):
        state = CodecState(codec, layout, {}, dtype=dtype, device="meta")
    return state.context(0, layout.elements, STEADY).state
