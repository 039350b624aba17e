"""A stream that is not saved makes a resumed run another run."""

import random

import numpy as np
import torch

from paceline.records.tensors import read_tensors, write_tensors
from paceline.runtimes.randomness import AllStreams, undisturbed


def draw() -> list[float]:
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(()).item()]


def test_all_streams_go_on_from_a_saved_state(tmp_path):
    streams = AllStreams()
    with undisturbed(streams):
        streams.seed(7)
        draw()
        write_tensors(tmp_path / "state", streams.get())
        first = draw()
        streams.seed(8)
        streams.set(read_tensors(tmp_path / "state"))
        assert draw() == first


def test_looking_aside_disturbs_nothing():
    streams = AllStreams()
    with undisturbed(streams):
        streams.seed(3)
        first = draw()
        streams.seed(3)
        with undisturbed(streams):
            draw()
        assert draw() == first


def test_seeds_decide_every_stream():
    streams = AllStreams()
    with undisturbed(streams):
        streams.seed(1)
        one = draw()
        streams.seed(2)
        assert all(a != b for a, b in zip(one, draw(), strict=True))
