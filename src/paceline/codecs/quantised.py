"""Codecs that send fewer bits an element."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from paceline.codecs.base import Codec, RowCodec
from paceline.codecs.bits import pack_bits, packed_length, unpack_bits
from paceline.codecs.context import Context
from paceline.codecs.messages import CorruptMessage, Message, check_message
from paceline.specs.ranges import Range, from_1_to

PIECE, LARGE_PIECE = 2**19, 2**24
"""Elements that a CPU works on at a time, so that what lies between two operators stays in its caches; and other
devices, so that this takes little memory."""
Part = tuple[slice, slice]
"""Rows and columns of a matrix."""
FROM_2_TO_8 = Range("from 2 to 8", lambda value: 2 <= value <= 8)


@dataclass(frozen=True, kw_only=True)
class Half(Codec):
    """Send every element as a 16-bit float."""

    format: Literal["bf16", "fp16"] = "bf16"
    """bf16 has the range of 32 bits and 8 bits of precision; fp16 has 11 bits and ends at 65,504 / workers."""
    memory: Literal["error", "none"] = "none"
    """error: what a message leaves out is added to the next one (error feedback). none: it is lost."""
    sums: ClassVar[bool] = True
    goes_first: ClassVar[bool] = False
    goes_second: ClassVar[bool] = True

    def encode(self, vector: Tensor, context: Context) -> Message:
        sent = vector.to(torch.bfloat16 if self.format == "bf16" else torch.float16, copy=True)
        most = 0.99 * torch.finfo(sent.dtype).max / context.workers  # so that no sum is infinite
        return (sent.clamp_(-most, most),)

    def decode(self, message: Message, context: Context) -> Tensor:
        check_message(message, context.layout.elements)
        return message[0].float()

    def add(self, message: Message, out: Tensor, context: Context, alpha: float = 1.0) -> None:
        check_message(message, context.layout.elements)
        # Torch adds elements of another type twenty times as slowly as it converts them.
        for part, narrow in zip(torch.split(out, PIECE), torch.split(message[0], PIECE), strict=True):
            part.add_(narrow.to(out.dtype), alpha=alpha)

    def write(self, message: Message, out: Tensor, context: Context) -> None:
        check_message(message, context.layout.elements)
        out.copy_(message[0])


@dataclass(frozen=True, kw_only=True)
class Blockwise(RowCodec):
    """Elements as small whole numbers, the levels, and for each block of them what a level stands for: its step."""

    block: Annotated[int, from_1_to(2**24)] = 2048
    """Elements that share a scale; fewer follow the gradient more closely and send more scales."""
    requantises: ClassVar[bool] = True
    goes_first: ClassVar[bool] = False

    def write_rows(self, message: Message, out: Tensor, context: Context) -> None:
        for part, levels, step in self._unpacked(message, context, out.dtype):
            torch.mul(levels, step, out=_in_blocks(out[part], step.shape[1]))

    def add_rows(self, message: Message, out: Tensor, context: Context, alpha: float = 1.0) -> None:
        for part, levels, step in self._unpacked(message, context, out.dtype):
            out[part].add_(levels.mul_(step).flatten(1), alpha=alpha)

    @property
    def largest(self) -> int:
        """The largest level."""
        return 1

    def contents(self, message: Message, context: Context) -> dict[str, Tensor]:
        return {"step": message[0], "levels": self.levels(message[1], context.layout.elements)}

    def levels(self, packed: Tensor, count: int) -> Tensor:
        """As 8-bit numbers; CorruptMessage for what no encoder makes."""
        raise NotImplementedError

    def packed_length(self, count: int) -> int:
        raise NotImplementedError

    def _unpacked(
        self, message: Message, context: Context, dtype: torch.dtype
    ) -> Iterator[tuple[Part, Tensor, Tensor]]:
        """Some elements, their levels by row and block, and the step of each block."""
        count = context.layout.elements
        check_message(message, -(-count // self.block), self.packed_length(count))
        steps, packed = message
        if count:
            self._check_steps(steps.abs().amax())
        levels = self.levels(packed, count)
        for part, blocks in self.parts(levels):
            step = steps[blocks].to(dtype).unsqueeze(-1)
            yield part, _in_blocks(levels[part].to(dtype), step.shape[1]), step

    def scales(self, rows: Tensor) -> Tensor:
        """Memory for a number of each block."""
        return rows.new_empty(len(rows), -(-rows.shape[1] // self.block))

    def _check_steps(self, most: Tensor) -> None:
        if not most.is_meta and most > torch.finfo(most.dtype).max / (self.largest + 1):
            raise CorruptMessage("a message with a scale that is too large")

    def parts(self, rows: Tensor) -> Iterator[tuple[Part, Part]]:
        """Some elements at a time, and the blocks that they are; the last block of a row may be shorter."""
        (count, width), block = rows.shape, self.block
        whole = width // block
        most = PIECE if rows.device.type == "cpu" else LARGE_PIECE
        some_rows, some_blocks = max(1, most // max(1, width)), max(1, most // block)
        for top in range(0, count, some_rows):
            these = slice(top, min(top + some_rows, count))
            for first in range(0, whole, some_blocks):
                last = min(first + some_blocks, whole)
                yield (these, slice(first * block, last * block)), (these, slice(first, last))
            if width > whole * block:
                yield (these, slice(whole * block, width)), (these, slice(whole, whole + 1))


@dataclass(frozen=True, kw_only=True)
class Int8(Blockwise):
    """Round elements at random to levels of their block's largest, unbiased (QSGD; Alistarh et al., 2017)."""

    bits: Annotated[int, FROM_2_TO_8] = 8
    """Bits an element; fewer are fewer bytes and more noise."""
    memory: Literal["error", "none"] = "none"
    """error: what a message leaves out is added to the next one (error feedback); elements are rounded to the nearest
    level, as random rounding to a few would leave out more and more. none: it is lost."""

    @property
    def largest(self) -> int:
        return (1 << self.bits - 1) - 1

    def encode_rows(self, rows: Tensor, context: Context) -> Message:
        rows = _as_float(rows)
        steps = self.scales(rows)
        levels = torch.empty_like(rows, dtype=torch.int8)
        noise = _Noise(context.own_seed, rows.device)
        for part, blocks in self.parts(rows):
            step = steps[blocks]
            elements = _in_blocks(rows[part], step.shape[1])
            step.copy_(self._steps(elements))
            scaled = elements * step.reciprocal().unsqueeze(-1)
            if self.memory == "none":
                noise.add_to(scaled.view(-1))
            else:
                scaled.add_(0.5)
            levels[part] = scaled.floor_().clamp_(-self.largest, self.largest).flatten(1)
        if self.bits == 8:
            return steps, levels
        return steps, pack_bits(levels.add_(self.largest).view(torch.uint8), self.bits)

    def _steps(self, blocks: Tensor) -> Tensor:
        """The largest element over the largest level, where both this and its inverse are numbers of the format."""
        info = torch.finfo(blocks.dtype)
        largest = torch.maximum(blocks.amax(dim=-1), blocks.amin(dim=-1).neg_())
        return largest.div_(self.largest).clamp_(4 * info.tiny, info.max / (self.largest + 1))

    def packed_length(self, count: int) -> int:
        return count if self.bits == 8 else packed_length(count, self.bits)

    def levels(self, packed: Tensor, count: int) -> Tensor:
        found = packed
        if self.bits < 8:
            found = unpack_bits(packed, self.bits, count).view(torch.int8).sub_(self.largest)
        if count:
            low, high = found.amin(), found.amax()
            if not found.is_meta and max(-int(low), int(high)) > self.largest:
                raise CorruptMessage(f"a message with a level beyond {self.largest}")
        return found


class _Noise:
    """Uniform in (0, 1), from a generator of its own, so that no other random number changes."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._cpu = np.random.SFC64(seed) if device.type == "cpu" else None
        self._other = (
            torch.Generator(device).manual_seed(seed) if device.type not in ("cpu", "meta") else None
        )

    def add_to(self, vector: Tensor) -> None:
        count = vector.numel()
        if self._cpu is None:
            made = torch.randint(
                2**16, (count,), generator=self._other, device=vector.device, dtype=torch.int32
            )
        else:
            made = torch.from_numpy(self._cpu.random_raw(-(-count // 4)).view(np.uint16)[:count])
        vector.add_(made.to(vector.dtype).add_(0.5), alpha=2.0**-16)


@dataclass(frozen=True, kw_only=True)
class Sign(Blockwise):
    """Send one bit an element, and the mean size of each block (scaled signSGD; Karimireddy et al., 2019)."""

    def encode_rows(self, rows: Tensor, context: Context) -> Message:  # noqa: ARG002
        rows = _as_float(rows)
        means = self.scales(rows)
        for part, blocks in self.parts(rows):
            mean = means[blocks]
            elements = _in_blocks(rows[part], mean.shape[1])
            torch.sum(elements.abs().mul_(1 / elements.shape[-1]), dim=-1, out=mean)
        return means, pack_bits(_negative(rows), 1)

    def contents(self, message: Message, context: Context) -> dict[str, Tensor]:
        return {"mean": message[0], "signs": self.levels(message[1], context.layout.elements)}

    def packed_length(self, count: int) -> int:
        return packed_length(count, 1)

    def levels(self, packed: Tensor, count: int) -> Tensor:
        return unpack_bits(packed, 1, count).view(torch.int8).mul_(-2).add_(1)


def _in_blocks(rows: Tensor, count: int) -> Tensor:
    """A matrix by row, block and element."""
    return rows.view(len(rows), count, -1)


def _as_float(vector: Tensor) -> Tensor:
    """Contiguous, and of 32 bits at least."""
    return vector.to(torch.promote_types(vector.dtype, torch.float32)).contiguous()


def _negative(vector: Tensor) -> Tensor:
    """1 where the sign is negative and else 0."""
    if vector.device.type == "cpu":
        return torch.from_numpy(np.signbit(vector.detach().numpy())).view(torch.uint8)
    return torch.signbit(vector).view(torch.uint8)
