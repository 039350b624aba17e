"""Numbers of 1 to 7 bits in bytes, without gaps.

An eighth of the numbers lies in the lowest bits, the next eighth above it, and so on: whole vectors are shifted and
joined, which every device does at the speed of its memory.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

_EIGHT = 8


def packed_length(count: int, bits: int) -> int:
    return bits * -(-count // _EIGHT)


def pack_bits(numbers: Tensor, bits: int) -> Tensor:
    """Bytes below ``2**bits``, packed; of a matrix, each row."""
    *rows, count = numbers.shape
    length = -(-count // _EIGHT)
    eighths = pad(numbers, (0, -count % _EIGHT)).view(*rows, _EIGHT, length)
    packed = eighths.new_zeros(*rows, bits, length)
    for place, eighth in enumerate(eighths.unbind(-2)):
        line, shift = divmod(place * bits, _EIGHT)
        packed[..., line, :] |= eighth << shift
        if shift + bits > _EIGHT:
            packed[..., line + 1, :] |= eighth >> (_EIGHT - shift)
    return packed.flatten(-2)


def unpack_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    """The first ``count`` numbers; ``packed`` has ``packed_length`` bytes, or such rows."""
    *rows, length = packed.shape
    lines = packed.view(*rows, bits, length // bits).unbind(-2)
    numbers = packed.new_empty(*rows, _EIGHT, length // bits)
    for place, eighth in enumerate(numbers.unbind(-2)):
        line, shift = divmod(place * bits, _EIGHT)
        whole = lines[line] >> shift
        if shift + bits > _EIGHT:
            whole |= lines[line + 1] << (_EIGHT - shift)
        torch.bitwise_and(whole, 2**bits - 1, out=eighth)
    return numbers.flatten(-2)[..., :count]
