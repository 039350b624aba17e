"""Bytes that no encoder made: from another version, or from an attacker."""

from contextlib import suppress

import pytest
import torch
from codec_helpers import SPECS, context_of, decode, draw_vector, layout_of
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.codecs import build_codec
from paceline.codecs.context import Layout
from paceline.codecs.messages import CorruptMessage, from_bytes, kinds_of, message_kinds, to_bytes

LAYOUT = layout_of((7, 5), (6,), (), (3, 2, 4))
SPARSE = ("top-k:ratio=0.1", "dgc:ratio=0.1", "threshold:bound=1")
INFINITE = (float("nan"), float("inf"), -float("inf"))


def encoded(spec, layout=LAYOUT, dtype=torch.float32):
    codec = build_codec(spec)
    vector = draw_vector(layout.elements, 1, dtype=dtype)
    return codec, codec.encode(vector, context_of(codec, layout, dtype)), context_of(codec, layout, dtype)


def decode_bytes(codec, raw, context):
    """The vector, or CorruptMessage; whatever else is raised fails a test."""
    like = torch.zeros(context.layout.elements)
    kinds = message_kinds(codec, context.layout, like.dtype, "cpu")
    return decode(codec, from_bytes(raw, kinds, varies=codec.varies), like, context)


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=25)
@given(cut=st.integers(1, 400), longer=st.booleans())
def test_bytes_that_are_too_few_or_too_many_are_refused(spec, cut, longer):
    codec, message, context = encoded(spec)
    raw = to_bytes(message)
    changed = torch.cat((raw, raw.new_zeros(cut))) if longer else raw[: max(0, raw.numel() - cut)]
    if codec.varies and changed.numel() % sum(tensor.itemsize for tensor in message) == 0 and not longer:
        return  # a shorter list of elements, cut between two of them
    with pytest.raises(CorruptMessage):
        decode_bytes(codec, changed, context)


@pytest.mark.parametrize("spec", SPECS)
@given(seed=st.integers(0, 10_000), few=st.booleans())
def test_random_bytes_are_refused_or_are_a_finite_vector(spec, seed, few):
    codec, message, context = encoded(spec)
    raw = to_bytes(message).clone()
    generator = torch.Generator().manual_seed(seed)
    where = torch.randint(raw.numel(), (3,), generator=generator) if few else slice(None)
    raw[where] = torch.randint(256, raw[where].shape, generator=generator, dtype=torch.uint8)
    with suppress(CorruptMessage):
        assert decode_bytes(codec, raw, context).isfinite().all()


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("bad", INFINITE)
def test_what_is_not_finite_is_refused_before_anything_is_added(spec, bad):
    codec, message, context = encoded(spec)
    for place, tensor in enumerate(message):
        if tensor.is_floating_point() and tensor.numel():
            wrong = [one.clone() for one in message]
            wrong[place][-1] = bad
            out = torch.zeros(context.layout.elements)
            with pytest.raises(CorruptMessage, match="finite"):
                codec.add(tuple(wrong), out, context)
            assert not out.any()
            with pytest.raises(CorruptMessage, match="finite"):
                codec.decode(tuple(wrong), context)


def test_finite_elements_whose_sum_is_infinite_are_taken():
    codec = build_codec("half:format=fp16")
    context = context_of(codec, Layout.of_vector(4))
    sent = codec.decode(codec.encode(torch.full((4,), 6e4), context), context)
    torch.testing.assert_close(sent, torch.full((4,), 6e4))


@pytest.mark.parametrize("spec", SPARSE)
@pytest.mark.parametrize("wrong", [[-1], [-(2**31)], [66], [2**31 - 1], "twice", "descending"])
def test_indices_that_are_out_of_range_or_repeated_are_refused(spec, wrong):
    codec, (values, indices), context = encoded(spec)
    assert indices.numel() >= 2
    changed = indices.clone()
    if wrong == "twice":
        changed[1] = changed[0]
    elif wrong == "descending":
        changed = changed.flip(0)
    else:
        changed[0 if wrong[0] < 0 else -1] = wrong[0]
    with pytest.raises(CorruptMessage, match="indices"):
        codec.decode((values, changed), context)


def test_indices_whose_differences_overflow_are_refused():
    codec = build_codec("threshold")
    context = context_of(codec, Layout.of_vector(10))
    indices = torch.tensor([0, 2**31 - 1, -(2**31), 5], dtype=torch.int32)
    with pytest.raises(CorruptMessage, match="indices"):
        codec.decode((torch.ones(4), indices), context)


@pytest.mark.parametrize("spec", SPECS)
def test_another_number_of_tensors_is_refused(spec):
    codec, message, context = encoded(spec)
    for wrong in ((), (*message, message[0]), message[:-1], (message[0][:-1], *message[1:])):
        with pytest.raises(CorruptMessage):
            codec.decode(wrong, context)
        with pytest.raises(CorruptMessage):
            codec.add(wrong, torch.zeros(context.layout.elements), context)


@pytest.mark.parametrize("bits", [2, 5, 8])
def test_a_level_that_no_encoder_makes_is_refused(bits):
    codec, (steps, levels), context = encoded(f"int8:bits={bits}")
    wrong = torch.full_like(levels, -128 if bits == 8 else 255)
    with pytest.raises(CorruptMessage, match="a level beyond"):
        codec.decode((steps, wrong), context)


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=10)
@given(offset=st.integers(0, 9))
def test_bytes_need_not_be_aligned(spec, offset):
    """A message may lie anywhere in what was received."""
    codec, message, _ = encoded(spec)
    raw = to_bytes(message)
    buffer = torch.cat((raw.new_zeros(offset), raw, raw.new_zeros(5)))
    found = from_bytes(buffer[offset : offset + raw.numel()], kinds_of(message), varies=codec.varies)
    assert all(map(torch.equal, found, message))
