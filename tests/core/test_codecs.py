"""What holds for every codec, whatever it sends."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from codec_helpers import (
    SIZES,
    SPECS,
    Ranks,
    context_of,
    decode,
    draw_vector,
    dtypes,
    layout_of,
    layouts,
    weighted_sum,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline import specs
from paceline.codecs import CODECS, build_codec, links
from paceline.codecs.base import Codec
from paceline.codecs.context import Context, Layout
from paceline.codecs.exchanges import run_programs
from paceline.codecs.messages import Message, encoded_bytes, from_bytes, kinds_of, message_kinds, to_bytes
from paceline.codecs.reduction import NotFinite, reduce
from paceline.codecs.state import CodecState
from paceline.errors import UsageError

EXACT = ("identity", "top-k:ratio=1", "random-k:ratio=1", "threshold:bound=0", "powersgd:rank=9")


def test_every_codec_of_the_table_is_tested():
    assert {specs.split(spec, CODECS)[0] for spec in SPECS} == set(CODECS)
    assert {specs.split(spec, CODECS)[0] for spec in SPECS if len(links(spec)) > 1} == {
        name for name in CODECS if build_codec(name).goes_first
    }


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=25)
@given(
    layout=layouts, workers=st.integers(1, 5), seed=st.integers(0, 99), dtype=dtypes, rounds=st.integers(1, 3)
)
def test_what_is_not_sent_is_kept_and_all_ranks_end_with_the_same(spec, layout, workers, seed, dtype, rounds):
    """Else gradients would be lost, or counted twice, and models would drift apart.

    Shares change from round to round, down to none, as in an epoch's last batch; what is kept counts the same.
    """
    ranks = Ranks(spec, layout, workers, dtype)
    even = [1 / workers] * workers
    for number in range(rounds):
        shares = _shares(workers, number)
        gradients = [
            draw_vector(layout.elements, seed + 10 * number + rank, dtype=dtype) for rank in range(workers)
        ]
        before = weighted_sum(ranks.memories or gradients, even).mul_(bool(ranks.memories))
        momentum = _momentum(ranks, gradients)
        results = ranks.reduce(gradients, shares)
        assert all(torch.equal(results[0], other) for other in results)
        assert results[0].dtype == dtype
        if ranks.memories is None:
            continue
        expected = before + weighted_sum(gradients, shares) + weighted_sum(momentum, even)
        found = results[0].double() + weighted_sum(ranks.memories, even)
        rounding = 1e-2 if ranks.codec.sums and "half" in spec else 1e-5
        torch.testing.assert_close(found, expected, rtol=0, atol=5 * rounding)


def _shares(workers, number):
    weights = [1 + (rank + number) % workers for rank in range(workers)]
    if number == 1:
        weights = [0] * (workers - 1) + [1]
    return [weight / sum(weights) for weight in weights]


def _momentum(ranks, gradients):
    if "momentum" not in "".join(ranks.tensors[0]):
        return [torch.zeros_like(gradient) for gradient in gradients]
    return [0.9 * tensors["codec.momentum"] for tensors in ranks.tensors]


@pytest.mark.parametrize("spec", EXACT)
@settings(max_examples=25)
@given(layout=layouts, workers=st.integers(1, 4), seed=st.integers(0, 99), dtype=dtypes)
def test_at_full_rate_nothing_is_lost(spec, layout, workers, seed, dtype):
    gradients = [draw_vector(layout.elements, seed + rank, dtype=dtype) for rank in range(workers)]
    found = Ranks(spec, layout, workers, dtype).reduce(gradients)
    exact = Ranks("identity", layout, workers, dtype).reduce(gradients)
    torch.testing.assert_close(found[0], exact[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=25)
@given(layout=layouts, size=st.sampled_from([*SIZES]), seed=st.integers(0, 99), dtype=dtypes)
def test_messages_are_as_long_as_said_and_come_back_from_bytes(spec, size, layout, seed, dtype):
    """A prediction counts encoded_bytes; were they not what encode makes, it would be wrong for every run."""
    codec = build_codec(spec)
    vector = draw_vector(layout.elements, seed, size, dtype)
    kept = vector.clone()
    message = codec.encode(vector, context_of(codec, layout, dtype))
    assert torch.equal(vector, kept)
    assert all(tensor.dim() == 1 for tensor in message)
    if not codec.varies:
        kinds = tuple((tensor.dtype, tensor.numel()) for tensor in message)
        assert kinds == message_kinds(codec, layout, dtype) == message_kinds(codec, layout, dtype, "cpu")
        assert sum(tensor.nbytes for tensor in message) == encoded_bytes(codec, layout, dtype)
    assert [one.dtype for one in message] == [kind for kind, _ in message_kinds(codec, layout, dtype)]
    context = context_of(codec, layout, dtype)
    found = from_bytes(to_bytes(message), kinds_of(message), varies=codec.varies)
    assert all(torch.equal(one, other) for one, other in zip(found, message, strict=True))
    sent = decode(codec, message, vector, context)
    assert sent.shape == vector.shape
    assert sent.isfinite().all()
    again = codec.decode(message, context).to(dtype)
    torch.testing.assert_close(again, sent, rtol=1e-5, atol=0)
    out = torch.ones_like(vector)
    codec.add(message, out, context, alpha=-0.5)
    torch.testing.assert_close(out, 1 - sent / 2, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=25)
@given(count=st.integers(0, 40), seed=st.integers(0, 99))
def test_a_vector_that_is_not_contiguous_is_sent_as_its_copy(spec, count, seed):
    codec, wide = build_codec(spec), draw_vector(3 * count, seed)
    layout = Layout.of_vector(count)
    one, other = (
        codec.encode(vector, context_of(codec, layout)) for vector in (wide[::3], wide[::3].clone())
    )
    assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("spec", [spec for spec in SPECS if "threshold" not in spec])
@settings(max_examples=40)
@given(rows=st.integers(1, 4), width=st.integers(0, 40), seed=st.integers(0, 99), dtype=dtypes)
def test_rows_are_encoded_and_decoded_as_vectors_are(spec, rows, width, seed, dtype):
    """The rows that a device decodes at once would else be other sums than those which a CPU adds up one by one."""
    codec, vector = build_codec(spec), draw_vector(rows * width, seed, dtype=dtype)
    ((matrix, context),) = context_of(codec, Layout.of_vector(rows * width), dtype, workers=rows).rows(vector)
    message = codec.encode_rows(matrix, context)
    if "int8" not in spec:  # which draws its noise for all rows
        assert all(map(torch.equal, message, Codec.encode_rows(codec, matrix, context)))
    for name in ("add_rows", "write_rows"):
        one, other = torch.ones_like(matrix), torch.ones_like(matrix)
        getattr(codec, name)(message, one, context)
        getattr(Codec, name)(codec, message, other, context)
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_told_with_its_parameter_and_not_sent(spec, bad):
    layout = layout_of((4, 3), (5,))
    gradients = [draw_vector(17, rank) for rank in range(2)]
    gradients[1][13] = bad
    with pytest.raises(NotFinite, match=f"1 of 5 elements of the update of p1 are {bad}"):
        Ranks(spec, layout, 2).reduce(gradients)


@pytest.mark.parametrize("spec", SPECS)
def test_large_and_small_vectors_take_several_rounds(spec):
    for size in ("zero", "denormal", "tiny", "large", "huge"):
        ranks = Ranks(spec, layout_of((6, 5), (3,)), 3)
        for number in range(3):
            found = ranks.reduce([draw_vector(33, number + 7 * rank, size) for rank in range(3)])
            assert all(one.isfinite().all() for one in found)


@pytest.mark.parametrize(
    "spec",
    [
        *("top-k:ratio=0", "random-k:ratio=2", "threshold:density=0", "threshold:bound=-1"),
        *("int8:block=0", "int8:bits=1", "int8:bits=9", "sign:block=0", "powersgd:rank=0", "half:format=fp8"),
        *("dgc:momentum=1", "dgc:memory=none", "dgc:warmup=-1", "top-k:memory=some", "identity:memory=error"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(spec):
    with pytest.raises(UsageError, match=spec.split(":")[0]):
        build_codec(spec)


def test_the_former_name_leads_to_the_present_one():
    with pytest.raises(ValueError, match="unknown codec 'low-rank'; did you mean 'powersgd'"):
        build_codec("low-rank:rank=2")


@dataclass(frozen=True, kw_only=True)
class EveryOther(Codec):
    """Its messages are views of the vector, as ``encode`` may give."""

    first: int = 0
    sums: ClassVar[bool] = True

    def encode(self, vector: Tensor, context: Context) -> Message:
        return (vector[self.first :: 2],)

    def decode(self, message: Message, context: Context) -> Tensor:
        out = torch.zeros(context.layout.elements)
        out[self.first :: 2] = message[0]
        return out


@pytest.mark.parametrize("first", [0, 1])
def test_a_message_may_be_a_view_of_the_vector(first):
    """If this failed, a part of the vector would be overwritten while it is read, or not at all."""
    codec, layout = EveryOther(first=first), Layout.of_vector(6)
    vectors = [torch.ones(6), torch.ones(6)]
    states = [CodecState(codec, layout, {}, rank=rank, workers=2) for rank in range(2)]
    run_programs(
        [reduce(codec, one, state.context(0, 6, 0, 0.5)) for one, state in zip(vectors, states, strict=True)]
    )
    expected = torch.zeros(6)
    expected[first::2] = 2
    assert torch.equal(vectors[0], expected)
    assert torch.equal(vectors[1], expected)
    assert torch.equal(to_bytes((torch.arange(4.0)[::2],)).view(torch.float32), torch.tensor([0.0, 2.0]))


@dataclass(frozen=True, kw_only=True)
class Odd(EveryOther):
    """Keeps as many numbers as there are elements, but others for each parameter."""

    def initial_state(self, shape, seed):
        return {"kept": torch.full((16 - shape[0],), float(shape[0]))}


def test_the_state_of_a_parameter_is_found_by_parameter_where_sizes_add_up_by_chance():
    state = CodecState(Odd(), layout_of((4,), (12,)), {})
    assert state.context(0, 4, 0).state["kept"].tolist() == [4.0] * 12
    assert state.context(4, 16, 0).state["kept"].tolist() == [12.0] * 4
    whole = state.context(0, 16, 0)
    assert "kept" not in replace(whole, workers=2).chunk(0)[1].state


def test_later_buckets_have_the_state_of_their_own_parameters():
    codec, layout = build_codec("powersgd:rank=1"), layout_of((6, 5), (7, 4), (3,))
    tensors = {}
    state = CodecState(codec, layout, tensors)
    tensors["codec.q"].copy_(torch.arange(9.0))
    assert state.context(0, 30, 0).state["q"].tolist() == [0, 1, 2, 3, 4]
    assert state.context(30, 61, 0).state["q"].tolist() == [5, 6, 7, 8]
