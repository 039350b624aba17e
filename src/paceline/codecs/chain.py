"""Two codecs in a row: what the first makes of a vector, with its floats as the second sends them."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.codecs import links
from paceline.codecs.base import Codec
from paceline.codecs.context import Context, Layout
from paceline.codecs.exchanges import AllGather, AllToAll, Reduction, Sum
from paceline.codecs.messages import Message, message_kinds
from paceline.errors import UsageError

FEW = 64
"""Elements of a vector that tells of which types a codec's messages are."""


@dataclass(frozen=True, kw_only=True)
class Chain(Codec):
    """Send what the first codec makes of a vector, its floats as the second one sends them."""

    first: Codec
    second: Codec
    """Its messages are one tensor, of another type and as many elements."""

    @property
    def sums(self) -> bool:  # type: ignore[override]
        return self.first.sums

    @property
    def requantises(self) -> bool:  # type: ignore[override]
        return self.first.requantises

    @property
    def varies(self) -> bool:  # type: ignore[override]
        return self.first.varies

    @property
    def has_momentum(self) -> bool:  # type: ignore[override]
        return self.first.has_momentum

    def encode(self, vector: Tensor, context: Context) -> Message:
        return tuple(self._narrow(one, context) for one in self.first.encode(vector, context))

    def decode(self, message: Message, context: Context) -> Tensor:
        return self.first.decode(
            tuple(one.float() if one.is_floating_point() else one for one in message), context
        )

    def add(self, message: Message, out: Tensor, context: Context, alpha: float = 1.0) -> None:
        self.first.add(tuple(_widen(one, out) for one in message), out, context, alpha)

    def encode_rows(self, rows: Tensor, context: Context) -> Message:
        return tuple(self._narrow(one, context) for one in self.first.encode_rows(rows, context))

    def add_rows(self, message: Message, out: Tensor, context: Context, alpha: float = 1.0) -> None:
        self.first.add_rows(tuple(_widen(one, out) for one in message), out, context, alpha)

    def contents(self, message: Message, context: Context) -> dict[str, Tensor]:
        return self.first.contents(message, context)

    def at(self, round: int) -> "Chain":  # noqa: A002
        return replace(self, first=self.first.at(round))

    def without_memory(self) -> "Chain":
        return replace(self, first=self.first.without_memory(), memory="none")

    def initial_state(self, shape: tuple[int, ...], seed: int) -> dict[str, Tensor]:
        return self.first.initial_state(shape, seed)

    def prepare(self, vector: Tensor, context: Context) -> None:
        self.first.prepare(vector, context)

    def on_dense_send(self, context: Context) -> None:
        self.first.on_dense_send(context)

    def reduce(self, vector: Tensor, context: Context) -> Reduction | None:
        """The first one's own reduction, whose floats travel as the second has them."""
        program = self.first.reduce(vector, replace(context, second=self.second))
        return program and self._narrowed(program, context)

    def _narrowed(self, program: Reduction, context: Context) -> Reduction:
        answer: list[Tensor] | None = None
        while True:
            try:
                asked = program.send(answer)
            except StopIteration:
                return
            match asked:
                case Sum(tensor, what):
                    narrow = self._narrow(tensor, context)
                    answer = yield Sum(narrow, what)
                    tensor.copy_(narrow)
                case AllGather(wide):
                    received = yield AllGather(self._narrow(wide, context))
                    answer = [_widen(one, wide) for one in received]
                case AllToAll(rows):
                    received = yield AllToAll([self._narrow(row, context) for row in rows])
                    answer = [_widen(one, row) for one, row in zip(received, rows, strict=True)]

    def _narrow(self, tensor: Tensor, context: Context) -> Tensor:
        return self.second.encode(tensor, context)[0] if tensor.is_floating_point() else tensor


def chain(spec: str, first: Codec, second: Codec) -> Chain:
    """Chain two codecs; refuse a first one whose messages have no floats that the second could send."""
    kinds = message_kinds(first, Layout.of_vector(FEW), torch.float32, "cpu")
    if not any(kind.is_floating_point for kind, _ in kinds):
        first_link, second_link = links(spec)
        raise UsageError(
            f"codec {spec!r} cannot be chained: messages of {first_link} have no floats that {second_link} could "
            f"send; choose {first_link}"
        )
    return Chain(first=first, second=second, memory=first.memory)


def _widen(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor.to(like.dtype) if tensor.is_floating_point() else tensor
