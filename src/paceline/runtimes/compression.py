"""What a worker sends of its gradients and parameters where a codec is in use; the same in both runtimes."""

import torch
from torch import Tensor, nn

from paceline.codecs.base import Codec, Layout, Reduction
from paceline.codecs.reduction import reduce
from paceline.codecs.state import PREFIX, CodecState
from paceline.strategies.base import Worker

REFERENCE = f"{PREFIX}reference"


def layout_of(model: nn.Module) -> Layout:
    """Of the trainable parameters, in the order of the flat vector."""
    named = [(name, tuple(one.shape)) for name, one in model.named_parameters() if one.requires_grad]
    return Layout(tuple(name for name, _ in named), tuple(shape for _, shape in named))


class Compressor:
    """The codec of one worker, on its flat vectors. What it keeps lies in ``me.state``, so checkpoints have it.

    Gradients are encoded as they are. Parameters travel as their difference from what all workers held after the last
    exchange, the reference.
    """

    def __init__(self, codec: Codec, me: Worker, layout: Layout, seed: int) -> None:
        self.codec, self._me = codec, me
        self._state = CodecState(
            codec,
            layout,
            me.state,
            dtype=me.params.dtype,
            device=me.params.device,
            rank=me.rank,
            workers=me.workers,
            seed=seed,
        )

    def reduce_gradient(self, start: int, stop: int, share: float) -> Reduction:
        """Make a part of ``me.grad``, which is ``share`` times the gradient, the sum of all workers' parts."""
        me = self._me
        context = self._state.context(start, stop, me.clock, share or 1 / me.workers)
        return reduce(self.codec, me.grad[start:stop], context)

    @torch.no_grad()
    def take_reference(self) -> None:
        """All workers hold the same parameters now."""
        self._me.state[REFERENCE] = self._me.params.clone()

    @torch.no_grad()
    def reduce_params(self, share: float) -> Reduction:
        """Move ``me.params`` of every worker to the mean of all, weighted by their shares, as far as is known."""
        me, reference = self._me, self._me.state[REFERENCE]
        share = share or 1 / me.workers
        difference: Tensor = (me.params - reference).mul_(share)
        yield from reduce(self.codec, difference, self._state.context(0, me.params.numel(), me.clock, share))
        reference.add_(difference)
        me.params.copy_(reference)
