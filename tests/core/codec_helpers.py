"""Vectors, layouts and groups of ranks that the tests of codecs share."""

from math import prod

import torch
from hypothesis import strategies as st
from torch import Tensor

from paceline.codecs import build_codec
from paceline.codecs.base import Codec
from paceline.codecs.context import Context, Layout
from paceline.codecs.exchanges import run_programs
from paceline.codecs.messages import Message
from paceline.codecs.reduction import reduce
from paceline.codecs.state import CodecState

SPECS = (
    "identity",
    "half",
    "half:format=fp16,memory=error",
    "int8:block=7",
    "int8:bits=2,block=64,memory=error",
    "int8:bits=5",
    "sign:block=16",
    "top-k:ratio=0.1",
    "dgc:ratio=0.2",
    "random-k:ratio=0.3",
    "threshold:bound=0.5,density=0.4",
    "powersgd:rank=1",
    "powersgd:rank=2,memory=none",
    "top-k:ratio=0.2+half",
    "dgc:ratio=0.1+half",
    "threshold:bound=0.5+half",
    "random-k:ratio=0.3+half:format=fp16",
    "powersgd:rank=2+half",
)

SIZES = {"usual": 1.0, "zero": 0.0, "denormal": 1e-41, "tiny": 1e-30, "large": 1e4, "huge": 1e37}

shapes = st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple)
layouts = st.lists(shapes, min_size=1, max_size=4).map(lambda found: layout_of(*found))
dtypes = st.sampled_from([torch.float32, torch.float64])


def layout_of(*shapes: tuple[int, ...]) -> Layout:
    return Layout(tuple(f"p{place}" for place in range(len(shapes))), shapes)


def draw_vector(count: int, seed: int, size: str = "usual", dtype: torch.dtype = torch.float32) -> Tensor:
    made = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return made.clamp_(-5, 5).mul_(SIZES[size]).to(dtype)


def context_of(codec: Codec, layout: Layout, dtype: torch.dtype = torch.float32, **settings: int) -> Context:
    """Of one rank, with the codec's state."""
    found = {name: settings.pop(name) for name in ("rank", "workers", "seed") if name in settings}
    state = CodecState(codec, layout, {}, dtype=dtype, **found)
    return state.context(0, layout.elements, settings.get("round", 0))


class Ranks:
    """All ranks of a group, each with its vector and its memory."""

    def __init__(self, spec: str, layout: Layout, workers: int, dtype: torch.dtype = torch.float32) -> None:
        self.codec, self.layout, self.round = build_codec(spec), layout, 0
        self.tensors: list[dict[str, Tensor]] = [{} for _ in range(workers)]
        self.states = [
            CodecState(self.codec, layout, tensors, dtype=dtype, rank=rank, workers=workers, seed=5)
            for rank, tensors in enumerate(self.tensors)
        ]

    def reduce(self, gradients: list[Tensor], shares: list[float] | None = None) -> list[Tensor]:
        """The vector that each rank ends with, after those of all were reduced."""
        shares = shares or [1 / len(gradients)] * len(gradients)
        vectors = [gradient * share for gradient, share in zip(gradients, shares, strict=True)]
        contexts = [
            state.context(0, self.layout.elements, self.round, 1 / len(gradients)) for state in self.states
        ]
        run_programs(
            [reduce(self.codec, vector, context) for vector, context in zip(vectors, contexts, strict=True)]
        )
        self.round += 1
        return vectors

    @property
    def memories(self) -> list[Tensor] | None:
        found = [tensors.get("codec.memory") for tensors in self.tensors]
        return [one for one in found if one is not None] or None


def weighted_sum(vectors: list[Tensor], shares: list[float]) -> Tensor:
    return sum(
        (share * vector.double() for vector, share in zip(vectors, shares, strict=True)),
        torch.zeros(prod(vectors[0].shape), dtype=torch.float64),
    )


def decode(codec: Codec, message: Message, like: Tensor, context: Context) -> Tensor:
    """What a message stands for, of the type of ``like``."""
    out = torch.zeros_like(like)
    codec.add(message, out, context)
    return out
