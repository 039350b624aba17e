"""What a worker sends of its gradients and parameters where a codec is in use; the same in both runtimes."""

from time import perf_counter

import torch
from torch import Tensor, nn

from paceline.codecs.base import Codec, Layout, Reduction
from paceline.codecs.reduction import Sum, reduce
from paceline.codecs.state import PREFIX, CodecState
from paceline.strategies.base import Worker

REFERENCE, ROUNDS = f"{PREFIX}reference", f"{PREFIX}rounds"


def layout_of(model: nn.Module) -> Layout:
    """Of the trainable parameters, in the order of the flat vector."""
    named = [(name, tuple(one.shape)) for name, one in model.named_parameters() if one.requires_grad]
    return Layout(tuple(name for name, _ in named), tuple(shape for _, shape in named))


class Compressor:
    """The codec of one worker, on its flat vectors. What it keeps lies in ``me.state``, so checkpoints have it.

    Gradients are encoded as they are. Parameters travel as their difference from what all workers held after the last
    exchange, the reference.
    """

    def __init__(
        self, codec: Codec, me: Worker, layout: Layout, seed: int, *, replicated: bool = False
    ) -> None:
        """Workers that are ``replicated`` agree by gradients, and have no use for a reference."""
        self.codec, self._me, self._replicated = codec, me, replicated
        self.used = False
        """Whether anything has been encoded."""
        self.seconds = 0.0
        """Of encoding and decoding, all that programs did between exchanges."""
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
        """Make a part of ``me.grad``, which is ``share`` times the gradient, the sum of all workers' parts.

        All workers are in the same step.
        """
        return self._reduce(self._me.grad[start:stop], start, self._me.clock, share)

    def reduce_whole_gradient(self, share: float) -> Reduction:
        """As above, of all of ``me.grad``; workers may have taken different numbers of steps."""
        yield from self._reduce(self._me.grad, 0, self._next_round(), share)

    @torch.no_grad()
    def take_reference(self) -> None:
        """All workers hold the same parameters now."""
        if not self._replicated:
            self._me.state[REFERENCE] = self._me.params.clone()

    @torch.no_grad()
    def reduce_params(self, share: float) -> Reduction:
        """Move ``me.params`` of every worker to the mean of all, weighted by their shares, as far as is known."""
        me, reference = self._me, self._me.state.get(REFERENCE)
        if reference is None:  # replicas that average their parameters after all: the first time exactly
            yield Sum(me.params.mul_(share))
            me.state[REFERENCE] = me.params.clone()
            return
        difference: Tensor = (me.params - reference).mul_(share)
        yield from self._reduce(difference, 0, self._next_round(), share)
        reference.add_(difference)
        me.params.copy_(reference)

    def _reduce(self, vector: Tensor, start: int, round: int, share: float) -> Reduction:  # noqa: A002
        self.used = True
        # What a worker without samples has kept is a gradient as good as another's.
        context = self._state.context(start, start + vector.numel(), round, share or 1 / self._me.workers)
        return self._timed(reduce(self.codec, vector, context))

    def _timed(self, program: Reduction) -> Reduction:
        answer = None
        while True:
            begun = perf_counter()
            try:
                asked = program.send(answer)
            except StopIteration:
                return
            finally:
                self.seconds += perf_counter() - begun
            answer = yield asked

    def _next_round(self) -> int:
        """Count the reductions of whole vectors, which are the same on all workers, as their steps may not be."""
        rounds = self._me.state.setdefault(ROUNDS, torch.zeros(1, dtype=torch.int64))
        rounds += 1
        return int(rounds)
