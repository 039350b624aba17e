"""What a job weighs, without its weights, and tensors that only have a size."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import accumulate
from math import prod
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from paceline.codecs.base import Codec
from paceline.codecs.context import Context, Layout
from paceline.codecs.messages import Message, encoded_bytes
from paceline.collectives.traffic import Bucket
from paceline.costs.trace.trace import trace_function
from paceline.jobs.job import Job
from paceline.runtimes.buffers import flat_buffers, trained_dtype
from paceline.runtimes.compression import layout_of


@dataclass(frozen=True, kw_only=True)
class JobShape:
    """All that time depends on: the shapes of the parameters, the sizes of the buffers and of the data."""

    name: str
    layout: Layout
    """Of the trainable parameters."""
    dtype: torch.dtype = torch.float32
    buffers: int = 0
    train_samples: int = 1
    test_samples: int = 1
    ready: tuple[float, ...] = ()
    """One a parameter: the part of backward, 0 to 1, after which its gradient is complete; empty: not known."""
    accumulate: int = 1
    metrics: ClassVar[tuple[str, ...]] = ()
    step: ClassVar[str] = ""

    @classmethod
    def of(cls, job: Job) -> Self:
        with torch.device("meta"):
            model = job.model()
        return cls(
            name=job.name,
            layout=layout_of(model),
            dtype=trained_dtype(model),
            buffers=flat_buffers(model),
            train_samples=len(job.train),
            test_samples=len(job.test or ()),
            accumulate=job.accumulate,
        )

    @property
    def parameters(self) -> tuple[int, ...]:
        """Elements of each trainable parameter, in order."""
        return tuple(map(prod, self.layout.shapes))

    @property
    def size(self) -> int:
        return self.layout.elements

    def filled(self, buckets: Sequence[Bucket]) -> tuple[float, ...]:
        """The part of backward after which each bucket may start: it is full, and so are those before it.

        Where ``ready`` is not known, backward fills buckets at an even pace in bytes. The last one always waits for
        the end of backward.
        """
        if not self.ready:
            done = accumulate(bucket.stop - bucket.start for bucket in buckets)
            return tuple(elements / self.size for elements in done)
        full = (max(self.ready[index] for index in bucket.parameters) for bucket in buckets[:-1])
        return (*accumulate(full, max), 1.0)


class SizeOnlyTensor(Tensor):
    """A vector on torch's meta device with which strategies compute at no cost.

    Torch infers the shape of every result anew, in Python; here it is known that no result is looked at.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def _unchanged(self, *_: Any, **__: Any) -> Self:
        return self

    add_ = sub_ = mul_ = div_ = zero_ = copy_ = _unchanged

    def __sub__(self, _: Any) -> Tensor:
        return self.clone()

    def new_zeros(self, *_: Any, **__: Any) -> Tensor:
        return self.clone()

    def clone(self, *_: Any, **__: Any) -> Tensor:
        """Another object: what is sent is told apart by identity."""
        return sizes_only(self.shape, self.dtype)

    def tensor_split(self, sections: int) -> tuple[Tensor, ...]:  # type: ignore[override]
        return _split(self.numel(), self.dtype, sections)


def sizes_only(shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta").as_subclass(SizeOnlyTensor)


@cache
def _split(elements: int, dtype: torch.dtype, sections: int) -> tuple[Tensor, ...]:
    split = torch.empty(elements, device="meta").tensor_split(sections)
    return tuple(sizes_only(part.numel(), dtype) for part in split)


@dataclass(frozen=True, kw_only=True)
class SizeOnlyCodec(Codec):
    """Stands for a codec where nothing is computed: its messages only have a size."""

    codec: Codec
    by_round: bool = True
    """Whether it is as it is in each round, or as after all warm-ups."""
    memory: Literal["error", "none"] = "none"

    def encode(self, vector: Tensor, context: Context) -> Message:
        return (sizes_only(_encoded_bytes(self.codec, context.layout, vector.dtype), torch.uint8),)

    def decode(self, message: Message, context: Context) -> Tensor:
        return sizes_only(context.layout.elements, message[0].dtype)

    def add(self, message: Message, out: Tensor, context: Context, alpha: float = 1.0) -> None:
        pass

    def at(self, round: int) -> Codec:  # noqa: A002
        return replace(self, codec=self.codec.at(round)) if self.by_round else self

    def without_memory(self) -> Codec:
        return self


@lru_cache(maxsize=1024)
def _encoded_bytes(codec: Codec, layout: Layout, dtype: torch.dtype) -> int:
    # Outside of a trace torch would import its compiler.
    return trace_function(lambda: encoded_bytes(codec, layout, dtype))[0]


def sized(codec: Codec, *, by_round: bool) -> Codec:
    return SizeOnlyCodec(codec=codec, by_round=by_round) if codec.compresses else codec
