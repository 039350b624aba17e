"""How encoded vectors of all ranks become their sum: small programs, which both runtimes run.

Each yields what is to be exchanged and is resumed with the answer. The error memory of a rank holds what its messages
left out, and of the chunk that it sums for all, what the second encoding left out: the vectors of all ranks with their
memories before are the sum and the memories after.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from paceline.codecs.base import (
    Codec,
    Context,
    CorruptMessage,
    Identity,
    Message,
    Reduction,
    message_bytes,
    pack,
    unpack,
)


@dataclass(frozen=True, slots=True)
class Sum:
    """The tensor of every rank becomes the sum of all, in place."""

    tensor: Tensor
    what: str = ""
    """For people, where a reduction has several sums: "Q = M' P"."""


@dataclass(frozen=True, slots=True)
class AllGather:
    """Answered with the vectors of all ranks, by rank; they are equally long."""

    vector: Tensor


@dataclass(frozen=True, slots=True)
class AllToAll:
    """``vectors[r]`` goes to rank r; answered with what each rank sent to this one. All are equally long."""

    vectors: Sequence[Tensor]


Asked = Sequence[Sum | AllGather | AllToAll | None]
"""What the programs of all ranks yield at the same time: all the same kind."""
Answers = Sequence[list[Tensor] | None]


class NotFinite(ValueError):
    """A gradient with NaN or infinity; the message names the parameter."""


@torch.no_grad()
def reduce(codec: Codec, vector: Tensor, context: Context) -> Reduction:
    """Replace every rank's vector by the sum of all, as far as messages of the codec tell."""
    codec = codec.at(context.round)
    take_memory(codec, vector, context)
    yield from codec.reduce(vector, context)


def take_memory(codec: Codec, vector: Tensor, context: Context) -> None:
    """Add to a gradient what earlier messages left out; the memory then holds all of it, until some is sent."""
    codec.prepare(vector, context)
    if context.memory is not None:
        vector.add_(context.memory, alpha=context.share)
    check_finite(vector, context)
    if context.memory is not None:
        torch.mul(vector, 1 / context.share, out=context.memory)


def encode_once(codec: Codec, vector: Tensor, context: Context) -> Message:
    """The message of a vector for one receiver, a server; ``vector`` is changed."""
    codec = codec.at(context.round)
    take_memory(codec, vector, context)
    message = codec.encode(vector, context)
    _forget(codec, message, context)
    return message


def _forget(codec: Codec, message: Message, context: Context) -> None:
    """Subtract from the memory what a message carries."""
    if context.memory is not None:
        codec.add(message, context.memory, context, alpha=-1 / context.share)


def check_finite(vector: Tensor, context: Context) -> None:
    if vector.is_meta or isfinite(vector.sum().item()):
        return
    layout = context.layout
    for name, start, stop in zip(layout.names, layout.offsets, layout.offsets[1:], strict=False):
        part = vector[start:stop]
        bad = part[~part.isfinite()]
        if bad.numel():
            many = f"{bad.numel():,} of {part.numel():,} elements"
            raise NotFinite(f"{many} of the gradient of {name} are {bad[0].item()}")


def choose(codec: Codec, vector: Tensor, context: Context) -> Reduction:
    """The exchange of fewest bytes that the codec allows, for vectors that are not shorter than a few messages."""
    if codec.sums:
        return summed(codec, vector, context)
    if codec.varies:
        return gathered_or_dense(codec, vector, context)
    others = context.workers - 1
    if codec.requantises:  # n - 1 messages, or twice n - 1 nth parts of one
        return scattered(codec, codec, vector, context) if others > 1 else gathered(codec, vector, context)
    if others * message_bytes(codec, context.layout, vector.dtype, vector.device) > vector.nbytes:
        return scattered(codec, Identity(), vector, context)
    return gathered(codec, vector, context)


def _longest(codec: Codec, vector: Tensor, context: Context) -> int:
    """Bytes of the longest message of a chunk; the first and the last chunk have all lengths that there are."""
    chunks = context.chunks()
    ends = [part.layout for _, part in (chunks[0], chunks[-1])]
    return max(message_bytes(codec, layout, vector.dtype, vector.device) for layout in ends)


def summed(codec: Codec, vector: Tensor, context: Context) -> Reduction:
    """Messages are added up on the way, as dense tensors are."""
    message = codec.encode(vector, context)
    _forget(codec, message, context)
    for tensor in message:
        yield Sum(tensor)
    if message[0].data_ptr() != vector.data_ptr() or vector.is_meta:
        codec.write(message, vector, context)


def gathered(codec: Codec, vector: Tensor, context: Context) -> Reduction:
    """Every rank gets the messages of all, and adds them up in the order of ranks."""
    message = codec.encode(vector, context)
    _forget(codec, message, context)
    received = yield AllGather(pack(message))
    _add_all(codec, received, vector, context)


def gathered_or_dense(codec: Codec, vector: Tensor, context: Context) -> Reduction:
    """As ``gathered``, of messages of different lengths; where they are longer than the vectors, these are summed."""
    message = codec.encode(vector, context)
    raw = pack(message)
    own = torch.tensor([raw.numel()], device="cpu" if raw.is_meta else raw.device)
    lengths = [int(one) for one in (yield AllGather(own))]
    longest = max(lengths)
    if min(lengths) < 0:
        raise CorruptMessage(f"a message of {min(lengths)} bytes")
    if context.workers * longest > 2 * vector.nbytes:
        if context.memory is not None:
            context.memory.zero_()
        codec.sent_whole(context)
        yield Sum(vector)
        return
    _forget(codec, message, context)
    padded = torch.cat((raw, raw.new_zeros(longest - raw.numel())))
    received = yield AllGather(padded)
    _add_all(codec, [one[:many] for one, many in zip(received, lengths, strict=True)], vector, context)


def _add_all(codec: Codec, received: Sequence[Tensor], vector: Tensor, context: Context) -> None:
    vector.zero_()
    for raw in received:
        codec.add(unpack(codec, raw, vector.dtype, context), vector, context)


def _add_padded(codec: Codec, raw: Tensor, out: Tensor, context: Context) -> None:
    """As ``Codec.add``, of a message that zeros make as long as the longest of them."""
    bytes_ = message_bytes(codec, context.layout, out.dtype, out.device)
    codec.add(unpack(codec, raw[:bytes_], out.dtype, context), out, context)


def scattered(codec: Codec, second: Codec, vector: Tensor, context: Context) -> Reduction:
    """Rank r sums chunk r for all (a reduce-scatter), encodes the sum, and all gather these.

    What a rank sends does not grow with the number of ranks. Its own chunk it need not encode for itself.
    """
    chunks, rank = context.chunks(), context.rank
    longest = _longest(codec, vector, context)
    rows = []
    for other, (where, part) in enumerate(chunks):
        if other == rank:
            rows.append(torch.zeros(longest, dtype=torch.uint8, device=vector.device))
            continue
        message = codec.encode(vector[where], part)
        _forget(codec, message, part)
        rows.append(pack(message, longest))
    received = yield AllToAll(rows)
    where, part = chunks[rank]
    own = vector[where]
    codec.sent_whole(part)
    for other, raw in enumerate(received):
        if other != rank:
            _add_padded(codec, raw, own, part)
    if part.memory is not None:
        torch.mul(own, 1 / part.share, out=part.memory)
    message = second.encode(own, part)
    _forget(second, message, part)
    sums = yield AllGather(pack(message, _longest(second, vector, context)))
    vector.zero_()
    for raw, (where, part) in zip(sums, chunks, strict=True):
        _add_padded(second, raw, vector[where], part)


def exchange_all(asked: Asked) -> Answers:
    """What each rank is resumed with."""
    first = asked[0]
    match first:
        case Sum():
            _sum_all([one.tensor for one in asked if isinstance(one, Sum)])
            return [None] * len(asked)
        case AllGather():
            vectors = [one.vector.clone() for one in asked if isinstance(one, AllGather)]
            return [vectors] * len(asked)
        case AllToAll():
            rows = [one.vectors for one in asked if isinstance(one, AllToAll)]
            return [[row[rank] for row in rows] for rank in range(len(asked))]
    raise AssertionError(f"{first} is no exchange")


def _sum_all(tensors: Sequence[Tensor]) -> None:
    first, *others = tensors
    for tensor in others:
        first.add_(tensor)
    for tensor in others:
        tensor.copy_(first)


def run_together(programs: Sequence[Reduction], exchange: Callable[[Asked], Answers] = exchange_all) -> None:
    """Run the programs of all ranks, in one process, to their ends; what they exchange is handed over as it is."""
    asked = [next(program, None) for program in programs]
    while asked[0] is not None:
        answers = exchange(asked)
        asked = [_resume(program, answer) for program, answer in zip(programs, answers, strict=True)]
    assert not any(asked), "all ranks exchange the same"


def asked_alone(program: Reduction, ranks: int) -> Iterator[Sum | AllGather | AllToAll]:
    """What one rank's program exchanges, where it is answered as if every rank had given the same."""
    answer: Sequence[Tensor] | None = None
    with suppress(StopIteration):
        while True:
            asked = program.send(answer)
            yield asked
            answer = [asked.vector] * ranks if isinstance(asked, AllGather) else None
            answer = asked.vectors if isinstance(asked, AllToAll) else answer


def run_alone(program: Reduction, ranks: int) -> None:
    deque(asked_alone(program, ranks), maxlen=0)


def _resume(program: Reduction, answer: object) -> object:
    try:
        return program.send(answer)
    except StopIteration:
        return None
