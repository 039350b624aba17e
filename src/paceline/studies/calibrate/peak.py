"""What this machine can do at best: operations, memory, and pages that nobody has touched yet."""

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from paceline.costs.devices.features import Limits
from paceline.costs.devices.fitted import PAGE


def measure_limits() -> Limits:
    """The best rate of large matrix products and of a friendly convolution; memory by the best of several copies."""
    matrix, source = torch.randn(768, 768), torch.randn(8 * 2**20)
    images, weights = torch.randn(4, 128, 28, 28), torch.randn(128, 128, 3, 3)
    target = torch.empty_like(source)
    products = [
        (2.0 * 768**3, lambda: torch.mm(matrix, matrix)),
        (2.0 * 4 * 28 * 28 * 9 * 128**2, lambda: torch.conv2d(images, weights, padding=1)),
    ]
    flops = max(work / min(_times(run, 12)) for work, run in products)
    copy = min(_times(lambda: target.copy_(source), 12))
    return Limits(flops=flops, bandwidth=2 * source.numel() * 4 / copy)


def measure_page() -> float:
    """Seconds that the first touch of a page costs beyond the writing."""
    size = 64 * 2**20
    fresh, warm = [], []
    for _ in range(3):
        memory = torch.empty(size, dtype=torch.uint8)
        fresh += _times(lambda memory=memory: memory.fill_(1), 1)  # type: ignore[misc]
        warm += _times(lambda memory=memory: memory.fill_(2), 1)  # type: ignore[misc]
    return max(0.0, median(fresh) - median(warm)) / (size / PAGE)


def _times(run: Callable[[], Tensor], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        begin = perf_counter()
        run()
        times.append(perf_counter() - begin)
    return times
