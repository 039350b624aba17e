"""Bytes that a step holds while its operators run: what autograd saves for backward, and what is in between."""

import weakref
from collections.abc import Sequence
from functools import partial

from torch import Tensor

from paceline.costs.trace.operator import Kind

MATRIX: tuple[Kind, ...] = ("convolution", "product", "attention")
"""What mixed precision computes in 16 bits."""

_FULL: tuple[Kind, ...] = ("norm", "reduction")
"""What it computes in 32, softmax and losses among them; batch normalisation keeps the format that it is given."""


BLOCK = 32 * 2**20
"""Bytes from which glibc gives a block pages of its own and gives them back; smaller ones share a heap, with holes."""


class Held:
    """Counts the memory of every tensor that an operator makes, from then until nobody holds it.

    Two tensors that share memory count once. What was there before the step, such as parameters, does not count.
    ``mixed`` is what the same step would hold in mixed precision: products and convolutions read and make 16-bit
    numbers, of which weights and inputs have a copy; softmax, losses and normalisation make 32-bit ones; everything
    else is as wide as the widest that it reads.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.mixed = 0
        self.heap = 0
        """Of ``bytes``, those in blocks below ``BLOCK``."""
        self._memories: dict[int, _Memory] = {}
        self._cast: set[int] = set()

    def made(
        self, name: str, kind: Kind, forward: bool, given: Sequence[Tensor], made: Sequence[Tensor]
    ) -> None:
        """Take in what a call of an operator was given and has made."""
        if forward and kind in MATRIX:
            for tensor in given:
                self._narrow(tensor)
        wide = self._wide(name, kind, given)
        known = {tensor.untyped_storage()._cdata for tensor in given}
        for tensor in made:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in known or key in self._memories:
                continue
            size = storage.nbytes()
            mixed = size if wide or not _is_wide(tensor) else size // 2
            self._memories[key] = _Memory(size, mixed, weakref.ref(storage, partial(self._freed, key)))
            self.bytes += size
            self.mixed += mixed
            self.heap += size if size < BLOCK else 0

    def _wide(self, name: str, kind: Kind, given: Sequence[Tensor]) -> bool:
        """Whether mixed precision makes 32-bit numbers here."""
        if kind in MATRIX:
            return False
        if kind in _FULL and "batch_norm" not in name:
            return True
        return any(_is_wide(tensor) and self._is_wide_here(tensor) for tensor in given if tensor.dim() > 1)

    def _is_wide_here(self, tensor: Tensor) -> bool:
        memory = self._memories.get(tensor.untyped_storage()._cdata)
        return memory is None or memory.mixed == memory.size

    def _narrow(self, tensor: Tensor) -> None:
        """Hold a tensor in 16 bits: instead of its 32 where the step has made it, beside them where it was there."""
        if not _is_wide(tensor):
            return
        storage = tensor.untyped_storage()
        memory = self._memories.get(storage._cdata)
        if memory is not None and memory.mixed == memory.size:
            memory.mixed //= 2
            self.mixed -= memory.mixed
        elif memory is None and storage._cdata not in self._cast:
            self._cast.add(storage._cdata)
            self.mixed += storage.nbytes() // 2

    def _freed(self, key: int, _: object) -> None:
        memory = self._memories.pop(key)
        self.bytes -= memory.size
        self.mixed -= memory.mixed
        self.heap -= memory.size if memory.size < BLOCK else 0


class _Memory:
    """One that is held, and the reference that tells when it is not any more."""

    __slots__ = ("mixed", "reference", "size")

    def __init__(self, size: int, mixed: int, reference: object) -> None:
        self.size, self.mixed, self.reference = size, mixed, reference


def _is_wide(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.itemsize > 2
