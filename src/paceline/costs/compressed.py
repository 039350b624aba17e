"""All-reduces of what a codec makes of tensors."""

from collections.abc import Sequence

from paceline.costs.all_reduce import AllReduceCosts, Native
from paceline.costs.compression import Compression
from paceline.costs.prices import Price
from paceline.costs.topology import Topology


class Compressed:
    """Messages that add are all-reduced as any tensor; others are gathered by everybody, who decodes and adds them."""

    def __init__(self, inner: AllReduceCosts, topology: Topology, compression: Compression) -> None:
        """``inner`` is how tensors are summed that nobody encodes."""
        self._inner, self._topology, self._compression = inner, topology, compression
        self._workers, self._native = topology.count, Native(topology)

    def price(self, size: int, element: int) -> Price:
        """Encode, exchange, decode: one result, or one a worker."""
        if self._workers == 1 or not size:
            return self._inner.price(size, element)
        compression = self._compression
        message = compression.message(size, element)
        if compression.sums:
            moved, decoded = self._inner.price(message, min(element, message)), 1
        else:
            moved, decoded = self._native.gather(message), self._workers
        return moved.delayed(compression.encode(size) + decoded * compression.decode(size))

    def traffic(self, size: int, element: int) -> Sequence[tuple[int, int]]:
        """Bytes that each rank sends and receives."""
        message = self._compression.message(size, element)
        if self._compression.sums:
            return self._inner.traffic(message, min(element, message))
        return [((self._workers - 1) * message,) * 2] * len(self._topology.workers)
