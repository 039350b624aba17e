"""What a rank keeps for its messages: the error memory and a codec's own state, flat and by parameter.

They do not depend on the buckets that travel at once, so these may change between a checkpoint and its resumption.
"""

from collections.abc import MutableMapping
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from paceline.codecs.base import Codec
from paceline.codecs.context import MEMORY, Context, Layout

PREFIX = "codec."


class CodecState:
    """Keeps its tensors in ``tensors``, which checkpoints save; what is not there yet is made."""

    def __init__(
        self,
        codec: Codec,
        layout: Layout,
        tensors: MutableMapping[str, Tensor],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        rank: int = 0,
        workers: int = 1,
        seed: int = 0,
    ) -> None:
        self.codec, self.layout, self._tensors = codec, layout, tensors
        self._rank, self._workers, self._seed = rank, workers, seed
        made: dict[str, list[Tensor]] = {}
        self._sizes: dict[str, list[int]] = {}
        for place, shape in enumerate(layout.shapes):
            state = codec.initial_state(shape, seed + place)
            if codec.memory == "error":
                state[MEMORY] = torch.zeros(prod(shape))
            for name, tensor in state.items():
                made.setdefault(name, []).append(tensor)
                self._sizes.setdefault(name, [0] * len(layout.shapes))[place] = tensor.numel()
        for name, parts in made.items():
            if PREFIX + name not in tensors:
                tensors[PREFIX + name] = torch.cat(parts).to(device, dtype)

    @cached_property
    def _elementwise(self) -> frozenset[str]:
        lengths = [prod(shape) for shape in self.layout.shapes]
        return frozenset(name for name, sizes in self._sizes.items() if sizes == lengths)

    def context(self, start: int, stop: int, round: int, share: float = 1.0) -> Context:  # noqa: A002
        """Of a part of the vector, in elements."""
        return Context(
            layout=self.layout.between(start, stop),
            state={name: self._view(name, start, stop) for name in self._sizes},
            start=start,
            round=round,
            rank=self._rank,
            workers=self._workers,
            share=share,
            seed=self._seed,
            elementwise=self._elementwise,
        )

    def forget(self) -> None:
        """Drop what messages have left out so far."""
        if MEMORY in self._sizes:
            self._tensors[PREFIX + MEMORY].zero_()

    def _view(self, name: str, start: int, stop: int) -> Tensor:
        """A parameter that the part cuts has no state there, unless each of its elements has its own."""
        offsets, sizes = self.layout.offsets, self._sizes[name]
        tensor = self._tensors[PREFIX + name]
        if name in self._elementwise:
            return tensor[start:stop]
        whole = [
            place for place in range(len(sizes)) if start <= offsets[place] and offsets[place + 1] <= stop
        ]
        if not whole:
            return tensor[:0]
        return tensor[sum(sizes[: whole[0]]) : sum(sizes[: whole[-1] + 1])]
