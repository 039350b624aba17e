import pytest
import torch
from codec_helpers import Ranks, draw_vector, layout_of
from hypothesis import given
from hypothesis import strategies as st

from paceline.codecs import build_codec


def as_in_the_paper(gradients, ratio, momentum, clip, shapes):
    """Lin et al., 2018, with vanilla momentum, line by line: the sums of all steps."""
    workers, elements = len(gradients[0]), gradients[0][0].numel()
    velocities, accumulated = ([torch.zeros(elements) for _ in range(workers)] for _ in range(2))
    for step in gradients:
        total = torch.zeros(elements)
        for rank in range(workers):
            gradient = step[rank] / workers
            if clip:
                sizes = [torch.Size(shape).numel() for shape in shapes]
                parts = [
                    part * min(1, clip / workers**0.5 / part.norm()) if part.any() else part
                    for part in gradient.split(sizes)
                ]
                gradient = torch.cat(parts)
            velocities[rank] = momentum * velocities[rank] + gradient
            accumulated[rank] = accumulated[rank] + velocities[rank]
            largest = accumulated[rank].abs().topk(max(1, round(ratio * elements))).indices
            mask = torch.zeros(elements).index_fill_(0, largest, 1.0)
            total += accumulated[rank] * mask
            accumulated[rank] = accumulated[rank] * (1 - mask)
            velocities[rank] = velocities[rank] * (1 - mask)
        yield total


@given(
    workers=st.integers(1, 4),
    ratio=st.sampled_from([0.02, 0.1]),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    clip=st.sampled_from([0.0, 0.3, 100.0]),
    seed=st.integers(0, 99),
)
def test_sums_are_those_of_the_paper(workers, ratio, momentum, clip, seed):
    shapes = ((5, 6), (20,), (7,))
    layout = layout_of(*shapes)
    gradients = [
        [draw_vector(layout.elements, seed + 10 * step + rank) for rank in range(workers)]
        for step in range(5)
    ]
    ranks = Ranks(f"dgc:ratio={ratio},momentum={momentum},clip={clip}", layout, workers)
    for step, expected in zip(
        gradients, as_in_the_paper(gradients, ratio, momentum, clip, shapes), strict=True
    ):
        torch.testing.assert_close(ranks.reduce(step)[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("warmup", "ratio", "expected"),
    [
        (4, 0.001, [0.25, 0.0625, 0.015625, 0.00390625, 0.001, 0.001]),
        (8, 0.001, [*[0.25] * 2, *[0.0625] * 2, *[0.015625] * 2, *[0.00390625] * 2, 0.001]),
        (2, 0.01, [0.25, 0.0625, 0.01]),
        (3, 0.25, [0.25, 0.25, 0.25, 0.25]),
        (3, 0.5, [0.5, 0.5, 0.5, 0.5]),
        (0, 0.1, [0.1]),
    ],
)
def test_the_ratio_falls_by_fours_from_a_quarter_during_the_warm_up(warmup, ratio, expected):
    codec = build_codec(f"dgc:warmup={warmup},ratio={ratio},clip=2,momentum=0.5")
    stages = [codec.at(step) for step in range(len(expected))]
    assert [stage.ratio for stage in stages] == expected
    assert all((stage.clip, stage.momentum) == (2, 0.5) for stage in stages)


def test_momentum_is_forgotten_where_all_of_a_chunk_is_sent():
    """With many ranks and elements each rank sums a chunk for all, and its own part of it is sent whole."""
    ranks = Ranks("dgc:ratio=0.9", layout_of((40,)), 4)
    ranks.reduce([draw_vector(40, rank) for rank in range(4)])
    for rank, tensors in enumerate(ranks.tensors):
        own = slice(10 * rank, 10 * rank + 10)
        assert not tensors["codec.momentum"][own].any()
        assert not tensors["codec.memory"][own].any()
        assert tensors["codec.momentum"].count_nonzero() == 3 * 1


def test_velocity_counts_the_same_whatever_share_a_rank_has():
    """Else a rank with a small last batch would multiply its past."""
    ranks = Ranks("dgc:ratio=0.1,momentum=0.5", layout_of((50,)), 2)
    gradients = [draw_vector(50, rank) for rank in range(2)]
    ranks.reduce(gradients, [0.25, 0.75])
    before = [tensors["codec.momentum"].clone() for tensors in ranks.tensors]
    kept = [one != 0 for one in before]
    for gradient, share, velocity, where in zip(gradients, (0.25, 0.75), before, kept, strict=True):
        torch.testing.assert_close(velocity[where], (2 * share * gradient)[where])
    ranks.reduce([torch.zeros(50)] * 2, [1.0, 0.0])
    for tensors, velocity in zip(ranks.tensors, before, strict=True):
        left = tensors["codec.momentum"] != 0
        torch.testing.assert_close(tensors["codec.momentum"][left], 0.5 * velocity[left])
