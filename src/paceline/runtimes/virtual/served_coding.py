"""What a codec costs where servers keep the parameters: both ends of its messages, run on meta tensors."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.codecs.base import Codec
from paceline.codecs.context import STEADY, Layout
from paceline.costs.coding import CodecCosts, CodedMessage, Timed
from paceline.costs.trace.operator import Operator
from paceline.costs.trace.trace import trace_function
from paceline.runtimes.served_compression import ServerMessages, SliceCodec, WorkerMessages, slice_bounds
from paceline.strategies.base import Server, Worker
from paceline.strategies.messages import Model, Push


class ServedCoding(NamedTuple):
    """Of the slice of one server: a gradient, and the difference of a model that answers it."""

    push: CodedMessage
    """Encoded by a worker and decoded by the server."""
    model: CodedMessage
    """Encoded by the server and decoded by a worker."""


def served_coding(
    coding: CodecCosts, layout: Layout, dtype: torch.dtype, servers: int, codec: Codec | None = None
) -> tuple[ServedCoding, ...]:
    """One for each server; none where nothing is encoded. By ``codec`` instead, where a round has its own."""
    if not coding.compresses:
        return ()
    parts = [layout.between(start, stop) for start, stop in slice_bounds(layout.elements, servers)]
    return tuple(
        _scaled(_costs(codec or coding.codec, coding.timed, part, dtype), coding.scale) for part in parts
    )


def _scaled(found: ServedCoding, scale: float) -> ServedCoding:
    return ServedCoding(
        *(CodedMessage(one.size, scale * one.encode, scale * one.decode, one.held) for one in found)
    )


@lru_cache(maxsize=1024)
def _costs(codec: Codec, timed: Timed, layout: Layout, dtype: torch.dtype) -> ServedCoding:
    push, model = _operators(codec, layout, dtype)
    return ServedCoding(_priced(timed, *push), _priced(timed, *model))


def _priced(timed: Timed, size: int, *ends: Sequence[Operator]) -> CodedMessage:
    encode, decode = (
        sum(many * timed(operator) for operator, many in Counter(operators).items()) for operators in ends
    )
    held = max((operator.held for operators in ends for operator in operators), default=0)
    return CodedMessage(size, encode, decode, held)


TracedMessage = tuple[int, Sequence[Operator], Sequence[Operator]]
"""The bytes of a message, and the operators of its sender and of its receiver."""


@lru_cache(maxsize=1024)
def _operators(codec: Codec, layout: Layout, dtype: torch.dtype) -> tuple[TracedMessage, TracedMessage]:
    def begin() -> tuple[Tensor, WorkerMessages, ServerMessages]:
        vector = torch.empty(layout.elements, dtype=dtype)
        one = SliceCodec(codec=codec, layout=layout, start=0, dtype=dtype, seed=0)
        worker = WorkerMessages(Worker(0, 1, vector, vector, vector[:0]), layout, (one,), 1)
        server = ServerMessages(Server(0, 1, vector, vector), one)
        server.encoded(0, Model(vector, STEADY, 0, 0, 0.0))
        return vector, worker, server

    (vector, worker, server), _ = trace_function(begin)
    push = _trace_message(worker.encoded, server.decoded, Push(vector, STEADY, 0, 1))
    return push, _trace_message(server.encoded, worker.decoded, Model(vector, STEADY, 0, 0, 0.0))


def _trace_message(
    encode: Callable[[int, Any], Any], decode: Callable[[int, Any], Any], message: Push | Model
) -> TracedMessage:
    # What is looked up once, such as lengths, is found before it counts.
    trace_function(lambda: decode(0, encode(0, message)))
    sent, encoding = trace_function(lambda: encode(0, message))
    _, decoding = trace_function(lambda: decode(0, sent))
    tensor = sent.grad if isinstance(sent, Push) else sent.params
    return tensor.nbytes, encoding, decoding
