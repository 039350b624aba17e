"""What a codec is: from a vector to a message of tensors, and back; and the one that changes nothing."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from math import isfinite, prod
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from paceline.specs.ranges import check_ranges

Message = tuple[Tensor, ...]
"""What is sent: its bytes are those of its tensors, which are vectors."""
Reduction = Generator[Any, Any, None]
"""One rank's part in the sum of all ranks' vectors; it yields ``Sum``, ``AllGather`` or ``AllToAll``."""

STEADY = 2**62
"""A round in which every warm-up is over."""

MEMORY = "memory"
"""The name of the error memory among a codec's state."""


class CorruptMessage(ValueError):
    """Bytes that no encoder makes of such a vector; they may come from another version, or from an attacker."""


@dataclass(frozen=True)
class Layout:
    """The parameters that a flat vector is made of, one after the other."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of_vector(cls, elements: int, name: str = "vector") -> Self:
        return cls((name,), ((elements,),))

    @classmethod
    def of_vectors(cls, *elements: int) -> Self:
        return cls(tuple(map(str, range(len(elements)))), tuple((one,) for one in elements))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each parameter starts in the vector, and the vector's length."""
        return (0, *accumulate(map(prod, self.shapes)))

    @property
    def elements(self) -> int:
        return self.offsets[-1]

    def between(self, start: int, stop: int) -> "Layout":
        """The layout of a part of the vector, in elements; a parameter that it cuts is a vector there."""
        names, shapes = [], []
        for name, shape, first, last in zip(
            self.names, self.shapes, self.offsets, self.offsets[1:], strict=False
        ):
            inside = min(last, stop) - max(first, start)
            if inside > 0:
                names.append(name)
                shapes.append(shape if inside == last - first else (inside,))
        return Layout(tuple(names), tuple(shapes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a codec may know of the vector that it encodes or decodes, besides its elements."""

    layout: Layout
    state: Mapping[str, Tensor] = field(default_factory=dict)
    """What this rank keeps for the vector from round to round, by name; changed in place."""
    start: int = 0
    """Where the vector starts in the flat vector of all parameters."""
    round: int = 0
    """The step, or the server's version, that the vector belongs to: the same at both ends of a message."""
    rank: int = 0
    workers: int = 1
    share: float = 1.0
    """The fraction of its own gradient, or difference, that the vector is, where the sum of all is a mean.

    The memory is in the units of the gradient, so that the mean of all ranks' memories means something.
    """
    seed: int = 0
    second: "Codec | None" = None
    """What sends the floats of a message, where a chain does; None sends them as they are."""

    @property
    def memory(self) -> Tensor | None:
        """What messages have left out so far; None without error memory."""
        return self.state.get(MEMORY)

    @property
    def shared_seed(self) -> int:
        """The same on all ranks, and another for each round and each part of the vector."""
        return _mix(self.seed, self.round, self.start)

    @property
    def own_seed(self) -> int:
        return _mix(self.shared_seed, self.rank + 1, 0)

    def arriving(self, floats: Tensor) -> Tensor:
        """A vector of a message, rounded to what the receiver will get of it."""
        if self.second is None:
            return floats
        return self.second.encode(floats, self)[0].to(floats.dtype)

    def chunks(self) -> list[tuple[slice, "Context"]]:
        """One part of the vector for each rank; sizes differ by at most one. Only elementwise state goes along."""
        return [self.chunk(rank) for rank in range(self.workers)]

    def chunk(self, rank: int) -> tuple[slice, "Context"]:
        length, count = self.layout.elements, self.workers
        start, stop = length * rank // count, length * (rank + 1) // count
        return slice(start, stop), self._part(start, stop)

    def _part(self, start: int, stop: int) -> "Context":
        length = self.layout.elements
        state = {name: one[start:stop] for name, one in self.state.items() if one.numel() == length}
        return replace(self, layout=Layout.of_vector(stop - start), state=state, start=self.start + start)


def _mix(*numbers: int) -> int:
    """One seed of several numbers; neighbouring numbers give seeds that have nothing in common."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 6_364_136_223_846_793_005 + number + 1_442_695_040_888_963_407) % 2**64
        mixed ^= mixed >> 29
    return mixed >> 1


@dataclass(frozen=True, kw_only=True)
class Codec(ABC):
    """A way to send a vector with fewer bytes. A frozen, keyword-only dataclass; its fields are its settings.

    A codec is a value: what it keeps from round to round lies in ``Context.state``. It must work on tensors of torch's
    meta device as well, which is how prediction learns its bytes and its time.
    """

    memory: Literal["error", "none"] = "error"
    """error: what a message leaves out is added to the next one (error feedback). none: it is lost."""

    sums: ClassVar[bool] = False
    """Whether what ranks send is added up tensor by tensor, on the way, by whatever collective a run uses."""
    requantises: ClassVar[bool] = False
    """Whether a sum of decoded messages may be encoded again: else it is dense, and is sent as it is."""
    varies: ClassVar[bool] = False
    """Whether the data decide how long a message is; all its tensors then have the same number of elements."""
    has_momentum: ClassVar[bool] = False
    """Whether it adds momentum to gradients, in place of the optimizer's."""

    def __post_init__(self) -> None:
        check_ranges(self)

    @abstractmethod
    def encode(self, vector: Tensor, context: Context) -> Message:
        """Return the message that stands for a vector, which is left as it is; the message may share its memory."""

    @abstractmethod
    def decode(self, message: Message, context: Context) -> Tensor:
        """Return a new vector, near to what was encoded; raise CorruptMessage for what no encoder makes."""

    def add(self, message: Message, out: Tensor, context: Context, alpha: float = 1.0) -> None:
        """Add ``alpha`` times what a message stands for to ``out``."""
        out.add_(self.decode(message, context), alpha=alpha)

    def write(self, message: Message, out: Tensor, context: Context) -> None:
        """Overwrite ``out`` with what a message stands for."""
        out.zero_()
        self.add(message, out, context)

    def contents(self, message: Message, context: Context) -> dict[str, Tensor]:  # noqa: ARG002
        """What a message holds, by name, for people who want to see it; ``indices`` are those of elements."""
        if len(message) == 1:
            return {"values": message[0]}
        return {f"part {place}": tensor for place, tensor in enumerate(message, start=1)}

    def at(self, round: int) -> "Codec":  # noqa: A002, ARG002
        """The codec as it is in this round, where the length of its messages changes during a run."""
        return self

    def without_memory(self) -> "Codec":
        """For vectors whose error needs no memory, because the sender knows what the receiver has."""
        return replace(self, memory="none")

    def initial_state(self, shape: tuple[int, ...], seed: int) -> dict[str, Tensor]:  # noqa: ARG002
        """What each rank keeps for a parameter of this shape besides the error memory: vectors, by name."""
        return {}

    def prepare(self, vector: Tensor, context: Context) -> None:  # noqa: B027
        """Change a gradient in place before the error memory is added to it."""

    def sent_whole(self, context: Context) -> None:  # noqa: B027
        """Called where a vector is sent as it is and not encoded, because that is shorter."""

    def reduce(self, vector: Tensor, context: Context) -> Reduction:
        """Make ``vector`` the sum of all ranks' vectors, and subtract from the memory what was sent of this one."""
        from paceline.codecs.reduction import choose

        return choose(self, vector, context)


@dataclass(frozen=True, kw_only=True)
class Identity(Codec):
    """Send every number as it is."""

    memory: Literal["none"] = "none"
    """none: nothing is left out."""
    sums: ClassVar[bool] = True

    def encode(self, vector: Tensor, context: Context) -> Message:  # noqa: ARG002
        return (vector,)

    def decode(self, message: Message, context: Context) -> Tensor:
        check_message(message, context.layout.elements)
        return message[0].clone()

    def add(self, message: Message, out: Tensor, context: Context, alpha: float = 1.0) -> None:
        check_message(message, context.layout.elements)
        out.add_(message[0], alpha=alpha)


def blank(message: Message, context: Context) -> Tensor:
    """Memory for what a message stands for."""
    if not message:
        raise CorruptMessage("a message of nothing")
    return message[0].new_empty(context.layout.elements)


def check_message(message: Message, *lengths: int) -> None:
    """Raise CorruptMessage unless the tensors have these lengths and no element that is not finite."""
    found = tuple(tensor.numel() for tensor in message)
    if found != lengths:
        raise CorruptMessage(f"a message of {found} elements, where {lengths} were expected")
    for tensor in message:
        if tensor.is_floating_point():
            total = tensor.sum()
            if total.is_meta or isfinite(total.item()):
                continue
            if not all(isfinite(end.item()) for end in tensor.aminmax()):  # else only their sum is infinite
                raise CorruptMessage("a message with an element that is not finite")


def pack(message: Message, length: int | None = None) -> Tensor:
    """A message as bytes, the widest elements first, so that each tensor is aligned; zeros fill it up to ``length``."""
    parts = [tensor.reshape(-1).view(torch.uint8) for tensor in _by_width(message)]
    missing = 0 if length is None else length - sum(part.numel() for part in parts)
    if missing:
        parts.append(parts[0].new_zeros(missing))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def unpack(codec: Codec, raw: Tensor, dtype: torch.dtype, context: Context) -> Message:
    """The inverse of ``pack``; CorruptMessage for another number of bytes than the codec makes."""
    kinds = message_kinds(codec, context.layout, dtype, raw.device)
    if codec.varies:
        many = raw.numel() // sum(kind.itemsize for kind, _ in kinds)
        kinds = tuple((kind, many) for kind, _ in kinds)
    expected = sum(kind.itemsize * count for kind, count in kinds)
    if raw.numel() != expected:
        raise CorruptMessage(f"a message of {raw.numel():,} bytes, where {expected:,} were expected")
    found: dict[int, Tensor] = {}
    start = 0
    for place in sorted(range(len(kinds)), key=lambda place: -kinds[place][0].itemsize):
        kind, count = kinds[place]
        stop = start + count * kind.itemsize
        found[place] = _aligned(raw[start:stop], kind.itemsize).view(kind)
        start = stop
    return tuple(found[place] for place in range(len(kinds)))


def _aligned(raw: Tensor, width: int) -> Tensor:
    aligned = raw.is_contiguous() and not raw.storage_offset() % width
    return raw if aligned and (raw.is_meta or not raw.data_ptr() % width) else raw.clone()


def _by_width(message: Iterable[Tensor]) -> list[Tensor]:
    return sorted(message, key=lambda tensor: -tensor.itemsize)


@lru_cache(maxsize=4096)
def message_kinds(
    codec: Codec, layout: Layout, dtype: torch.dtype, device: torch.device | str = "meta"
) -> tuple[tuple[torch.dtype, int], ...]:
    """Types and lengths of the tensors of a message, as an encoder makes them of a vector without memory.

    The first operation on the meta device takes a second: where there are data, name their device.
    """
    with torch.device(device):
        state = _zero_state(codec, layout)
        message = codec.encode(torch.zeros(layout.elements, dtype=dtype), Context(layout=layout, state=state))
    return tuple((tensor.dtype, tensor.numel()) for tensor in message)


def _zero_state(codec: Codec, layout: Layout) -> dict[str, Tensor]:
    sizes: dict[str, int] = {}
    for shape in layout.shapes:
        for name, tensor in codec.initial_state(shape, 0).items():
            sizes[name] = sizes.get(name, 0) + tensor.numel()
    return {name: torch.zeros(many) for name, many in sizes.items()}


def message_bytes(
    codec: Codec, layout: Layout, dtype: torch.dtype, device: torch.device | str = "meta"
) -> int:
    return sum(kind.itemsize * count for kind, count in message_kinds(codec, layout, dtype, device))
