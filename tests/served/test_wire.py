"""Messages on the wire: what is packed comes out the same, and whatever else comes is refused in one way."""

import struct
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.runtimes.envelope import Envelope
from paceline.runtimes.live.wire import encoding
from paceline.runtimes.live.wire.encoding import AcceptedMessages, pack
from paceline.runtimes.live.wire.messages import (
    KINDS,
    TO_SERVER,
    TO_WORKER,
    Contribution,
    Goodbye,
    Hello,
    InitialParams,
    MessageRefused,
    Refusal,
    Welcome,
)
from paceline.shm.segment import Handle
from paceline.strategies.effects import Peer
from paceline.strategies.messages import Leave, Model, Push

ALL = AcceptedMessages(kinds=frozenset(KINDS), shard=torch.zeros(7))
REASONS = {
    "malformed",
    "out of range",
    "too large",
    "unexpected kind",
    "unknown kind",
    "no shared memory",
    "wrong length",
    "wrong type",
}


def tensors(kind: type) -> st.SearchStrategy[Tensor]:
    if kind in (InitialParams, Push, Model):
        return st.lists(st.floats(width=32), min_size=7, max_size=7).map(torch.tensor)
    numbers = st.lists(st.integers(0, 1), max_size=20)
    return st.builds(torch.tensor, numbers, dtype=st.sampled_from(encoding.DTYPES))


def values(kind: type, type_: Any) -> st.SearchStrategy[Any]:
    if type_ is Tensor:
        return tensors(kind)
    if type_ is int:
        return st.integers(0, encoding.MAX_NUMBER)
    if type_ is float:
        return st.floats(0, encoding.MAX_NUMBER)
    if get_origin(type_) is tuple:
        return st.lists(values(kind, get_args(type_)[0]), max_size=5).map(tuple)
    if get_origin(type_) is Literal:
        return st.sampled_from(get_args(type_))
    if type_ == Handle | None:
        token = st.binary(min_size=32, max_size=32)
        return st.none() | st.builds(Handle, st.integers(1, 2**22), st.integers(0, 2**30), token)
    return st.booleans() if type_ is bool else st.text(max_size=50)


def messages() -> st.SearchStrategy[Any]:
    def of(kind: type) -> st.SearchStrategy[Any]:
        hints = get_type_hints(kind)
        return st.builds(kind, *(values(kind, hints[field.name]) for field in fields(kind)))

    return st.sampled_from(KINDS).flatmap(of)


def unpack(packet: Any, accepted: AcceptedMessages = ALL) -> Envelope:
    """The message in a header and a body, as an end of a connection reads it."""
    header, body = packet
    envelope, memory = encoding.unpack(header, len(body), accepted, STRANGER)
    if body:
        memory[:] = body
    return envelope


def read(header: bytearray, body: bytearray) -> Envelope | str:
    """The message, or why it was refused."""
    try:
        return unpack((header, body))
    except MessageRefused as refused:
        return refused.reason


def same(one: Any, other: Any) -> bool:
    """Equal to the last bit, NaNs in tensors included."""
    assert is_dataclass(one)
    if type(one) is not type(other):
        return False
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)]
    return all(
        a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes() if isinstance(a, Tensor) else a == b
        for a, b in pairs
    )


@given(messages(), st.booleans())
def test_what_is_packed_comes_out_the_same(message: Any, stop: bool) -> None:
    envelope = unpack(pack(message, stop=stop))
    assert envelope.stop == stop
    assert same(envelope.message, message)


@settings(max_examples=400)
@given(messages(), st.data())
def test_changed_bytes_give_a_valid_message_or_a_refusal_and_nothing_else(
    message: Any, data: st.DataObject
) -> None:
    both = [bytearray(part) for part in pack(message)]
    for _ in range(data.draw(st.integers(1, 3))):
        part = data.draw(st.sampled_from(both))
        what = data.draw(st.sampled_from(["byte", "cut", "more"]))
        if what == "byte" and part:
            part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
        elif what == "cut":
            del part[data.draw(st.integers(0, len(part))) :]
        elif what == "more":
            part += data.draw(st.binary(min_size=1, max_size=40))
    outcome = read(*both)
    if isinstance(outcome, str):
        assert outcome in REASONS
    else:
        assert same(unpack(pack(outcome.message)).message, outcome.message)


@given(st.binary(max_size=60), st.binary(max_size=60), st.booleans())
def test_random_bytes_are_refused(header: bytes, body: bytes, marked: bool) -> None:
    with pytest.raises(MessageRefused):
        unpack((bytes([KINDS.index(Push), 0]) + header if marked else header, body), NOTHING)


STRANGER = SimpleNamespace(peer=Peer("worker", -1), memory=None)
NOTHING = AcceptedMessages(kinds=frozenset(), shard=torch.zeros(7))


def push(length: int, dtype: torch.dtype = torch.float32) -> Push:
    return Push(torch.arange(length, dtype=dtype), 1, 2, 3)


def header(message: Any) -> bytes:
    return pack(message).header


def twice(fields: bytes) -> bytes:
    """The map of a Push with a second tensor under the same name."""
    return b"\x85" + fields[1:] + msgspec.msgpack.encode({"grad": [0, 7, None]})[1:]


def tensor_header(place: Any) -> tuple[bytes, bytes]:
    """A Push whose tensor is described like this."""
    fields = {"grad": place, "clock": 1, "version": 2, "samples": 3}
    return header(push(7))[:2] + msgspec.msgpack.encode(fields), bytes(28)


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        ((b"", b""), "malformed"),
        (pack(push(8)), "wrong length"),
        (pack(push(7, torch.float64)), "wrong type"),
        ((header(push(7)), b""), "wrong length"),
        ((header(push(7)), bytes(29)), "wrong length"),
        ((header(Hello(0)), b"more"), "wrong length"),
        ((header(Leave(0))[:1] + b"\2" + header(Leave(0))[2:], b""), "malformed"),
        (pack(push(7), find=lambda _: 4096), "no shared memory"),
        (pack(Push(torch.zeros(7), -1, 2, 3)), "out of range"),
        (pack(Model(torch.zeros(7), 1, 2, 3, float("nan"))), "out of range"),
        (pack(Model(torch.zeros(7), 1, 2, 3, float("inf"))), "out of range"),
        (pack(Hello(-1)), "out of range"),
        (pack(Contribution("sum", 0, torch.empty(encoding.MAX_TENSOR // 4 + 1))), "too large"),
        ((header(Goodbye(0, 0, "left")) + bytes(2**18), b""), "too large"),
        ((header(Refusal("x"))[:-1] + b"\xff", b""), "malformed"),
        ((header(Refusal("x")) + b"\0", b""), "malformed"),
        ((header(Welcome(0, True, "")).replace(b"\xc3", b"\x02"), b""), "malformed"),
        ((b"\xff" + header(Leave(0))[1:], b""), "unknown kind"),
        ((header(push(7))[:2] + twice(header(push(7))[2:]), bytes(28)), "malformed"),
        (tensor_header([0, 7]), "malformed"),
        (tensor_header([5, 7, None]), "malformed"),
        (tensor_header([0, -1, None]), "malformed"),
        (tensor_header([0, 7, 4]), "no shared memory"),
        (tensor_header("grad"), "malformed"),
    ],
)
def test_a_refusal_says_what_was_wrong(packet: Any, reason: str) -> None:
    with pytest.raises(MessageRefused) as refused:
        unpack(packet)
    assert refused.value.reason == reason


def test_a_length_that_promises_too_much_takes_no_memory() -> None:
    """A header of a few bytes could otherwise make a server reserve all that it has."""
    start = header(Contribution("sum", 0, torch.zeros(1)))[:2]
    for length, reason in ((2**40, "too large"), (2**62, "malformed")):
        fields = {"op": "sum", "root": 0, "tensor": [0, length, None]}
        with pytest.raises(MessageRefused, match=reason):
            encoding.unpack(start + msgspec.msgpack.encode(fields), 2**64, ALL, STRANGER)


def test_messages_have_one_direction() -> None:
    """A worker that sends what only servers say would change other workers' parameters."""
    assert not TO_SERVER & TO_WORKER
    assert set(KINDS) - TO_SERVER - TO_WORKER == {Leave}  # servers are told of a death by their own runtime


def test_a_tensor_is_sent_from_where_it_lies() -> None:
    """A copy would cost more than its encryption."""
    tensor = torch.arange(300_000, dtype=torch.float32)
    body = pack(Push(tensor, 0, 0, 0)).body
    tensor[0] = 5
    assert struct.unpack_from("<f", body) == (5.0,)


def test_a_tensor_is_received_where_it_is_wanted() -> None:
    landing = torch.zeros(7)
    model = Model(torch.arange(7.0), 1, 2, 3, 0.5)
    envelope = unpack(pack(model), AcceptedMessages(kinds=TO_WORKER, shard=landing))
    assert envelope.message.params is landing
    assert torch.equal(landing, model.params)
