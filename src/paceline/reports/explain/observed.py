"""One rank's part in a reduction of encoded vectors, and what can be seen of it."""

from copy import copy
from dataclasses import dataclass

from torch import Tensor

from paceline.codecs.base import Codec
from paceline.codecs.context import Context
from paceline.codecs.exchanges import Reduction
from paceline.codecs.messages import Message
from paceline.codecs.reduction import reduce
from paceline.reports.explain.document import Encoded, Values


def as_values(tensor: Tensor) -> Values:
    """The shortest numbers that stand for the elements: 9.1 and not 9.100000381469727."""
    if not tensor.is_floating_point():
        return tuple(map(float, tensor.tolist()))
    return tuple(float(str(number)) for number in tensor.detach().float().numpy())


@dataclass(frozen=True)
class Encoding:
    """What an encoder was given, and what it made of it."""

    codec: Codec
    vector: Tensor
    context: Context
    message: Message

    @property
    def where(self) -> slice:
        return slice(self.context.start, self.context.start + self.context.layout.elements)

    @property
    def is_sparse(self) -> bool:
        return "indices" in self.cell().contents

    @property
    def columns(self) -> list[int]:
        """The elements that are sent."""
        contents = self.cell().contents
        everything = range(self.where.start, self.where.stop)
        return sorted(map(int, contents.get("indices", everything)))

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.message)

    def stands_for(self) -> Tensor:
        return self.codec.decode(self.message, self.context)

    def cell(self) -> Encoded:
        """Indices are those of the whole vector."""
        contents = {
            name: as_values(one) for name, one in self.codec.contents(self.message, self.context).items()
        }
        if "indices" in contents:
            contents["indices"] = tuple(index + self.context.start for index in contents["indices"])
        return Encoded(contents, as_values(self.stands_for()))


class ObservedRank:
    """Runs the program of one rank on a vector; ``encodings`` are what its codec has encoded so far."""

    def __init__(self, codec: Codec, vector: Tensor, context: Context) -> None:
        self.vector, self.context = vector, context
        self.encodings: list[Encoding] = []
        self.prepared = vector.clone()
        self._codec = copy(codec.at(context.round))
        self._encode, self._encode_rows = self._codec.encode, self._codec.encode_rows
        self._prepare = self._codec.prepare
        # In the instance, where a codec's own reduction finds them as well; it is frozen for others.
        vars(self._codec).update(
            encode=self._note_encoding,
            encode_rows=self._note_rows,
            prepare=self._note_prepared,
            at=lambda _: self._codec,
        )

    def program(self) -> Reduction:
        return reduce(self._codec, self.vector, self.context)

    def _note_encoding(self, vector: Tensor, context: Context) -> Message:
        known = len(self.encodings)
        message = self._encode(vector, context)
        del self.encodings[known:]  # of the vector as a row
        self._note(vector, context, message)
        return message

    def _note_rows(self, rows: Tensor, context: Context) -> Message:
        known = len(self.encodings)
        message = self._encode_rows(rows, context)
        del self.encodings[known:]  # of each row as a vector
        for place, row in enumerate(rows):
            self._note(row, context.row(place), tuple(tensor[place] for tensor in message))
        return message

    def _note(self, vector: Tensor, context: Context, message: Message) -> None:
        if context.workers > 1:  # else it only wants to know how long a message is
            kept = tuple(tensor.clone() for tensor in message)
            self.encodings.append(Encoding(self._codec, vector.clone(), context, kept))

    def _note_prepared(self, vector: Tensor, context: Context) -> None:
        self._prepare(vector, context)
        self.prepared = vector.clone()
