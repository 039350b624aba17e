"""What a codec is: from a vector to a message of tensors, and back; and the one that changes nothing."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Literal

import torch
from torch import Tensor

from paceline.codecs.context import Context
from paceline.codecs.exchanges import Reduction
from paceline.codecs.messages import Message, blank, check_message, encoded_bytes
from paceline.codecs.reduction import gathered, gathered_or_dense, scattered, summed
from paceline.specs.ranges import check_ranges


@dataclass(frozen=True, kw_only=True)
class Codec(ABC):
    """A way to send a vector with fewer bytes. A frozen, keyword-only dataclass; its fields are its settings.

    A codec is a value: what it keeps from round to round lies in ``Context.state``. It must work on tensors of torch's
    meta device as well, which is how prediction learns its bytes and its time.
    """

    memory: Literal["error", "none"] = "error"
    """error: what a message leaves out is added to the next one (error feedback). none: it is lost."""

    compresses: ClassVar[bool] = True
    """Whether it sends anything but the vector as it is."""
    sums: ClassVar[bool] = False
    """Whether what ranks send is added up tensor by tensor, on the way, by whatever collective a run uses."""
    requantises: ClassVar[bool] = False
    """Whether a sum of decoded messages may be encoded again: else it is dense, and is sent as it is."""
    varies: ClassVar[bool] = False
    """Whether the data decide how long a message is; all its tensors then have the same number of elements."""
    has_momentum: ClassVar[bool] = False
    """Whether it adds momentum to gradients, in place of the optimizer's."""
    goes_first: ClassVar[bool] = True
    """Whether another codec may send the floats of its messages, as in ``top-k+half``."""
    goes_second: ClassVar[bool] = False
    """Whether it may send the floats of another codec's: its message is the vector in another type of floats."""
    example: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Settings for ``paceline explain``, where the usual ones would show nothing on a few values."""

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

    def encode_rows(self, rows: Tensor, context: Context) -> Message:
        """Encode each row of a matrix: row r of the tensors is the message of row r."""
        messages = [self.encode(row, context.row(place)) for place, row in enumerate(rows)]
        return tuple(map(torch.stack, zip(*messages, strict=True)))

    def add_rows(self, message: Message, out: Tensor, context: Context, alpha: float = 1.0) -> None:
        """As ``add``, of each row."""
        for place, row in enumerate(out):
            self.add(tuple(tensor[place] for tensor in message), row, context.row(place), alpha)

    def write_rows(self, message: Message, out: Tensor, context: Context) -> None:
        out.zero_()
        self.add_rows(message, out, context)

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

    def on_dense_send(self, context: Context) -> None:  # noqa: B027
        """Called for what the rank sends dense because that is shorter, and for the chunk that it sums for all."""

    def reduce(self, vector: Tensor, context: Context) -> Reduction | None:  # noqa: ARG002
        """Return a reduction of its own; None: messages are exchanged in the way that takes fewest bytes.

        It makes ``vector`` the sum of all ranks' vectors, and subtracts from the memory what was sent of this one.
        """
        return None

    def program(self, vector: Tensor, context: Context) -> Reduction:
        """Return the reduction of a vector to which the memory has been added. Not for codecs to define."""
        return self.reduce(vector, context) or self._fewest_bytes(vector, context)

    def _fewest_bytes(self, vector: Tensor, context: Context) -> Reduction:
        """For vectors that are not shorter than a few messages."""
        if self.sums:
            return summed(self, vector, context)
        if self.varies:
            return gathered_or_dense(self, vector, context)
        others = context.workers - 1
        if self.requantises:  # n - 1 messages, or twice n - 1 nth parts of one
            return scattered(self, self, vector, context) if others > 1 else gathered(self, vector, context)
        if others * encoded_bytes(self, context.layout, vector.dtype, vector.device) > vector.nbytes:
            return scattered(self, Identity(), vector, context)
        return gathered(self, vector, context)


@dataclass(frozen=True, kw_only=True)
class RowCodec(Codec):
    """A codec that takes all rows of a matrix at once: it has ``add_rows`` and ``encode_rows``. A vector is one row."""

    def encode(self, vector: Tensor, context: Context) -> Message:
        return tuple(tensor[0] for tensor in self.encode_rows(vector[None], context))

    def decode(self, message: Message, context: Context) -> Tensor:
        out = blank(message, context)
        self.write(message, out, context)
        return out

    def add(self, message: Message, out: Tensor, context: Context, alpha: float = 1.0) -> None:
        self.add_rows(tuple(tensor[None] for tensor in message), out[None], context, alpha)

    def write(self, message: Message, out: Tensor, context: Context) -> None:
        self.write_rows(tuple(tensor[None] for tensor in message), out[None], context)


@dataclass(frozen=True, kw_only=True)
class Identity(Codec):
    """Send every number as it is."""

    memory: Literal["none"] = "none"
    """none: nothing is left out."""
    compresses: ClassVar[bool] = False
    goes_first: ClassVar[bool] = False
    sums: ClassVar[bool] = True

    def encode(self, vector: Tensor, context: Context) -> Message:  # noqa: ARG002
        return (vector,)

    def decode(self, message: Message, context: Context) -> Tensor:
        check_message(message, context.layout.elements)
        return message[0].clone()

    def add(self, message: Message, out: Tensor, context: Context, alpha: float = 1.0) -> None:
        check_message(message, context.layout.elements)
        out.add_(message[0], alpha=alpha)

    def encode_rows(self, rows: Tensor, context: Context) -> Message:
        return self.encode(rows, context)

    def add_rows(self, message: Message, out: Tensor, context: Context, alpha: float = 1.0) -> None:
        self.add(message, out, context, alpha)
