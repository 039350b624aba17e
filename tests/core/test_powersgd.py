from pathlib import Path

import pytest
import torch
from codec_helpers import Ranks, context_of, decode, draw_vector, layout_of
from hypothesis import given
from hypothesis import strategies as st

from command import start_python
from paceline.codecs import build_codec

HOOK = Path(__file__).parent / "powersgd_hook.py"


def test_results_and_memories_are_those_of_torchs_own_hook(tmp_path):
    """Over several steps, with warm start and error feedback; else what people know of it would not hold here."""
    rank, shapes, steps = 2, ((12, 10), (12, 10), (8,), (9, 4, 3), (5,)), 6
    layout = layout_of(*shapes)
    ranks = Ranks(f"powersgd:rank={rank}", layout, 2)
    gradients = [[draw_vector(layout.elements, 2 * step + one) for one in (0, 1)] for step in range(steps)]
    thin = [shape for shape in shapes if len(shape) > 1]
    sizes = [rank * torch.Size(shape[1:]).numel() for shape in thin]
    ours = ranks.tensors[0]["codec.q"].split(sizes)
    torch.save(
        {
            "rank": rank,
            "shapes": shapes,
            "gradients": gradients,
            "p": torch.zeros(rank * sum(shape[0] for shape in thin)),
            "q": torch.cat([one.view(rank, -1).T.reshape(-1) for one in ours]),
        },
        tmp_path / "given.pt",
    )
    started = [start_python(str(HOOK), str(tmp_path), str(one)) for one in (0, 1)]
    told = [one.communicate(timeout=60) for one in started]
    assert [one.returncode for one in started] == [0, 0], told
    theirs = [torch.load(tmp_path / f"rank{one}.pt") for one in (0, 1)]
    for step in range(steps):
        found = ranks.reduce(gradients[step])
        torch.testing.assert_close(found[0], theirs[0][step][0], rtol=1e-4, atol=1e-5)
        # Theirs is against the mean, and ours against what a rank has sent: the means of both are the same.
        memory = torch.stack(ranks.memories).mean(dim=0)
        expected = torch.stack([one[step][1] for one in theirs]).mean(dim=0)
        torch.testing.assert_close(memory, expected, rtol=1e-4, atol=1e-5)


@given(height=st.integers(5, 20), width=st.integers(5, 20), seed=st.integers(0, 99))
def test_a_matrix_of_low_rank_is_sent_whole_by_that_rank(height, width, seed):
    # In 64 bits: of two directions that are nearly one, 32 leave too few.
    tall, wide = (draw_vector(2 * n, seed + k, dtype=torch.float64) for k, n in enumerate((height, width)))
    matrix = tall.view(-1, 2) @ wide.view(2, -1)
    layout = layout_of((height, width))
    for found in Ranks("powersgd:rank=2", layout, 3, torch.float64).reduce([matrix.view(-1)] * 3):
        torch.testing.assert_close(found, matrix.view(-1), atol=1e-4, rtol=1e-3)
    codec = build_codec("powersgd:rank=2")
    context = context_of(codec, layout, torch.float64)
    sent = decode(codec, codec.encode(matrix.view(-1), context), matrix.view(-1), context)
    torch.testing.assert_close(sent, matrix.view(-1), atol=1e-4, rtol=1e-3)


def test_a_warm_start_comes_nearer_from_step_to_step():
    """Power iteration: of the same gradient without memory, Q turns to its largest singular vectors."""
    gradient, layout = draw_vector(30 * 20, 3), layout_of((30, 20))
    ranks = Ranks("powersgd:rank=2,memory=none", layout, 2)
    errors = [(ranks.reduce([gradient] * 2)[0] - gradient).norm().item() for _ in range(60)]
    left, sizes, right = torch.linalg.svd(gradient.view(30, 20))
    best = (gradient - ((left[:, :2] * sizes[:2]) @ right[:2]).view(-1)).norm().item()
    assert errors[0] > 1.05 * best
    assert errors[-1] == pytest.approx(best, rel=1e-3)


def test_a_gradient_of_zeros_does_not_end_what_is_learnt():
    ranks = Ranks("powersgd:rank=1", layout_of((4, 5)), 2)
    for gradient in (torch.ones(20), torch.zeros(20), torch.zeros(20)):
        ranks.reduce([gradient] * 2)
    found = ranks.reduce([torch.ones(20)] * 2)[0]
    torch.testing.assert_close(found, torch.ones(20), atol=1e-4, rtol=0)


@pytest.mark.parametrize("shape", [(), (7,), (2, 9), (9, 2), (3, 3), (1, 50), (0, 4)])
def test_what_would_not_become_smaller_is_sent_as_it_is(shape):
    layout = layout_of(shape)
    gradients = [draw_vector(layout.elements, rank) for rank in range(2)]
    ranks = Ranks("powersgd:rank=2", layout, 2)
    assert "codec.q" not in ranks.tensors[0]
    torch.testing.assert_close(ranks.reduce(gradients)[0], sum(gradients) / 2)
