"""What a worker sends of its gradients and parameters where a codec is in use; the same in both runtimes."""

import torch
from torch import Tensor, nn

from paceline.codecs.base import Codec
from paceline.codecs.context import Layout
from paceline.codecs.exchanges import Reduction, Sum
from paceline.codecs.reduction import reduce
from paceline.codecs.state import PREFIX, CodecState
from paceline.strategies.base import Worker

REFERENCE, ROUNDS = f"{PREFIX}reference", f"{PREFIX}rounds"


def layout_of(model: nn.Module) -> Layout:
    """Of the trainable parameters, in the order of the flat vector."""
    named = [(name, tuple(one.shape)) for name, one in model.named_parameters() if one.requires_grad]
    return Layout(tuple(name for name, _ in named), tuple(shape for _, shape in named))


class Compressor:
    """The codec of one worker, on its flat vectors. What it keeps lies in ``me.state``, so checkpoints have it.

    Gradients, and differences of parameters that a strategy takes itself, are encoded as they are. Parameters travel as
    their difference from what all workers held after the last exchange, the reference.
    """

    def __init__(
        self, codec: Codec, me: Worker, layout: Layout, seed: int, *, replicated: bool = False
    ) -> None:
        """Workers that are ``replicated`` agree by gradients, and have no use for a reference."""
        self.codec, self._me, self._replicated = codec, me, replicated
        self.used = False
        """Whether anything has been encoded."""
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

    def reduce_gradient(self, start: int, stop: int) -> Reduction:
        """Make a part of ``me.grad``, which is this worker's share of the mean, the sum of all workers' parts.

        All workers are in the same step.
        """
        return self._reduce(self._me.grad[start:stop], start, self._me.clock)

    def reduce_whole_gradient(self) -> Reduction:
        """As above, of all of ``me.grad``; workers may have taken different numbers of steps."""
        yield from self._reduce(self._me.grad, 0, self._next_round())

    @torch.no_grad()
    def take_reference(self) -> None:
        """All workers hold the same parameters now; what gradients left out before is in other units than these."""
        if not self._replicated:
            self._me.state[REFERENCE] = self._me.params.clone()
            self._state.forget()

    @torch.no_grad()
    def reduce_params(self, share: float) -> Reduction:
        """Move ``me.params`` of every worker to the mean of all, weighted by their shares, as far as is known."""
        me, reference = self._me, self._me.state.get(REFERENCE)
        if reference is None:  # replicas that average their parameters after all: the first time exactly
            yield Sum(me.params.mul_(share))
            me.state[REFERENCE] = me.params.clone()
            return
        difference: Tensor = (me.params - reference).mul_(share)
        yield from self._reduce(difference, 0, self._next_round())
        reference.add_(difference)
        me.params.copy_(reference)

    def reduce_update(self, update: Tensor, offset: int) -> Reduction:
        """Make a worker's share of a difference of parameters, which begins at ``offset``, the sum of all workers'."""
        yield from self._reduce(update, offset, self._next_round())

    def _reduce(self, vector: Tensor, start: int, round: int) -> Reduction:  # noqa: A002
        self.used = True
        context = self._state.context(start, start + vector.numel(), round, share=1 / self._me.workers)
        return reduce(self.codec, vector, context)

    def _next_round(self) -> int:
        """Count the reductions of whole vectors, which are the same on all workers, as their steps may not be."""
        rounds = self._me.state.setdefault(ROUNDS, torch.zeros(1, dtype=torch.int64))
        rounds += 1
        return int(rounds)
