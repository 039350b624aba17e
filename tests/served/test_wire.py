"""Messages on the wire: what is packed comes out the same, and whatever else comes is refused in one way."""

import struct
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.runtimes.live.served import kinds, reading, wire
from paceline.runtimes.live.served.control import Contribution, Hello, Welcome, Words
from paceline.runtimes.live.served.kinds import KINDS, TO_SERVER, TO_WORKER
from paceline.runtimes.live.served.wire import PIECE, STOP, Expected, Refused
from paceline.strategies.messages import Left, Model, Push

ALL = Expected(kinds=frozenset(KINDS), length=7, dtype=torch.float32, limit=10_000)
REASONS = {
    "malformed",
    "other version",
    "out of range",
    "too large",
    "unexpected kind",
    "unknown kind",
    "no shared memory",
    "wrong length",
    "wrong type",
}


def tensors(kind: type) -> st.SearchStrategy[Tensor]:
    if kind in (Push, Model):
        return st.lists(st.floats(width=32), min_size=7, max_size=7).map(torch.tensor)
    numbers = st.lists(st.integers(0, 1), max_size=20)
    return st.builds(torch.tensor, numbers, dtype=st.sampled_from(kinds.DTYPES))


def values(kind: type, name: str, type_: type) -> st.SearchStrategy[Any]:
    if type_ is Tensor:
        return tensors(kind)
    if type_ is int:
        return st.integers(kinds.lowest(kind, name), reading.LARGEST)
    if type_ is float:
        return st.floats(0, reading.LARGEST)
    return st.booleans() if type_ is bool else st.text(max_size=50)


def messages() -> st.SearchStrategy[Any]:
    def of(kind: type) -> st.SearchStrategy[Any]:
        hints = get_type_hints(kind)
        return st.builds(kind, *(values(kind, field.name, hints[field.name]) for field in fields(kind)))

    return st.sampled_from(KINDS).flatmap(of)


def read(frames: list[bytearray]) -> wire.Letter | str:
    """The message, or why it was refused."""
    try:
        return wire.unpack(frames, ALL)
    except Refused as refused:
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


@given(messages(), st.sampled_from([0, STOP]))
def test_what_is_packed_comes_out_the_same(message: Any, flags: int) -> None:
    letter = wire.unpack(wire.pack(message, flags), ALL)
    assert letter.flags == flags
    assert same(letter.message, message)


@settings(max_examples=400)
@given(messages(), st.data())
def test_changed_bytes_give_a_valid_message_or_a_refusal_and_nothing_else(
    message: Any, data: st.DataObject
) -> None:
    frames = [bytearray(frame) for frame in wire.pack(message)]
    for _ in range(data.draw(st.integers(1, 3))):
        frame = data.draw(st.sampled_from(frames)) if frames else bytearray()
        what = data.draw(st.sampled_from(["byte", "cut", "more", "drop", "frame"]))
        if what == "byte" and frame:
            frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
        elif what == "cut":
            del frame[data.draw(st.integers(0, len(frame))) :]
        elif what == "more":
            frame += data.draw(st.binary(min_size=1, max_size=40))
        elif what == "drop" and frames:
            frames.pop()
        elif what == "frame":
            frames.append(bytearray(data.draw(st.binary(max_size=40))))
    outcome = read(frames)
    if isinstance(outcome, str):
        assert outcome in REASONS
    else:
        assert [bytes(frame) for frame in wire.pack(outcome.message, outcome.flags)] == frames


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_random_frames_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(Refused):
        wire.unpack([b"pace\x01" + frames[0], *frames[1:]] if len(frames) > 3 else frames, NOTHING)


NOTHING = Expected(kinds=frozenset(), length=7, dtype=torch.float32, limit=10_000)


def push(length: int, dtype: torch.dtype = torch.float32) -> Push:
    return Push(torch.arange(length, dtype=dtype), 1, 2, 3)


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "malformed"),
        (wire.pack(push(8)), "wrong length"),
        (wire.pack(push(7, torch.float64)), "wrong type"),
        (wire.pack(push(7))[:1], "wrong length"),
        ([*wire.pack(push(7)), b""], "malformed"),
        ([*wire.pack(push(7)), bytes(PIECE + 1)], "too large"),
        (wire.pack(push(7), 2), "malformed"),
        (wire.pack(push(7), place=lambda _: 4096), "no shared memory"),
        (wire.pack(Push(torch.zeros(7), -1, 2, 3)), "out of range"),
        (wire.pack(Model(torch.zeros(7), 1, 2, 3, float("nan"))), "out of range"),
        (wire.pack(Model(torch.zeros(7), 1, 2, 3, float("inf"))), "out of range"),
        (wire.pack(Hello(-2)), "out of range"),
        (wire.pack(Contribution("sum", 0, torch.zeros(2_501))), "too large"),
        ([wire.pack(Words("x"))[0] + bytes(2**18)], "too large"),
        ([wire.pack(Words("x"))[0][:-1] + b"\xff"], "malformed"),
        (
            [wire.pack(Welcome(0, True, ""))[0].replace(b"\x01\x00\x00\x00\x00", b"\x02\x00\x00\x00\x00")],
            "malformed",
        ),
        ([b"pace\x01" + wire.pack(Left(0))[0][5:]], "other version"),
        ([b"pace\x02\xff" + wire.pack(Left(0))[0][6:]], "unknown kind"),
        ([b"evil" + wire.pack(Left(0))[0][4:]], "malformed"),
    ],
)
def test_a_refusal_says_what_was_wrong(frames: list[Any], reason: str) -> None:
    with pytest.raises(Refused) as refused:
        wire.unpack(frames, ALL)
    assert refused.value.reason == reason


def test_a_length_that_promises_too_much_takes_no_memory() -> None:
    """A header of a few bytes could otherwise make a server reserve all that it has."""
    header = bytearray(wire.pack(Contribution("sum", 0, torch.zeros(1)))[0])
    struct.pack_into("<q", header, len(header) - 16, 2**62)
    with pytest.raises(Refused, match="too large"):
        wire.unpack([header, bytes(4)], ALL)


def test_messages_have_one_direction() -> None:
    """A worker that sends what only servers say would change other workers' parameters."""
    assert not TO_SERVER & TO_WORKER
    assert set(KINDS) - TO_SERVER - TO_WORKER == {Left}  # servers are told of a death by their own runtime


def test_large_tensors_travel_in_pieces_that_are_views() -> None:
    """Copies would cost more than the encryption saves, and one frame of 10 MB waits to be decrypted whole."""
    tensor = torch.arange(PIECE // 4 + 5, dtype=torch.float32)
    _, *pieces = wire.pack(Push(tensor, 0, 0, 0))
    assert [len(piece) for piece in pieces] == [PIECE, 20]
    tensor[0] = 5
    assert struct.unpack_from("<f", pieces[0]) == (5.0,)
    expected = Expected(kinds=TO_SERVER, length=tensor.numel(), dtype=torch.float32, limit=0)
    assert torch.equal(wire.unpack(wire.pack(Push(tensor, 0, 0, 0)), expected).message.grad, tensor)


def test_a_tensor_is_received_where_it_is_wanted() -> None:
    landing = torch.zeros(7)
    model = Model(torch.arange(7.0), 1, 2, 3, 0.5)
    letter = wire.unpack(wire.pack(model), ALL, landing=lambda *_: landing)
    assert letter.message.params is landing
    assert torch.equal(landing, model.params)
