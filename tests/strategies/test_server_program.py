"""If these fail, a server counts staleness wrongly, keeps a worker's own update from it, or a meeting never ends."""

from collections.abc import Callable

import pytest
import torch
from hand_driven import SAMPLES, Hand, shuffled
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.errors import UsageError
from paceline.strategies import build_strategy
from paceline.strategies.base import Server, Worker
from paceline.strategies.effects import AllReduce, Gradient, Peer, Program
from paceline.strategies.messages import Pull, Push
from paceline.strategies.parameter_server import Asynchronous, ParameterServer, StaleSynchronous, Synchronous

CREW, STEPS = 3, 64

choices = st.lists(st.integers(0, 11), min_size=1, max_size=80)


def marked(me: Worker) -> Tensor:
    """A gradient that leaves a mark of its own in every server's part: parameters tell which updates they contain."""
    grad = torch.zeros(me.servers, CREW, STEPS)
    grad[:, me.rank, me.clock] = -1
    return grad.flatten()


def marked_hand(strategy: ParameterServer, servers: int = 1, awaited: int = CREW) -> Hand:
    return Hand(strategy, servers * CREW * STEPS, marked, servers, awaited)


def contained(params: Tensor, servers: int = 1) -> Tensor:
    """Which updates, [server, worker, clock], parameters contain."""
    return params.view(servers, CREW, STEPS) != 0


def crew(hand: Hand) -> Hand:
    for rank in range(CREW):
        hand.join(rank)
    hand.settle()
    return hand


def step(hand: Hand, *ranks: int) -> None:
    for rank in ranks:
        hand.finish(rank)
        hand.settle()


def test_staleness_of_the_worked_case() -> None:
    hand = marked_hand(Asynchronous(), awaited=0)
    for core in range(3):
        hand.join(core)
    hand.settle()
    step(hand, 0, 1, 2, 0, 1)
    updates = [credit for (credit,) in hand.applied]
    assert [update.staleness for update in updates] == [0, 1, 2, 2, 2]
    assert [update.version for update in updates] == [0, 0, 0, 1, 2]
    assert [(update.worker, update.clock) for update in updates] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)]


@given(choices, st.integers(1, 2))
def test_a_bound_of_zero_answers_exactly_as_the_synchronous_server(script: list[int], servers: int) -> None:
    def answers(strategy: ParameterServer) -> list[tuple[int, int, int, int, list[float]]]:
        hand = crew(marked_hand(strategy, servers))
        for _ in shuffled(hand, script):
            pass
        return [(*who, model.version, model.seen, model.params.tolist()) for *who, model in hand.answers]

    assert answers(StaleSynchronous(staleness=0)) == answers(Synchronous())


@given(choices, st.sampled_from([0, 1, 3]), st.integers(1, 2))
def test_a_read_contains_what_stale_synchronous_training_promises(
    script: list[int], staleness: int, servers: int
) -> None:
    hand = crew(marked_hand(StaleSynchronous(staleness=staleness), servers))
    for _ in shuffled(hand, script):
        for rank in hand.computing:
            me = hand.workers[rank]
            seen = contained(me.params, servers)
            assert seen[:, rank, : me.clock].all(), "a worker reads its own writes"
            assert seen[:, :, : max(0, me.clock - staleness)].all(), "and all up to its clock - s - 1"
            ahead = max(me.clock - other.clock for other in hand.workers.values())
            assert ahead <= staleness + 1, "others may just have handed in"


@given(choices)
def test_an_asynchronous_worker_reads_its_own_writes_and_never_waits(script: list[int]) -> None:
    hand = crew(marked_hand(Asynchronous()))
    for _ in shuffled(hand, script):
        for rank in hand.computing:
            me = hand.workers[rank]
            assert contained(me.params)[0, rank, : me.clock].all()
    assert all(len(used) == 1 for used in hand.applied)
    pushes = sum(me.clock for me in hand.workers.values())
    assert len(hand.applied) >= pushes


@given(choices, st.sampled_from([StaleSynchronous(staleness=1), Asynchronous(), Synchronous(backup=1)]))
def test_staleness_is_the_updates_since_the_read(script: list[int], strategy: ParameterServer) -> None:
    hand = crew(marked_hand(strategy))
    for _ in shuffled(hand, script):
        pass
    for version, used in enumerate(hand.applied):
        assert {credit.version + credit.staleness for credit in used} == {version}
    steps = [(credit.worker, credit.clock) for used in hand.applied for credit in used]
    assert len(steps) == len(set(steps)), "no gradient is used twice"
    assert hand.servers[0].seen == SAMPLES * len(steps)


def test_a_back_up_worker_s_late_gradient_is_dropped_and_answered_at_once() -> None:
    hand = crew(marked_hand(Synchronous(backup=1)))
    step(hand, 0)
    assert 0 not in hand.computing
    step(hand, 1)
    assert hand.computing == {0, 1, 2}
    step(hand, 2)
    assert hand.computing == {0, 1, 2}
    assert contained(hand.workers[2].params)[0].sum() == 2
    step(hand, 2, 1)
    assert [[credit.worker for credit in used] for used in hand.applied] == [[0, 1], [2, 1]]
    assert hand.servers[0].seen == 4 * SAMPLES


def test_every_so_often_is_when_it_updates_and_never_in_between() -> None:
    hand = crew(marked_hand(Asynchronous(every=0.05)))
    assert hand.until[0] == 0.05
    step(hand, 0, 1, 0)
    assert hand.computing == {0, 1, 2}
    assert hand.servers[0].version == 0
    hand.tick(0)
    assert [(credit.worker, credit.staleness) for credit in hand.applied[0]] == [(0, 0), (1, 0), (0, 0)]
    assert hand.servers[0].params.sum() == pytest.approx(1)
    hand.tick(0)
    assert len(hand.applied) == 1, "nothing had come"
    assert hand.until[0] == pytest.approx(0.15)


def test_a_meeting_finds_all_that_has_come_in_the_model() -> None:
    hand = crew(marked_hand(Asynchronous(every=60)))
    step(hand, 0, 1, 2, 2)
    for rank in range(CREW):
        hand.meet(rank)
        hand.settle()
    (used,) = hand.applied
    assert len(used) == 4
    assert all(torch.equal(me.params, hand.servers[0].params) for me in hand.workers.values())
    assert {(me.seen, me.seen_at_sync) for me in hand.workers.values()} == {(4 * SAMPLES, 4 * SAMPLES)}
    assert hand.answers[CREW + 4][2].seen_at_sync == 4 * SAMPLES, "the first to be answered knows it as well"


@pytest.mark.parametrize("strategy", [Synchronous(), StaleSynchronous(staleness=1)])
@pytest.mark.parametrize("servers", [1, 2])
def test_who_goes_to_a_meeting_releases_those_who_wait(strategy: ParameterServer, servers: int) -> None:
    hand = crew(marked_hand(strategy, servers))
    while 0 in hand.computing:
        step(hand, 0)
    hand.meet(1)
    hand.settle()
    assert 0 not in hand.computing
    hand.meet(2)
    hand.settle()
    assert 0 in hand.computing


@pytest.mark.parametrize("servers", [1, 2])
def test_a_dead_worker_releases_those_who_wait_and_what_it_gave_is_used(servers: int) -> None:
    hand = crew(marked_hand(Synchronous(), servers))
    step(hand, 0, 1)
    hand.leave(1)
    hand.settle()
    assert hand.computing == {2}
    hand.leave(2)
    hand.settle()
    assert hand.computing == {0}
    assert [credit.worker for credit in hand.applied[0]] == [0, 1]


def test_a_newcomer_during_a_meeting_holds_up_nobody_at_any_server() -> None:
    hand = marked_hand(Synchronous(), servers=2, awaited=2)
    hand.join(0)
    hand.join(1)
    hand.settle()
    hand.meet(1)
    hand.settle()
    hand.join(2)
    hand.settle()
    assert hand.computing == {0}, "the newcomer stays out"
    step(hand, 0)
    assert hand.computing == {0}, "and the last one before the meeting does not wait for it"


def test_a_newcomer_is_no_member_of_a_meeting_that_has_begun_without_it() -> None:
    hand = marked_hand(Synchronous(), awaited=2)
    for rank in range(2):
        hand.join(rank)
    hand.settle()
    for rank in range(2):
        hand.meet(rank)
    hand.settle()
    hand.join(2)
    hand.settle()
    assert hand.members == {0, 1}, "they have pulled, and may still evaluate and save together"


def test_a_newcomer_that_server_0_has_let_in_gets_through_although_a_meeting_begins() -> None:
    hand = marked_hand(Synchronous(), servers=2, awaited=2)
    for rank in range(2):
        hand.join(rank)
    hand.settle()
    hand.join(2)
    for way in [(Peer("worker", 2), Peer("server", 0)), (Peer("server", 0), Peer("worker", 2))]:
        hand.deliver(way)
    hand.meet(1)
    for server in range(2):
        hand.deliver((Peer("worker", 1), Peer("server", server)))
    hand.settle()
    assert hand.computing == {0, 2}, "the meeting waits for it as for any member"


def test_those_who_begin_read_the_same_model_however_late_one_of_them_is() -> None:
    hand = marked_hand(Synchronous(), servers=2)
    hand.join(0)
    hand.join(1)
    hand.settle()
    assert not hand.computing
    hand.join(2)
    hand.settle()
    step(hand, 0, 1, 2)
    assert [len(used) for used in hand.applied] == [CREW]


@pytest.mark.parametrize(("damped", "moved"), [(False, [1.0, 1.0, 1.0]), (True, [1.0, 1 / 2, 1 / 3])])
def test_a_stale_gradient_moves_the_parameters_less_if_it_is_damped(damped: bool, moved: list[float]) -> None:
    hand = crew(marked_hand(Asynchronous(damped=damped, scaled=False)))
    step(hand, 0, 1, 2)
    marks = hand.servers[0].params.view(CREW, STEPS)[:, 0]
    assert marks.tolist() == pytest.approx(moved)


def test_a_gradient_from_the_future_is_not_stale() -> None:
    """A worker that miscounts must not divide by zero."""
    credit, _, share = Asynchronous(damped=True)._credit(
        Server(0, 1, torch.zeros(1), torch.zeros(1)), 0, Push(torch.zeros(1), 0, 1, 8)
    )
    assert (credit.staleness, share) == (0, 1.0)


def test_scaled_samples_move_the_parameters_as_far_as_in_a_round() -> None:
    """Else asynchronous training with n workers would take n times the steps of a round from the same samples."""
    moved = []
    for strategy in (Synchronous(), Asynchronous()):
        hand = crew(marked_hand(strategy))
        step(hand, 0, 1, 2)
        moved.append(hand.servers[0].params.view(CREW, STEPS)[:, 0].tolist())
    assert moved[0] == pytest.approx([1 / 3] * 3)
    assert moved[1] == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize(("weighted", "expected"), [(True, [1 / 4, 3 / 4]), (False, [1 / 2, 1 / 2])])
def test_a_gradient_counts_by_its_samples_unless_all_count_the_same(
    weighted: bool, expected: list[float]
) -> None:
    hand = marked_hand(Synchronous(weighted=weighted), awaited=2)
    hand.join(0)
    hand.join(1)
    hand.settle()
    for rank, samples in enumerate((1, 3)):
        grad = torch.zeros(CREW, STEPS)
        grad[rank, 0] = -1
        way = (Peer("worker", rank), Peer("server", 0))
        hand.on_their_way[way].append(Push(grad.flatten(), 0, 0, samples))
    hand.settle()
    assert hand.servers[0].params.view(CREW, STEPS)[:2, 0].tolist() == pytest.approx(expected)


def test_how_long_a_worker_was_kept_is_told() -> None:
    hand = crew(marked_hand(Synchronous()))
    for moment, rank in enumerate((1, 0, 2)):
        hand.servers[0].now = float(moment)
        step(hand, rank)
    assert [(worker, model.held) for _, worker, model in hand.answers[-CREW:]] == [
        (0, 1.0),
        (1, 2.0),
        (2, 0.0),
    ]


def appointments(period: int) -> Callable[[Hand, Worker], Program]:
    """A worker's life: meet whenever so many samples have been seen, with collectives after the pull, and go on."""

    def life(hand: Hand, me: Worker) -> Program:
        program, met = hand.strategy.worker(me), 0
        effect = next(program)
        while True:
            if isinstance(effect, Gradient):
                met = max(met, me.seen_at_sync)
                if me.seen // period > met // period:
                    params = yield from hand.strategy.central(me)
                    assert torch.equal(params, torch.cat([server.params for server in hand.servers]))
                    met = me.seen
                    for _ in range(2):
                        yield AllReduce(torch.zeros(1))
            effect = program.send((yield effect))

    return life


@settings(max_examples=200)
@given(
    script=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 11)), min_size=1, max_size=150),
    strategy=st.sampled_from(
        [Synchronous(), Synchronous(backup=1), StaleSynchronous(staleness=1), Asynchronous()]
    ),
    servers=st.integers(1, 2),
    first=st.integers(1, CREW),
)
def test_whoever_comes_meets_leaves_or_dies_somebody_can_always_go_on(
    script: list[tuple[int, int]], strategy: ParameterServer, servers: int, first: int
) -> None:
    hand = marked_hand(strategy, servers, awaited=first)
    for rank in range(first):
        hand.join(rank, appointments(4 * SAMPLES))
    for surprise, choice in script:
        away = sorted(set(range(CREW)) - hand.workers.keys())
        if surprise == 0 and len(hand.workers) > 1:
            hand.leave(sorted(hand.workers)[choice % len(hand.workers)])
        elif surprise == 1 and away and not any(way[0] == Peer("worker", away[0]) for way in hand.waiting()):
            hand.join(away[0], appointments(4 * SAMPLES))
        else:
            next(shuffled(hand, [choice]))


def test_a_pull_alone_is_answered_at_once() -> None:
    hand = crew(marked_hand(Synchronous()))
    step(hand, 0)
    answered = len(hand.answers)
    hand.on_their_way[Peer("worker", 1), Peer("server", 0)].append(Pull())
    hand.settle()
    assert len(hand.answers) == answered + 1


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        ("ps:backup=-1", "it must be at least 0"),
        ("ssp:staleness=-1", "it must be at least 0"),
        ("async:every=-0.1", "at least 0.001 seconds between updates, or 0 to update with every gradient"),
    ],
)
def test_settings_that_mean_nothing_are_refused(spec: str, rule: str) -> None:
    with pytest.raises(UsageError, match=rule):
        build_strategy(spec)
