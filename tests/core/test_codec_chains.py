from dataclasses import dataclass

import pytest
import torch
from codec_helpers import Ranks, context_of, decode, draw_vector, layout_of

from paceline import AllGather, specs
from paceline.codecs import CODECS, build_codec, each_link, links
from paceline.codecs.base import Codec
from paceline.codecs.chain import Chain
from paceline.codecs.context import Layout
from paceline.codecs.exchanges import run_programs
from paceline.codecs.quantised import Half
from paceline.codecs.reduction import reduce
from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec
from paceline.runtimes.config import import_paths, resolved
from paceline.runtimes.settings import Settings


@pytest.mark.parametrize("spec", ["top-k:ratio=0.1", "random-k:ratio=0.1", "threshold:bound=1"])
def test_values_take_half_the_bytes_and_are_those_of_the_first_rounded(spec):
    layout, vector = Layout.of_vector(100), draw_vector(100, 1)
    first, chain = build_codec(spec), build_codec(f"{spec}+half")
    (wide, *others), (narrow, *same) = (one.encode(vector, context_of(one, layout)) for one in (first, chain))
    assert torch.equal(narrow, wide.bfloat16())
    assert all(map(torch.equal, others, same))


def test_what_rounding_loses_is_kept_too():
    ranks = Ranks("top-k:ratio=0.5+half", Layout.of_vector(40), 2)
    gradients = [draw_vector(40, rank) for rank in range(2)]
    found = ranks.reduce(gradients)[0]
    kept = sum(ranks.memories) / 2
    torch.testing.assert_close(found + kept, sum(gradients) / 2, rtol=0, atol=1e-6)
    assert kept.count_nonzero() > 20


def test_powersgd_keeps_what_rounding_its_own_factors_loses():
    """Sums of 16 bits are rounded too, which no rank can keep; a single rank has none."""
    layout = layout_of((12, 9), (5,))
    ranks, gradient = Ranks("powersgd:rank=2+half", layout, 1), draw_vector(layout.elements, 1)
    found = ranks.reduce([gradient])[0]
    torch.testing.assert_close(found + ranks.memories[0], gradient, rtol=0, atol=1e-6)
    assert not torch.equal(found, Ranks("powersgd:rank=2", layout, 1).reduce([gradient])[0])


def test_sums_of_a_chain_travel_in_16_bits():
    layout = layout_of((12, 9), (5,))
    for spec in ("powersgd:rank=2+half", "random-k:ratio=0.2+half"):
        codec = build_codec(spec)
        asked = next(reduce(codec, draw_vector(layout.elements, 1), context_of(codec, layout)))
        assert asked.tensor.dtype == torch.bfloat16


@dataclass(frozen=True, kw_only=True)
class Own(Codec):
    """A user's codec with a reduction of its own."""

    def encode(self, vector, context):
        return (vector,)

    def decode(self, message, context):
        return message[0].clone()

    def reduce(self, vector, context):
        received = yield AllGather(vector)
        assert all(one.dtype == vector.dtype for one in received)
        vector.copy_(sum(received))
        context.memory.zero_()


def test_a_users_codec_can_be_the_first():
    codec = Chain(first=Own(), second=Half())
    vectors = [draw_vector(30, rank) for rank in range(3)]
    expected = sum(vector.bfloat16().float() for vector in vectors)
    contexts = [context_of(codec, Layout.of_vector(30), rank=rank, workers=3) for rank in range(3)]
    run_programs([reduce(codec, vector, context) for vector, context in zip(vectors, contexts, strict=True)])
    torch.testing.assert_close(vectors[0], expected)
    context = contexts[0]
    sent = decode(codec, codec.encode(vectors[0], context), vectors[0], context)
    assert torch.equal(sent, vectors[0].bfloat16().float())


@pytest.mark.parametrize(
    "spec", ["half+top-k", "int8+sign", "identity+half", "sign+half", "top-k+half+half", "top-k+int8"]
)
def test_what_cannot_be_chained_is_refused_with_what_can(spec):
    with pytest.raises(UsageError) as refusal:
        build_codec(spec)
    told = str(refusal.value)
    assert "the first must be dgc, powersgd, random-k, threshold, top-k or a codec of your own" in told
    assert "the second half" in told


class WithoutFloats(Own):
    """A user's codec that sends whole numbers."""

    def encode(self, vector, context):
        return (vector.char(),)


class Alone(Own):
    """A user's codec that says it cannot go first."""

    goes_first = False


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("WithoutFloats", "have no floats that half could send"),
        ("Alone", "cannot be chained: the first must be"),
    ],
)
def test_a_users_codec_that_cannot_go_first_is_refused(name, sentence):
    """If this failed, ``+half`` would be said and do nothing."""
    assert build_codec(f"{__file__}:Own+half").first == build_codec(f"{__file__}:Own")
    with pytest.raises(UsageError, match=sentence):
        build_codec(f"{__file__}:{name}+half")


def test_memory_is_set_of_the_first():
    assert build_codec("top-k:memory=none+half").memory == "none"
    with pytest.raises(UsageError, match="set it of the first"):
        build_codec("top-k+half:memory=error")


def test_differences_of_models_have_neither_memory_nor_momentum():
    assert build_codec("dgc:ratio=0.2+half").without_memory() == build_codec(
        "top-k:ratio=0.2,memory=none+half"
    )
    assert build_codec("powersgd+half").without_memory() == build_codec("powersgd:memory=none+half")


def test_links_are_told_from_signs_of_numbers():
    assert links("threshold:bound=1e+2") == ["threshold:bound=1e+2"]
    assert links("threshold:bound=1e+2+half") == ["threshold:bound=1e+2", "half"]
    assert links("mine.py:Codec:n=2 + half:format=fp16") == ["mine.py:Codec:n=2", "half:format=fp16"]


def test_a_chain_is_written_out_and_shortened_and_read_again():
    given = "top-k:ratio=0.02+half"
    settings = Settings(job=JobSpec(), codec=given, iterations=1)
    full = resolved(settings).codec
    assert full == "top-k:memory=error,ratio=0.02+half:memory=none,format=bf16"
    assert build_codec(full) == build_codec(given)
    assert each_link(full, lambda link: specs.shorten(link, CODECS)) == given
    own = Settings(job=JobSpec(), codec="mine.py:Codec:n=2+half", iterations=1)
    assert "mine.py:Codec" in import_paths(own)
