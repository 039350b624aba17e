"""Workers that are asked to stop: wherever each of them is, they stop before the same step."""

import random
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
from torch.distributed import DistStoreError

from paceline.runtimes.live.run_store import RunStore
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.store_server import StoreServer
from paceline.runtimes.live.worker.guard import lost_peer
from paceline.runtimes.live.worker.stopping import AT_STEP, StopAtStep, StopByVote
from paceline.strategies.base import Worker

EMPTY = torch.zeros(0)


@pytest.fixture
def store() -> Iterator[RunStore]:
    secret = Secret.new()
    server = StoreServer(secret, "127.0.0.1", 0)
    store = RunStore("127.0.0.1", server.port, secret)
    yield store
    store.close()
    server.close()


class Pretender:
    """Takes steps as a worker does: of uneven length, and now and then it waits for all others."""

    def __init__(
        self, rank: int, barrier: threading.Barrier, period: int, store: RunStore, seed: int
    ) -> None:
        self.me = Worker(rank, barrier.parties, EMPTY, EMPTY, EMPTY)
        self.barrier, self.period, self.random = barrier, period, random.Random(seed * 10 + rank)
        self.asked, self.notes = False, []
        self.agreement = StopAtStep(lambda: self.asked, self.notes.append, store.clone(), self.me)
        self.thread = threading.Thread(target=self.train, daemon=True)

    def train(self) -> None:
        while not self.agreement.reached(self.me.clock):
            time.sleep(self.random.expovariate(1000.0))
            self.me.clock += 1
            if self.me.clock % self.period == 0:
                self.barrier.wait(20)


@pytest.mark.parametrize(("period", "workers"), [(1, 3), (2, 2), (7, 3), (1_000_000, 3)])
def test_all_stop_before_the_same_step_and_nobody_hangs(store, period: int, workers: int) -> None:
    """If this failed, Ctrl-C would leave workers that wait for each other, or checkpoints of different steps."""
    barrier = threading.Barrier(workers)
    team = [Pretender(rank, barrier, period, store, seed=period) for rank in range(workers)]
    for one in team:
        one.thread.start()
    time.sleep(0.1)
    team[-1].asked = True
    begun = time.monotonic()
    for one in team:
        one.thread.join(20)
    assert not any(one.thread.is_alive() for one in team)
    assert time.monotonic() - begun < 10, "about a second, on a machine that is not busy"
    assert len({one.me.clock for one in team}) == 1
    assert team[0].me.clock > 0
    assert all(one.notes == ["stopping at the next step, as asked"] for one in team)


def test_a_worker_does_not_wait_for_ever_for_one_that_is_gone(store) -> None:
    """If this failed, a worker that dies in this moment would leave the others held before a step."""
    me = Worker(0, 2, EMPTY, EMPTY, EMPTY)
    own = store.clone()
    own.set_timeout(timedelta(seconds=1.5))
    agreement = StopAtStep(lambda: True, lambda _: None, own, me)
    assert agreement.reached(0) in (True, False)
    time.sleep(0.3)
    me.clock = 1
    with pytest.raises(DistStoreError, match="wait timeout") as gone:
        agreement.reached(1)
    assert lost_peer(gone.value)


def test_votes_stop_all_at_once_and_until_then_the_user_hears_what_is_waited_for() -> None:
    """If this failed, Ctrl-C in a long round would look as if nobody had heard it."""
    notes: list[str] = []
    agreement = StopByVote(lambda: True, notes.append)
    assert agreement.vote() == 1.0
    assert not agreement.reached(3)
    assert notes == ["stopping when this round ends, as asked; Ctrl-C again ends at once"]
    agreement.count(2.0)
    assert agreement.reached(4)
    assert len(notes) == 1


def test_one_worker_stops_at_once() -> None:
    asked = [False]
    agreement = StopByVote(lambda: asked[0], lambda _: None, AT_STEP, decided=lambda: asked[0])
    assert not agreement.reached(1)
    asked[0] = True
    assert agreement.reached(2)
