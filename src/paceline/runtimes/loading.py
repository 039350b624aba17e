"""Batches in a given order, taken in this process or ahead of time in loader processes; the results are the same."""

import os
import signal
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from paceline.jobs.batches import Batch
from paceline.jobs.data import IN_MEMORY
from paceline.jobs.job import Data
from paceline.runtimes.prctl import die_with_parent
from paceline.runtimes.randomness import AllStreams, undisturbed

SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class Request(NamedTuple):
    """One batch: its samples, and the seed of whatever random numbers its data set draws."""

    indices: list[int]
    seed: int


def load(data: Data, requests: Iterable[Request], processes: int) -> Iterator[Batch]:
    """The batches in the order of the requests; close it, or drop it, and its processes end.

    A batch depends on its request alone: neither the number of processes nor what was loaded before changes it.
    """
    if not processes:
        yield from (_take(data, request) for request in requests)
        return
    loader = DataLoader(
        _ByRequest(data),
        batch_sampler=requests,  # type: ignore[arg-type]
        num_workers=processes,
        collate_fn=lambda batch: batch,
        worker_init_fn=_begin_process,
        multiprocessing_context="fork",  # a user's functions need not be picklable
        generator=torch.Generator(),  # not the stream that the model draws from
    )
    # A signal that arrived while processes are forked would reach this process too, whose pipe they share.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        batches = iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    yield from batches


def _take(data: Data, request: Request) -> Batch:
    indices = torch.tensor(request.indices)
    if isinstance(data, IN_MEMORY):
        return data.take(indices)
    streams = AllStreams()
    with undisturbed(streams):
        streams.seed(request.seed)
        return data.take(indices)


class _ByRequest(Dataset[Batch]):
    """What torch's loader asks for samples; it gets whole batches."""

    def __init__(self, data: Data) -> None:
        self._data = data

    def __getitems__(self, request: Request) -> Batch:
        return _take(self._data, request)


def _begin_process(_: int) -> None:
    """Leave the worker's process group, so that signals to it do not stop the loader first, and die with the worker."""
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    die_with_parent()
