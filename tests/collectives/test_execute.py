"""If these fail, ranks side by side get another result than the schedule says, or one changes what it still sends."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.collectives import SCHEDULES, build_schedule
from paceline.collectives.execute import Execution, Reducer, plan_rank
from paceline.collectives.schedule import MESSAGE, MOST_SEGMENTS, Schedule, pipelined
from paceline.errors import UsageError
from paceline.shm.operations import OPERATIONS
from schedule_reference import Transfer, play, reduce_all, round_of, schedule_bytes, transfers

hosts = st.lists(st.integers(0, 3), min_size=1, max_size=9)
names = st.sampled_from(sorted(SCHEDULES))


@dataclass
class Meeting:
    """A message that is copied as late as it may be, when one of its ends waits for it, or as soon as it can be."""

    lock: threading.Condition
    soon: bool
    ends: dict[str, Tensor] = field(default_factory=dict)
    done: bool = False
    waited: set[str] = field(default_factory=set)

    def wait(self, end: str) -> None:
        assert end not in self.waited, "waited for twice"
        self.waited.add(end)
        with self.lock:
            assert self.lock.wait_for(lambda: len(self.ends) == 2, timeout=20), "nobody is at the other end"
            self.copy()

    def copy(self) -> None:
        if not self.done:
            self.ends["receive"].copy_(self.ends["send"])
            self.done = True


@dataclass
class End:
    meeting: Meeting
    end: str

    def wait(self) -> None:
        self.meeting.wait(self.end)


class Post:
    """Joins sends and receives of threads, in their order."""

    def __init__(self, soon: Callable[[], bool] = lambda: False) -> None:
        self.soon = soon
        self.lock = threading.Condition()
        self.open: dict[tuple[int, int, str], deque[Meeting]] = {}
        self.sent: dict[int, int] = {}

    def offer(self, source: int, target: int, end: str, tensor: Tensor) -> End:
        other = "receive" if end == "send" else "send"
        with self.lock:
            waiting = self.open.setdefault((source, target, other), deque())
            if waiting:
                meeting = waiting.popleft()
            else:
                meeting = Meeting(self.lock, self.soon())
                self.open.setdefault((source, target, end), deque()).append(meeting)
            meeting.ends[end] = tensor
            if meeting.soon and len(meeting.ends) == 2:
                meeting.copy()
            if end == "send":
                self.sent[source] = self.sent.get(source, 0) + tensor.nbytes
            self.lock.notify_all()
        return End(meeting, end)


@dataclass
class InMemory:
    post: Post
    rank: int

    def send(self, tensor: Tensor, to: int) -> End:
        assert tensor.is_contiguous(), "a wire takes whole tensors"
        return self.post.offer(self.rank, to, "send", tensor)

    def receive(self, tensor: Tensor, source: int) -> End:
        return self.post.offer(source, self.rank, "receive", tensor)


def side_by_side(workers: int, work: Callable[[int], object]) -> None:
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            work(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads)


def execute(
    schedule: Schedule, tensors: list[Tensor], operation: str, post: Post | None = None
) -> tuple[list[Tensor], Post]:
    post = post or Post()
    results = [tensor.clone() for tensor in tensors]

    def work(rank: int) -> None:
        mine = plan_rank(schedule, rank, len(tensors[rank]))
        scratch = results[rank].new_empty(2 * mine.scratch)
        Execution(mine, results[rank], scratch, InMemory(post, rank)).run(OPERATIONS[operation])

    side_by_side(schedule.workers, work)
    return results, post


@settings(max_examples=60, deadline=None)
@given(
    name=names,
    hosts=hosts,
    segments=st.integers(1, 4),
    length=st.integers(0, 40),
    operation=st.sampled_from(["sum", "max", "min", "product"]),
)
def test_ranks_side_by_side_get_what_the_player_gets(
    name: str, hosts: list[int], segments: int, length: int, operation: str
) -> None:
    schedule = pipelined(build_schedule(name, hosts), segments)
    seed = torch.Generator().manual_seed(length)
    tensors = [torch.randn(length, generator=seed) for _ in hosts]
    expected = reduce_all(schedule, tensors, OPERATIONS[operation])
    results, post = execute(schedule, tensors, operation)
    assert all(map(torch.equal, results, expected)), "to the last bit"
    for rank in range(len(hosts)):
        assert post.sent.get(rank, 0) == schedule_bytes(schedule, 4 * length, rank)[0]
    assert not any(post.open.values()), "a message that nobody took"


HALF_OVERWRITTEN = Schedule(
    "half overwritten",
    3,
    4,
    (
        round_of("rank 0 sends all", (Transfer(0, 1, 0, 4, True), Transfer(1, 2, 0, 4, True))),
        round_of("half of it changes", (Transfer(2, 0, 0, 2, True),)),
        round_of("the other half changes", (Transfer(2, 0, 2, 4, False),)),
    ),
)
"""What rank 0 sent may still be leaving in the last round."""


@st.composite
def any_schedule(draw: st.DrawFn) -> Schedule:
    """Transfers at random: no all-reduce, but whoever writes a schedule of their own may write any of it."""
    workers, chunks = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    ranks = st.integers(0, workers - 1)
    transfer = st.builds(
        lambda ends, parts, reduces: Transfer(*ends, min(parts), max(parts) + 1, reduces),
        st.tuples(ranks, ranks).filter(lambda ends: ends[0] != ends[1]),
        st.tuples(st.integers(0, chunks - 1), st.integers(0, chunks - 1)),
        st.booleans(),
    )
    rounds = draw(st.lists(st.lists(transfer, max_size=4), max_size=5))
    return Schedule("any", workers, chunks, tuple(round_of("any", turn) for turn in rounds))


@settings(max_examples=150, deadline=None)
@given(schedule=any_schedule(), segments=st.integers(1, 2), seed=st.integers(0, 99))
@example(HALF_OVERWRITTEN, 1, 1)
def test_any_schedule_is_carried_out_as_it_is_played(schedule: Schedule, segments: int, seed: int) -> None:
    chance = Random(seed)
    cut = pipelined(schedule, segments)
    tensors = [torch.arange(12.0) + 100 * rank for rank in range(schedule.workers)]
    expected = list(play(cut, tensors, OPERATIONS["sum"].into))[-1] if cut.rounds else tensors
    results, _ = execute(cut, tensors, "sum", Post(lambda: chance.random() < 0.5))
    assert all(map(torch.equal, results, expected))


def test_what_is_overwritten_in_two_halves_must_have_left_before_each() -> None:
    _, half, other_half = plan_rank(HALF_OVERWRITTEN, 0, 4).rounds
    assert [one.frees for step in (half, other_half) for one in step.incoming] == [(0,), (0,)]


@given(name=names, hosts=hosts, segments=st.integers(1, 20), length=st.integers(0, 60))
def test_segments_change_nothing(name: str, hosts: list[int], segments: int, length: int) -> None:
    plain = build_schedule(name, hosts)
    cut = pipelined(plain, segments)
    tensors = [torch.arange(length) * 7 % (rank + 2) for rank in range(len(hosts))]
    expected = reduce_all(plain, tensors, OPERATIONS["sum"])
    assert all(map(torch.equal, reduce_all(cut, tensors, OPERATIONS["sum"]), expected))
    if plain.rounds:
        assert cut.round_count == plain.round_count + segments - 1
        assert sum(len(turn.sources) for turn in cut.each_round()) == segments * sum(
            len(turn.sources) for turn in plain.each_round()
        )


@given(name=names, workers=st.integers(2, 9), size=st.integers(0, 2**30))
def test_messages_are_small_until_there_are_many(name: str, workers: int, size: int) -> None:
    schedule = build_schedule(name, [0] * workers)
    segments = schedule.segments(size)
    widest = max(one.stop - one.start for turn in schedule.rounds for one in transfers(turn))
    message = size * widest / schedule.chunks / segments
    senders = [{one.source for one in transfers(turn)} for turn in schedule.rounds]
    if all(len(ranks) == workers for ranks in senders):  # no link is ever idle
        assert segments == 1
    else:
        assert segments == MOST_SEGMENTS or message <= MESSAGE
        assert segments == 1 or message >= MESSAGE / 2


def test_no_segments_are_a_mistake() -> None:
    with pytest.raises(UsageError, match="0 segments"):
        pipelined(build_schedule("ring", [0, 0]), 0)


def test_a_reducer_keeps_its_plans_and_takes_any_shape() -> None:
    post = Post()
    results = {}

    def work(rank: int) -> None:
        reducer = Reducer(build_schedule("ring", [0] * 3), rank, InMemory(post, rank))
        square = torch.full((4, 5), rank + 1.0)
        across = torch.full((5, 4), rank + 1.0).t()
        strided = torch.full((40,), rank + 1.0)[::2]
        for tensor in (square, across, strided):
            reducer.all_reduce(tensor, OPERATIONS["mean"])
            reducer.all_reduce(tensor, OPERATIONS["mean"])
        results[rank] = (square, across, strided)

    side_by_side(3, work)
    for square, across, strided in results.values():
        assert torch.equal(square, torch.full((4, 5), 2.0))
        assert torch.equal(across, square)
        assert torch.equal(strided, square.view(-1))


@pytest.mark.parametrize("rank", [-1, 3])
def test_a_rank_outside_the_schedule_is_refused(rank):
    with pytest.raises(UsageError, match=f"rank {rank} has no part in a schedule for 3 workers"):
        Reducer(build_schedule("ring", [0, 0, 0]), rank, None)
