"""A worker's random numbers, as states that can be saved and put back."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

State = dict[str, Any]
"""Tensors and numbers only."""


class TorchStream:
    """Torch's random stream on the CPU: all that shipped jobs draw from."""

    def seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    def get(self) -> State:
        return {"torch": torch.get_rng_state()}

    def set(self, state: State) -> None:
        torch.set_rng_state(state["torch"])


class AllStreams(TorchStream):
    """Torch's, Python's and numpy's: a user's data set may draw from any of them."""

    def seed(self, seed: int) -> None:
        super().seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)

    def get(self) -> State:
        version, words, gauss = random.getstate()
        _, key, position, has_gauss, cached = np.random.get_state()
        return {
            **super().get(),
            "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
            "numpy": {
                "key": torch.from_numpy(np.asarray(key).astype(np.int64)),
                "position": int(position),
                "has_gauss": int(has_gauss),
                "cached": float(cached),
            },
        }

    def set(self, state: State) -> None:
        super().set(state)
        python, numpy = state["python"], state["numpy"]
        random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
        key = numpy["key"].numpy().astype(np.uint32)
        np.random.set_state(("MT19937", key, numpy["position"], numpy["has_gauss"], numpy["cached"]))


@contextmanager
def undisturbed(streams: TorchStream) -> Iterator[None]:
    outside = streams.get()
    try:
        yield
    finally:
        streams.set(outside)
