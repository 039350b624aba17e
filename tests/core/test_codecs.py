import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline import specs
from paceline.codecs import CODECS, build_codec
from paceline.costs.trace.trace import trace_function
from paceline.errors import UsageError

SPECS = (
    "identity",
    "half",
    "half:format=fp16",
    "int8:block=64",
    "sign",
    "top-k:ratio=0.1",
    "random-k:ratio=0.1",
    "threshold:bound=0,density=1",
    "powersgd:rank=2",
)


def codec(spec):
    return build_codec(spec)


def test_every_codec_of_the_table_is_tested():
    assert {specs.split(spec, CODECS)[0] for spec in SPECS} == set(CODECS)


@pytest.mark.parametrize("spec", SPECS)
@given(shape=st.lists(st.integers(1, 9), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_bytes_said_are_bytes_sent_and_the_shape_comes_back(spec, shape, seed):
    # A prediction counts message_bytes; were it not what encode makes, every prediction with a codec would be off.
    torch.manual_seed(seed)
    tensor, chosen = torch.randn(shape), codec(spec)
    kept = tensor.clone()
    message = chosen.encode(tensor)
    assert sum(part.nbytes for part in message) == chosen.message_bytes([shape], 4)
    assert torch.equal(tensor, kept)
    assert chosen.decode(message, shape).shape == tensor.shape


@pytest.mark.parametrize(
    "spec", ["identity", "top-k:ratio=1", "random-k:ratio=1", "threshold:bound=0,density=1"]
)
def test_at_full_rate_nothing_is_lost(spec):
    tensor = torch.randn(7, 11)
    assert torch.equal(codec(spec).decode(codec(spec).encode(tensor), tensor.shape), tensor)


def test_a_matrix_of_low_rank_is_sent_whole_by_that_rank():
    tensor = torch.randn(40, 2) @ torch.randn(2, 30)
    chosen = codec("powersgd:rank=2")
    torch.testing.assert_close(
        chosen.decode(chosen.encode(tensor), tensor.shape), tensor, atol=1e-4, rtol=1e-4
    )


def test_int8_is_unbiased_and_within_a_level():
    torch.manual_seed(1)
    tensor, chosen = torch.randn(512), codec("int8:block=64")
    many = torch.stack([chosen.decode(chosen.encode(tensor), tensor.shape) for _ in range(2000)])
    level = tensor.view(-1, 64).abs().amax(dim=1).repeat_interleave(64) / 127
    assert ((many - tensor).abs() <= level * 1.001).all()
    # The mean of 2,000 roundings lies within 6 of its own standard errors, which are at most half a level / sqrt(2000).
    assert ((many.mean(dim=0) - tensor).abs() <= 6 * 0.5 * level / 2000**0.5).all()


def test_sign_keeps_the_signs_and_the_mean_size():
    tensor = torch.tensor([3.0, -1.0, 2.0, -2.0, 0.0, 1.0, -3.0, 4.0, -8.0])
    sent = codec("sign").decode(codec("sign").encode(tensor), tensor.shape)
    assert torch.equal(sent >= 0, tensor >= 0)
    torch.testing.assert_close(sent.abs(), torch.full((9,), tensor.abs().mean().item()))


def test_top_k_sends_the_largest():
    tensor = torch.arange(-10.0, 10.0)
    sent = codec("top-k:ratio=0.1").decode(codec("top-k:ratio=0.1").encode(tensor), tensor.shape)
    assert sent.nonzero().view(-1).tolist() == [0, 1]


def test_random_places_are_shared_and_add():
    one, other, chosen = torch.randn(50), torch.randn(50), codec("random-k:ratio=0.2,seed=3")
    summed = chosen.decode((chosen.encode(one)[0] + chosen.encode(other)[0],), [50])
    separate = chosen.decode(chosen.encode(one), [50]) + chosen.decode(chosen.encode(other), [50])
    assert torch.equal(summed, separate)


@pytest.mark.parametrize(
    "spec",
    [
        *("top-k:ratio=0", "random-k:ratio=2", "threshold:density=0", "threshold:bound=-1"),
        *("int8:block=0", "powersgd:rank=0", "half:format=fp8"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(spec):
    with pytest.raises(UsageError, match=spec.split(":")[0]):
        codec(spec)


@pytest.mark.parametrize("size", [0.0, 1e-4])
def test_int8_in_half_precision_takes_small_numbers(size):
    # 127 over a small scale is infinite in 16 bits; were it computed, zeros would become what infinity times 0 is.
    tensor = torch.tensor([size, -size, 0.0, size], dtype=torch.float16)
    sent = codec("int8").decode(codec("int8").encode(tensor), [4])
    torch.testing.assert_close(sent, tensor, atol=size / 20, rtol=0)


def test_powersgd_has_orthogonal_columns_and_its_steps_grow_with_the_rank_only():
    left, _ = codec("powersgd:rank=64").encode(torch.randn(300, 200))
    torch.testing.assert_close(left.T @ left, torch.eye(64), atol=1e-4, rtol=0)
    steps = [
        len(trace_function(lambda: codec(f"powersgd:rank={rank}").encode(torch.empty(300, 200)))[1])  # noqa: B023
        for rank in (32, 64)
    ]
    assert steps[1] < 2.5 * steps[0]


def test_the_former_name_leads_to_the_present_one():
    with pytest.raises(ValueError, match="unknown codec 'low-rank'; did you mean 'powersgd'"):
        build_codec("low-rank:rank=2")
