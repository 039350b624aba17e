import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from collective_prices import uniform_cluster
from paceline import specs
from paceline.clusters.cluster import Link
from paceline.codecs import CODECS, build_codec
from paceline.costs.collectives import AllReduceCosts
from paceline.costs.device import Compression, compression_of
from paceline.costs.topology import Topology

SHAPES = ((512, 256), (512,), (1000, 512), (1000,))
SIZE = 4 * (512 * 256 + 512 + 1000 * 512 + 1000)


def per_byte(operator):
    """On a device that takes a second a byte times are bytes."""
    return float(operator.read + operator.written)


def coded(spec):
    return compression_of(build_codec(spec), SHAPES, torch.float32, per_byte)


def costs(workers, compression, bandwidth=1e9, latency=1e-4):
    topology = Topology(uniform_cluster(workers, Link(bandwidth=bandwidth, latency=latency)))
    return AllReduceCosts("native", topology, compression)


@pytest.mark.parametrize(
    ("spec", "ratio"),
    [
        ("half", 0.5),
        ("int8", 0.25),
        ("sign", 1 / 32),
        ("top-k:ratio=0.01", 0.02),
        ("random-k:ratio=0.01", 0.01),
    ],
)
def test_the_bytes_of_a_whole_model_are_the_codecs(spec, ratio):
    assert coded(spec).message(SIZE, 4) == pytest.approx(ratio * SIZE, rel=2e-3)


def test_powersgd_sees_the_matrices():
    assert coded("powersgd:rank=4").message(SIZE, 4) == 4 * (4 * (512 + 256) + 512 + 4 * 1512 + 1000)


def test_encoding_takes_at_least_reading_the_gradient_and_more_where_more_is_done():
    # Half reads 4 bytes and writes 2 a number; int8 goes over them several times.
    assert coded("half").encode_rate * SIZE == pytest.approx(1.5 * SIZE)
    assert coded("half").decode_rate * SIZE == pytest.approx(1.5 * SIZE)
    assert coded("int8").encode_rate * SIZE > 4 * SIZE
    assert coded("identity").encode_rate * SIZE == coded("identity").decode_rate * SIZE == 0


def test_messages_that_do_not_add_are_gathered_by_everybody():
    free = Compression(sums=False, ratio=0.1, encode_rate=0.0, decode_rate=0.0, held_rate=0.0)
    priced = costs(8, free).price(10_000_000, 4)
    assert priced.seconds == pytest.approx(7 * 1e-4 + 7 * 1e6 / 1e9)
    assert costs(8, free).traffic(10_000_000, 4) == [(7_000_000, 7_000_000)] * 8


def test_encoding_delays_and_every_gathered_message_is_decoded():
    timed = Compression(sums=False, ratio=0.1, encode_rate=1e-9, decode_rate=2e-9, held_rate=0.0)
    free = Compression(sums=False, ratio=0.1, encode_rate=0.0, decode_rate=0.0, held_rate=0.0)
    more = costs(4, timed).price(1_000_000, 4).seconds - costs(4, free).price(1_000_000, 4).seconds
    assert more == pytest.approx(1e-3 + 4 * 2e-3)


@given(ratio=st.floats(0.01, 1), workers=st.integers(2, 9), sums=st.booleans())
def test_fewer_bytes_are_never_slower(ratio, workers, sums):
    def seconds(part):
        compression = Compression(sums=sums, ratio=part, encode_rate=0.0, decode_rate=0.0, held_rate=0.0)
        return costs(workers, compression).price(40_000_000, 4).seconds

    assert seconds(ratio * 0.9) <= seconds(ratio)


def test_a_very_long_gradient_is_encoded_in_pieces():
    """Places of a sparse message have 32 bits, and a large model has more numbers than those."""
    shapes = [(3 * 2**30 + 5,)]
    found = compression_of(specs.build("top-k:ratio=0.01", CODECS, "codec"), shapes, torch.float32, per_byte)
    whole = compression_of(
        specs.build("top-k:ratio=0.01", CODECS, "codec"), [(2**30,)], torch.float32, per_byte
    )
    assert found.ratio == pytest.approx(whole.ratio, rel=1e-6)
    assert found.encode_rate == pytest.approx(whole.encode_rate, rel=1e-6)
