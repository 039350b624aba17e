"""What each codec sends of a vector."""

from collections import Counter
from math import comb

import pytest
import torch
from codec_helpers import Ranks, context_of, decode, draw_vector, dtypes
from hypothesis import example, given
from hypothesis import strategies as st

from paceline.codecs import build_codec
from paceline.codecs.bits import pack_bits, packed_length, unpack_bits
from paceline.codecs.context import Context, Layout
from paceline.codecs.select import SAMPLE, drawn, largest, reaching


def sent_of(spec, vector, **settings):
    codec, layout = build_codec(spec), Layout.of_vector(vector.numel())
    context = context_of(codec, layout, vector.dtype, **settings)
    return decode(codec, codec.encode(vector, context), vector, context)


@given(bits=st.integers(1, 7), count=st.integers(0, 70), seed=st.integers(0, 99))
def test_packed_numbers_come_back_and_take_their_bits(bits, count, seed):
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(2**bits, (count,), dtype=torch.uint8, generator=generator)
    packed = pack_bits(numbers, bits)
    assert packed.numel() == packed_length(count, bits) <= (count + 7) * bits / 8
    assert torch.equal(unpack_bits(packed, bits, count), numbers)


@pytest.mark.parametrize("bits", range(2, 9))
def test_int8_is_unbiased_and_within_a_level(bits):
    """Else errors would add up over steps and ranks, and there would have to be a memory of them."""
    block, times = draw_vector(64, 1), 4000
    block[:3] = torch.tensor([0.0, 5.0, -5.0])
    found = sent_of(f"int8:bits={bits},block=64", block.repeat(times)).view(times, 64)
    level = 5 / (2 ** (bits - 1) - 1)
    assert ((found - block).abs() <= level * 1.001).all()
    # The mean lies within 6 of its own standard errors, which are at most half a level / sqrt(times).
    assert ((found.mean(dim=0) - block).abs() <= 6 * 0.5 * level / times**0.5).all()
    torch.testing.assert_close(found[:, :3], block[:3].expand(times, 3), atol=0, rtol=1e-6)


def test_int8_rounds_anew_in_each_round_rank_and_part_and_else_the_same():
    codec, vector = build_codec("int8"), draw_vector(1000, 2)

    def levels(**settings):
        return codec.encode(vector, Context(layout=Layout.of_vector(1000), **settings))[1]

    usual = levels(round=1, rank=1, start=8, seed=3)
    assert torch.equal(usual, levels(round=1, rank=1, start=8, seed=3))
    for other in ({"round": 2}, {"rank": 2}, {"start": 9}, {"seed": 4}):
        assert not torch.equal(usual, levels(**({"round": 1, "rank": 1, "start": 8, "seed": 3} | other)))


@pytest.mark.parametrize("size", ["denormal", "tiny", "huge"])
def test_int8_is_unbiased_for_the_smallest_and_the_largest_numbers(size):
    block, times = draw_vector(16, 3, size), 4000
    found = sent_of("int8:block=16", block.repeat(times)).view(times, 16).double()
    level = max(block.abs().max().item() / 127, 4 * torch.finfo(torch.float32).tiny)
    assert ((found.mean(dim=0) - block).abs() <= 6 * 0.5 * level / times**0.5).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [0.0, 1e-4, 1.0])
def test_int8_takes_16_bit_vectors(dtype, size):
    vector = torch.tensor([size, -size, 0.0, size], dtype=dtype)
    torch.testing.assert_close(sent_of("int8", vector), vector, atol=size / 20, rtol=0)


@given(count=st.integers(1, 40), block=st.integers(1, 12), seed=st.integers(0, 99), dtype=dtypes)
def test_sign_keeps_the_signs_and_the_mean_size_of_each_block(count, block, seed, dtype):
    vector = draw_vector(count, seed, dtype=dtype)
    sent = sent_of(f"sign:block={block}", vector)
    for start in range(0, count, block):
        part, found = vector[start : start + block], sent[start : start + block]
        torch.testing.assert_close(found, part.sign() * part.abs().mean())


@pytest.mark.parametrize(("form", "digits"), [("bf16", 2**-8), ("fp16", 2**-11)])
def test_half_rounds_to_the_nearest(form, digits):
    vector = draw_vector(500, 1)
    torch.testing.assert_close(sent_of(f"half:format={form}", vector), vector, rtol=digits, atol=1e-7)


def test_fp16_ends_where_the_sum_of_all_ranks_is_still_finite():
    layout = Layout.of_vector(2)
    found = Ranks("half:format=fp16", layout, 4).reduce([torch.tensor([1e9, -1e9])] * 4)[0]
    assert found.isfinite().all()
    assert (found.abs() > 6e4).all()


def brute_largest(vector, count):
    order = sorted(range(vector.numel()), key=lambda place: (-abs(vector[place].item()), place))
    return sorted(order[:count])


@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -3.0, 1e-41, 1e38]), max_size=30), st.data())
def test_top_k_sends_the_largest_and_of_equal_ones_the_first(values, data):
    vector = torch.tensor(values)
    count = data.draw(st.integers(0, len(values)))
    assert largest(vector, count).tolist() == brute_largest(vector, count)


@given(
    count=st.integers(2 * SAMPLE + 1, 3 * SAMPLE),
    ratio=st.sampled_from([0.0001, 0.01, 0.3, 0.99]),
    kind=st.sampled_from(["normal", "zeros", "few", "equal", "sorted", "steep"]),
    seed=st.integers(0, 9),
    dtype=dtypes,
)
@example(count=2 * SAMPLE + 1, ratio=0.01, kind="one end", seed=0, dtype=torch.float32)
def test_a_sample_only_makes_top_k_faster(count, ratio, kind, seed, dtype):
    """Were the guess of the bound trusted, some of the largest would be left out where the sample misleads."""
    vector = draw_vector(count, seed, dtype=dtype)
    match kind:
        case "zeros":
            vector *= torch.rand(count, generator=torch.Generator().manual_seed(seed)) < 0.001
        case "few":
            vector = vector.round()
        case "equal":
            vector = vector.sign()
        case "sorted":
            vector = vector.sort().values
        case "steep":
            vector = vector**9
        case "one end":
            vector = torch.zeros(count).index_fill_(0, torch.tensor([count - 1]), 1.0)
    many = round(ratio * count)
    found = largest(vector, many)
    assert found.numel() == many
    assert (found[1:] > found[:-1]).all()
    sizes = vector.abs()
    torch.testing.assert_close(
        sizes[found].sort().values, sizes.sort().values[count - many :], rtol=0, atol=0
    )


@given(bound=st.floats(0, 2), seed=st.integers(0, 9))
def test_threshold_sends_what_reaches_the_bound(bound, seed):
    vector = draw_vector(50, seed).round(decimals=1)
    assert reaching(vector, bound).tolist() == (vector.abs() >= bound).nonzero().view(-1).tolist()


def test_the_bound_is_of_a_ranks_own_gradient():
    """Else a bound that is right for two ranks would send nearly nothing of eight."""
    gradient = draw_vector(200, 1)
    for workers in (1, 2, 8):
        ranks = Ranks("threshold:bound=2", Layout.of_vector(200), workers)
        ranks.reduce([gradient] * workers)
        torch.testing.assert_close(ranks.memories[0], gradient * (gradient.abs() < 2), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("length", "count"), [(5, 2), (6, 5), (6, 3), (7, 0), (4, 4)])
def test_every_set_of_random_indices_is_as_likely_as_another(length, count):
    """Else some parameters would be trained less than others."""
    times = 3000
    found = Counter(tuple(drawn(seed, length, count).tolist()) for seed in range(times))
    sets = comb(length, count)
    assert len(found) == sets
    expected = times / sets
    chi_square = sum((many - expected) ** 2 / expected for many in found.values())
    assert chi_square <= sets - 1 + 5 * (2 * sets) ** 0.5


@given(length=st.integers(1, 3000), ratio=st.floats(0, 1), seed=st.integers(0, 2**62))
def test_random_indices_are_distinct_and_ascend(length, ratio, seed):
    count = int(ratio * length)
    found = drawn(seed, length, count)
    assert found.numel() == count
    assert (found[1:] > found[:-1]).all()
    assert not count or 0 <= found[0] <= found[-1] < length


def test_random_k_without_memory_is_unbiased_up_to_its_ratio_and_the_same_on_all_ranks():
    vector, times = draw_vector(40, 4), 3000
    spec = "random-k:ratio=0.25,memory=none"
    total = sum(sent_of(spec, vector, round=number).double() for number in range(times))
    error = (total / times * 4 - vector).abs()
    assert (error <= 6 * vector.abs() * (3 / times) ** 0.5).all()
    assert torch.equal(sent_of(spec, vector, rank=0, workers=2), sent_of(spec, vector, rank=1, workers=2))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("spec", ["int8:memory=error", "sign"])
def test_long_vectors_are_sent_block_by_block_as_a_plain_loop_would(spec, rows):
    """They are worked on in pieces; were a piece given another's scales, only vectors beyond a piece would show it."""
    codec, width = build_codec(spec), 2**20 // rows + 5
    vector = draw_vector(rows * width, 1) * torch.linspace(0.1, 10, rows * width)
    context = context_of(codec, Layout.of_vector(width))
    message = codec.encode_rows(vector.view(rows, width), context)
    found = torch.zeros(rows, width)
    codec.add_rows(message, found, context)
    for row, given_row in zip(found, vector.view(rows, width), strict=True):
        for sent, block in zip(row.split(2048), given_row.split(2048), strict=True):
            if spec == "sign":
                expected = block.abs().mean() * torch.where(block < 0, -1.0, 1.0)
            else:
                step = block.abs().max() / 127
                expected = (block / step + 0.5).floor() * step
            torch.testing.assert_close(sent, expected, rtol=1e-4, atol=0.02 * float(block.abs().max()))


@pytest.mark.parametrize("bits", [2, 3, 8])
@pytest.mark.parametrize("workers", [2, 3])
def test_the_memory_of_few_bits_does_not_grow(bits, workers):
    """Rounded at random to 3 levels, more would be left out in each round than the round before."""
    ranks = Ranks(f"int8:bits={bits},memory=error", Layout.of_vector(6144), workers)
    for number in range(60):
        ranks.reduce([draw_vector(6144, workers * number + rank) for rank in range(workers)])
    assert torch.stack(ranks.memories).square().mean().sqrt() < 8


@pytest.mark.parametrize("value", [1e-6, -1e-6])
def test_random_rounding_is_unbiased_below_the_noise_of_16_bits(value):
    """Noise of 0, 1 / 65,536, ... would round what is just below a level down by a whole one."""
    block = torch.full((2**20,), value)
    block[0] = 1.0
    found = sent_of(f"int8:bits=2,block={2**20}", block)[1:]
    assert abs(found.double().mean().item() - value) < 2e-5
    assert abs(found.double().mean().item() - value) <= 2**-17 + 6 * (2**-17 / 2**20) ** 0.5


@pytest.mark.parametrize("value", [3.4e38, -3.4e38, 2e38])
def test_half_clamps_what_its_format_or_a_sum_of_ranks_does_not_hold(value):
    """As fp16 does; an infinite message would be blamed on who sent it."""
    found = Ranks("half", Layout.of_vector(4), 2).reduce([torch.full((4,), value)] * 2, [1.0, 1.0])
    assert found[0].isfinite().all()
    assert (found[0].sign() == torch.tensor(value).sign()).all()


def test_each_chunk_of_a_vector_draws_its_own_noise_and_indices():
    context = context_of(build_codec("int8"), Layout.of_vector(10), workers=3)
    parts = [context.chunk(rank)[1] for rank in range(3)]
    assert [part.start for part in parts] == [0, 4, 7]
    assert len({part.own_seed for part in parts}) == len({part.shared_seed for part in parts}) == 3
