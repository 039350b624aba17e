"""What a codec costs: its own code, run on meta tensors, tells what it exchanges and which operators it calls."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import torch

from paceline.codecs.base import Codec, Identity
from paceline.codecs.context import STEADY, Context, Layout
from paceline.codecs.exchanges import (
    AllGather,
    AllToAll,
    Exchanges,
    Gathered,
    Sum,
    TensorExchange,
    exchange_with_copies,
    run_programs,
)
from paceline.codecs.reduction import reduce
from paceline.codecs.state import CodecState
from paceline.costs.trace.operator import Operator
from paceline.costs.trace.recorder import HeldMemory, OperatorRecorder
from paceline.costs.trace.trace import trace_function, without_values

Timed = Callable[[Operator], float]


class CodedExchange(NamedTuple):
    """What each rank gives to an exchange of a reduction."""

    kind: Literal["sum", "all-gather", "all-to-all"]
    size: int
    """Bytes of the tensor that is summed, of what all ranks get, or of what each other rank gets."""
    element: int


def exchange_of(exchange: TensorExchange) -> CodedExchange:
    match exchange:
        case Sum(tensor):
            return CodedExchange("sum", tensor.nbytes, tensor.itemsize)
        case AllGather(vector):
            return CodedExchange("all-gather", vector.nbytes, vector.itemsize)
        case AllToAll(vectors):
            return CodedExchange("all-to-all", vectors[0].nbytes, vectors[0].itemsize)


@dataclass(frozen=True, slots=True)
class CodedReduction:
    """A reduction of encoded vectors: exchanges, and coding before each of them and after the last."""

    exchanges: tuple[CodedExchange, ...]
    seconds: tuple[float, ...]
    """Of coding: one more than exchanges."""
    held: float
    """Bytes of memory that coding takes, messages of other ranks included."""

    @property
    def coding(self) -> float:
        return sum(self.seconds)


@dataclass(frozen=True, slots=True)
class CodedMessage:
    """A message to one receiver: its bytes, and the seconds to encode and to decode it."""

    size: int
    encode: float
    decode: float
    held: float


@dataclass(frozen=True)
class MemoryRate:
    """Operators take as long as the bytes that they read and write at a rate; at 0 they take no time."""

    rate: float = 0.0

    def __call__(self, operator: Operator) -> float:
        return (operator.read + operator.written) / self.rate if self.rate else 0.0


@dataclass(frozen=True, kw_only=True)
class CodecCosts:
    """A codec on one device; parts of the flat vector are given by their layouts."""

    codec: Codec = Identity()
    timed: Timed = MemoryRate()
    """Seconds of an operator."""
    scale: float = 1.0
    """How many times as long coding takes."""
    by_round: bool = False
    """Whether the codec is as it is in each round, or as after all warm-ups."""

    @property
    def compresses(self) -> bool:
        return self.codec.compresses

    def at(self, round: int) -> Codec:  # noqa: A002
        return self.codec.at(round) if self.by_round else self.codec

    def reduction(
        self, layout: Layout, dtype: torch.dtype, workers: int, codec: Codec | None = None
    ) -> CodedReduction:
        """Of a part of the vector, among at least two workers; by ``codec`` instead, where a round has its own."""
        exchanges, seconds, held = _reduction(codec or self.codec, self.timed, layout, dtype, workers)
        return CodedReduction(exchanges, tuple(self.scale * one for one in seconds), held)

    def state_bytes(self, layout: Layout, dtype: torch.dtype) -> int:
        """What a worker keeps from round to round."""
        return _state_bytes(self.codec, layout, dtype)


UNCODED = CodecCosts()


class _TracedProgram(NamedTuple):
    exchanges: tuple[CodedExchange, ...]
    operators: tuple[Counter[Operator], ...]
    """One more than exchanges."""
    held: int


@lru_cache(maxsize=256)
def _state_bytes(codec: Codec, layout: Layout, dtype: torch.dtype) -> int:
    # Outside of a trace torch would import its compiler.
    context, _ = trace_function(lambda: _context(codec, layout, dtype, 1))
    return sum(one.numel() * dtype.itemsize for one in context.state.values())


@lru_cache(maxsize=4096)
def _reduction(
    codec: Codec, timed: Timed, layout: Layout, dtype: torch.dtype, workers: int
) -> tuple[tuple[CodedExchange, ...], tuple[float, ...], int]:
    """Messages of all ranks that are gathered are added up one by one: one and two tell how long all take.

    What only sums among two workers does not see how many there are.
    """
    one = two = _trace_program(codec, layout, dtype, 2, 1)
    if any(exchange.kind != "sum" for exchange in one.exchanges):
        one = two = _trace_program(codec, layout, dtype, workers, 1)
        if not _in_chunks(one.exchanges):
            two = _trace_program(codec, layout, dtype, workers, 2)
    first, second = ([_seconds(found, timed) for found in traced.operators] for traced in (one, two))
    others = workers - 1
    seconds = tuple(
        alone + others * (with_other - alone) for alone, with_other in zip(first, second, strict=True)
    )
    received = [exchange.size for exchange in two.exchanges if exchange.kind != "sum"]
    return two.exchanges, seconds, two.held + others * max(received, default=0)


def _in_chunks(exchanges: Iterable[CodedExchange]) -> bool:
    """Whether what is gathered then is a part of the vector of each rank."""
    return any(exchange.kind == "all-to-all" for exchange in exchanges)


def _seconds(operators: Mapping[Operator, int], timed: Timed) -> float:
    return sum(many * timed(operator) for operator, many in operators.items())


@lru_cache(maxsize=4096)
def _trace_program(
    codec: Codec, layout: Layout, dtype: torch.dtype, workers: int, shown: int
) -> _TracedProgram:
    """One rank's program among ``workers``; where it gathers their messages, it gets only some."""
    found, operators = list[CodedExchange](), list[list[Operator]]()
    recorder = OperatorRecorder(without_values, HeldMemory())

    def exchange(exchanges: Exchanges) -> Gathered:
        operators.append(_taken(recorder))
        found.extend(exchange_of(one) for one in exchanges if one is not None)
        return exchange_with_copies(exchanges, workers if _in_chunks(found) else shown)

    with recorder:
        context = _context(codec, layout, dtype, workers)
        vector = torch.empty(layout.elements, dtype=dtype, device="meta")
        codec.program(vector, context)  # finds lengths of messages, which are kept
        recorder.phase = "forward"
        run_programs([reduce(codec, vector, context)], exchange)
        operators.append(_taken(recorder))
    held = max((one.held for called in operators for one in called), default=0)
    return _TracedProgram(tuple(found), tuple(map(Counter, operators)), held)


def _taken(recorder: OperatorRecorder) -> list[Operator]:
    found = [operator for operator, _ in recorder.calls["forward"]]
    recorder.begin()
    return found


def _context(codec: Codec, layout: Layout, dtype: torch.dtype, workers: int) -> Context:
    with torch.device("meta"):
        state = CodecState(codec, layout, {}, dtype=dtype, device="meta", workers=workers)
    return state.context(0, layout.elements, STEADY, share=1 / workers)
