"""How encoded vectors of all ranks become their sum: small programs, which both runtimes run.

Each yields what is to be exchanged and is resumed with the answer. The error memory of a rank holds what its messages
left out, and of the chunk that it sums for all, what the second encoding left out: the vectors of all ranks with their
memories before are the sum and the memories after.
"""

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.codecs.context import Context
from paceline.codecs.exchanges import AllGather, AllToAll, Reduction, Sum
from paceline.codecs.messages import CorruptMessage, Kinds, Message, bytes_of, from_bytes, kinds_of, to_bytes

if TYPE_CHECKING:
    from paceline.codecs.base import Codec


class NotFinite(ValueError):
    """An update (a gradient, or a difference of parameters) with NaN or infinity; the message names the parameter."""


@torch.no_grad()
def reduce(codec: "Codec", vector: Tensor, context: Context) -> Reduction:
    """Replace every rank's vector by the sum of all, as far as messages of the codec tell."""
    codec = codec.at(context.round)
    take_memory(codec, vector, context)
    yield from codec.program(vector, context)


def take_memory(codec: "Codec", vector: Tensor, context: Context) -> None:
    """Add to a gradient what earlier messages left out; the memory then holds all of it, until some is sent."""
    codec.prepare(vector, context)
    if context.memory is not None:
        vector.add_(context.memory, alpha=context.share)
    check_finite(vector, context)
    if context.memory is not None:
        torch.mul(vector, 1 / context.share, out=context.memory)


def encode_once(codec: "Codec", vector: Tensor, context: Context) -> Message:
    """The message of a vector for one receiver, a server; ``vector`` is changed."""
    codec = codec.at(context.round)
    take_memory(codec, vector, context)
    message = codec.encode(vector, context)
    _forget(codec, message, context)
    return message


def _forget(codec: "Codec", message: Message, context: Context) -> None:
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
            raise NotFinite(f"{many} of the update of {name} are {bad[0].item()}")


def summed(codec: "Codec", vector: Tensor, context: Context) -> Reduction:
    """Messages are added up on the way, as dense tensors are."""
    message = _apart(codec.encode(vector, context), vector)
    _forget(codec, message, context)
    for tensor in message:
        yield Sum(tensor)
    if message[0] is not vector:
        codec.write(message, vector, context)


def _apart(message: Message, vector: Tensor) -> Message:
    """Copy what shares only a part of the vector's memory, which is overwritten while the message is read."""
    memory = vector.untyped_storage().data_ptr()
    return tuple(
        tensor
        if tensor is vector or vector.is_meta or tensor.untyped_storage().data_ptr() != memory
        else tensor.clone(memory_format=torch.contiguous_format)
        for tensor in message
    )


def gathered(codec: "Codec", vector: Tensor, context: Context) -> Reduction:
    """Every rank gets the messages of all, and adds them up in the order of ranks."""
    message = codec.encode(vector, context)
    _forget(codec, message, context)
    received = yield AllGather(to_bytes(message))
    _add_all(codec, received, kinds_of(message), vector, context)


def gathered_or_dense(codec: "Codec", vector: Tensor, context: Context) -> Reduction:
    """As ``gathered``, of messages of different lengths; where they are longer than the vectors, these are summed."""
    message = codec.encode(vector, context)
    raw = to_bytes(message)
    own = torch.tensor([raw.numel()], device="cpu" if raw.is_meta else raw.device)
    lengths = [int(one) for one in (yield AllGather(own))]
    longest = max(lengths)
    if min(lengths) < 0:
        raise CorruptMessage(f"a message of {min(lengths)} bytes")
    if context.workers * longest > 2 * vector.nbytes:
        if context.memory is not None:
            context.memory.zero_()
        codec.on_dense_send(context)
        yield Sum(vector)
        return
    _forget(codec, message, context)
    padded = torch.cat((raw, raw.new_zeros(longest - raw.numel())))
    received = yield AllGather(padded)
    found = [one[:many] for one, many in zip(received, lengths, strict=True)]
    _add_all(codec, found, kinds_of(message), vector, context)


def _add_all(
    codec: "Codec", received: Sequence[Tensor], kinds: Kinds, vector: Tensor, context: Context
) -> None:
    vector.zero_()
    for raw in received:
        codec.add(from_bytes(raw, kinds, varies=codec.varies), vector, context)


def scattered(codec: "Codec", second: "Codec", vector: Tensor, context: Context) -> Reduction:
    """Rank r sums chunk r for all (a reduce-scatter), encodes the sum, and all gather these.

    What a rank sends does not grow with the number of ranks, nor does the number of operators, where a codec takes
    all rows of a matrix at once. What it sends to itself is not used: of its own chunk it has the vector.
    """
    matrices = context.rows(vector)
    kinds, sent = _encode_chunks(codec, matrices)
    received = yield AllToAll(sent)
    where, part = context.chunk(context.rank)
    own = vector[where]
    codec.on_dense_send(part)
    others = [raw for other, raw in enumerate(received) if other != context.rank]
    _add_sum(codec, others, kinds[context.rank >= len(matrices[0][0])], own, part)
    if part.memory is not None:
        torch.mul(own, 1 / part.share, out=part.memory)
    message = second.encode(own, part)
    _forget(second, message, part)
    if second is not codec:
        kinds = [kinds_of(second.encode_rows(rows, each)) for rows, each in matrices]
    sums = torch.stack((yield AllGather(to_bytes(message, _longest(kinds)))))
    heights = [len(rows) for rows, _ in matrices]
    for (rows, each), raw, kind in zip(matrices, torch.split(sums, heights), kinds, strict=True):
        second.write_rows(from_bytes(raw[:, : bytes_of(kind)], kind), rows, each)


def _encode_chunks(
    codec: "Codec", matrices: Sequence[tuple[Tensor, Context]]
) -> tuple[list[Kinds], list[Tensor]]:
    """The kinds of the messages of each matrix, and all messages as bytes, equally long."""
    messages = [codec.encode_rows(rows, each) for rows, each in matrices]
    for message, (_, each) in zip(messages, matrices, strict=True):
        if each.memory is not None:
            codec.add_rows(message, each.memory, each, alpha=-1 / each.share)
    kinds = [*map(kinds_of, messages)]
    return kinds, [row for message in messages for row in to_bytes(message, _longest(kinds))]


def _longest(kinds: Sequence[Kinds]) -> int:
    return max(map(bytes_of, kinds))


def _add_sum(codec: "Codec", raws: Sequence[Tensor], kinds: Kinds, out: Tensor, context: Context) -> None:
    """Add what each of several messages of the same chunk stands for; zeros may follow them."""
    length = bytes_of(kinds)
    if out.device.type == "cpu":  # one by one they stay in its caches
        for raw in raws:
            codec.add(from_bytes(raw[:length], kinds), out, context)
        return
    rows = out.new_empty(len(raws), out.numel())
    codec.write_rows(from_bytes(torch.stack([*raws])[:, :length], kinds), rows, context)
    out.add_(rows.sum(dim=0))
