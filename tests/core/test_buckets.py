"""A bucket plan that loses or repeats a parameter would leave workers with different models."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.collectives.traffic import plan_buckets

sizes = st.lists(st.integers(1, 1000), min_size=1, max_size=30)


@given(sizes, st.integers(1, 5000), st.integers(1, 5000))
def test_buckets_cover_every_element_once_in_backward_order(sizes, first, later):
    buckets = plan_buckets(sizes, 4, first, later)
    edges = [sum(sizes)]
    for bucket in buckets:
        assert bucket.stop == edges[-1]
        assert bucket.stop - bucket.start == sum(sizes[i] for i in bucket.parameters)
        edges.append(bucket.start)
    assert edges[-1] == 0


@given(sizes, st.integers(1, 5000), st.integers(1, 5000))
def test_a_bucket_is_closed_as_soon_as_it_is_full(sizes, first, later):
    for number, bucket in enumerate(plan_buckets(sizes, 4, first, later)):
        limit = later if number else first
        without_last = 4 * sum(sizes[i] for i in bucket.parameters[1:])
        assert without_last < limit


def test_ddp_like_sizes():
    million = 2**18
    buckets = plan_buckets([10 * million, 20 * million, million], 4, first=2**20, later=25 * 2**20)
    assert [(b.start // million, b.stop // million) for b in buckets] == [(30, 31), (0, 30)]
