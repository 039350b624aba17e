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
    """Bytes below ``2**bits``, packed."""
    eighths = pad(numbers, (0, -numbers.numel() % _EIGHT)).view(_EIGHT, -1)
    packed = eighths.new_zeros(bits, eighths.shape[1])
    for place, eighth in enumerate(eighths):
        row, shift = divmod(place * bits, _EIGHT)
        packed[row] |= eighth << shift
        if shift + bits > _EIGHT:
            packed[row + 1] |= eighth >> (_EIGHT - shift)
    return packed.view(-1)


def unpack_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    """The first ``count`` numbers; ``packed`` has ``packed_length`` bytes."""
    rows = packed.view(bits, packed.numel() // bits)
    numbers = rows.new_empty(_EIGHT, rows.shape[1])
    for place, eighth in enumerate(numbers):
        row, shift = divmod(place * bits, _EIGHT)
        whole = rows[row] >> shift
        if shift + bits > _EIGHT:
            whole |= rows[row + 1] << (_EIGHT - shift)
        torch.bitwise_and(whole, 2**bits - 1, out=eighth)
    return numbers.view(-1)[:count]
