"""If these fail, a worker runs ahead of the bound, waits for nobody, or one that is gone holds up a whole run."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.strategies.consistency import Gate
from paceline.strategies.parameter_server import Asynchronous, ParameterServer, StaleSynchronous, Synchronous

CREW = 5
MOVES = {
    "away": ("join",),
    "lost": ("join", "hand in"),
    "coming": ("leave",),
    "computes": ("hand in", "rest", "leave", "give up"),
    "waits": ("leave",),
    "rests": ("wake", "leave"),
}
"""What a worker may do next, by where it is; a lost one was given up by the server and does not know it."""

bounds = st.sampled_from([*(StaleSynchronous(staleness=bound) for bound in (0, 1, 3)), Asynchronous()])
rules = st.one_of(bounds, st.integers(0, CREW).map(lambda backup: Synchronous(backup=backup)))
moves = st.lists(st.tuples(st.integers(0, CREW - 1), st.integers(0, 3)), min_size=1, max_size=60)
founders = st.sets(st.integers(0, CREW - 1))


@dataclass
class Worker:
    """Where a worker is, and which steps it has finished; by the book and with no cleverness."""

    place: str = "away"
    start: int = 0
    handed_in: int = 0
    from_meeting: bool = False

    @property
    def clock(self) -> int:
        return self.start + self.handed_in


@dataclass
class Book:
    """The slow and obvious reference: the definitions of the papers, looked up anew for everybody."""

    rule: ParameterServer
    awaited: set[int]
    workers: dict[int, Worker] = field(default_factory=lambda: {rank: Worker() for rank in range(CREW)})

    def copy(self) -> "Book":
        return replace(
            self,
            awaited=set(self.awaited),
            workers={rank: replace(worker) for rank, worker in self.workers.items()},
        )

    def at(self, *places: str) -> list[int]:
        return [rank for rank, worker in self.workers.items() if worker.place in places]

    def clocks(self) -> list[int]:
        return [self.workers[rank].clock for rank in self.at("computes", "waits")]

    def enter(self, rank: int) -> None:
        resting = [self.workers[other].clock for other in self.at("rests")]
        slowest = min(self.clocks() or resting, default=0)
        self.workers[rank] = Worker("computes", start=slowest)

    def move(self, rank: int, what: str) -> None:
        worker = self.workers[rank]
        if what == "hand in":
            if worker.place == "lost":
                self.enter(rank)
                worker = self.workers[rank]
            worker.handed_in += 1
            worker.from_meeting = False
        if what == "rest":
            worker.from_meeting = True
        if what in ("join", "leave", "give up"):
            self.awaited.discard(rank)
            worker = self.workers[rank] = Worker()
        after = {
            "join": "coming",
            "hand in": "waits",
            "rest": "rests",
            "wake": "computes",
            "leave": "away",
            "give up": "lost",
        }
        worker.place = after[what]

    def may_go_on(self, rank: int) -> bool:
        if not isinstance(self.rule, Synchronous):
            return all(
                self.workers[rank].clock - other <= self.rule.staleness_bound for other in self.clocks()
            )
        missing = len(self.at("computes"))
        return missing <= self.rule.backup or missing == 0

    def passing(self, woken: list[int]) -> list[int]:
        released = [rank for rank in self.at("waits") if self.may_go_on(rank)]
        for rank in released:
            self.workers[rank].place = "computes"
        meeting = any(
            worker.from_meeting for worker in self.workers.values() if worker.place not in ("away", "lost")
        )
        let_in = [] if meeting or self.awaited else self.at("coming")
        for rank in let_in:
            self.enter(rank)
        return sorted([*woken, *released, *let_in])


def do(gate: Gate, rank: int, what: str) -> None:
    act = {"join": gate.join, "hand in": gate.push, "rest": gate.pause, "wake": gate.resume}
    act.get(what, gate.leave)(rank)


class Turn(NamedTuple):
    gate: Gate
    book: Book
    before: Book
    """The reference after the move, with nobody let pass yet."""
    passed: list[int]
    expected: list[int]


def play(rule: ParameterServer, awaited: set[int], script: list[tuple[int, int]]) -> Iterator[Turn]:
    """Any legal interleaving, move by move, with those who were let pass after each."""
    gate, book = Gate(rule.may_proceed, awaited), Book(rule, set(awaited))
    for rank, choice in script:
        legal = MOVES[book.workers[rank].place]
        what = legal[choice % len(legal)]
        do(gate, rank, what)
        book.move(rank, what)
        before = book.copy()
        yield Turn(gate, book, before, gate.proceeding(), book.passing([rank] if what == "wake" else []))


@given(rules, founders, moves)
def test_who_passes_is_what_the_definitions_say(
    rule: ParameterServer, awaited: set[int], script: list[tuple[int, int]]
) -> None:
    for turn in play(rule, awaited, script):
        assert turn.passed == turn.expected
        assert turn.gate.proceeding() == [], "nobody is named twice, and nobody was forgotten"
        counted = {rank: one.clock for rank, one in turn.gate.workers.items() if not one.paused}
        assert counted == {rank: turn.book.workers[rank].clock for rank in turn.book.at("computes", "waits")}


@given(bounds, moves)
def test_nobody_runs_ahead_of_the_bound_and_nobody_waits_without_need(
    rule: StaleSynchronous, script: list[tuple[int, int]]
) -> None:
    for turn in play(rule, set(), script):
        clocks = {rank: one.clock for rank, one in turn.gate.workers.items() if not one.paused}
        for rank in turn.before.at("waits"):
            ahead = clocks[rank] - min(clocks.values())
            assert (ahead <= rule.staleness_bound) == (rank in turn.passed)


@given(rules, moves)
def test_who_leaves_or_rests_holds_nobody_back(rule: ParameterServer, script: list[tuple[int, int]]) -> None:
    *_, turn = play(rule, set(), script)
    for waiting in turn.book.at("waits", "coming"):
        for away in ("rest", "leave") if waiting in turn.book.at("waits") else ("leave",):
            alone, passed = deepcopy(turn.gate), set[int]()
            for other in set(range(CREW)) - {waiting}:
                do(alone, other, away if other in turn.book.at("computes", "rests") else "leave")
                passed.update(alone.proceeding())
            assert waiting in passed


@given(rules, moves)
def test_a_newcomer_neither_lowers_the_slowest_clock_nor_holds_back_a_round_that_is_whole(
    rule: ParameterServer, script: list[tuple[int, int]]
) -> None:
    for turn in play(rule, set(), script):
        without = turn.before.copy()
        for newcomer in without.at("coming"):
            without.workers[newcomer].place = "away"
        assert set(without.passing([])) <= set(turn.passed)
        entered = set(turn.before.at("coming")) & set(turn.passed)
        if entered and turn.before.clocks():
            assert all(turn.gate.workers[rank].clock >= min(turn.before.clocks()) for rank in entered)


@pytest.mark.parametrize("backup", [0, 1])
def test_a_round_is_over_when_all_but_the_back_up_workers_have_handed_in(backup: int) -> None:
    gate = Gate(Synchronous(backup=backup).may_proceed)
    for rank in range(3):
        gate.join(rank)
        assert gate.proceeding() == [rank]
    for _ in range(2):
        for rank in range(2 - backup):
            gate.push(rank)
            assert gate.proceeding() == []
        gate.push(2 - backup)
        assert gate.proceeding() == list(range(3 - backup))


def test_an_excused_worker_is_not_counted_among_those_who_have_handed_in() -> None:
    gate = Gate(Synchronous(backup=1).may_proceed)
    for rank in range(3):
        gate.join(rank)
    gate.proceeding()
    gate.push(0)
    assert gate.proceeding() == []
    gate.push(2)
    gate.release(2)
    assert gate.proceeding() == [2]
    gate.push(1)
    assert gate.proceeding() == [0, 1]


def test_a_newcomer_stays_out_until_a_meeting_is_over_for_all() -> None:
    gate = Gate(Synchronous(backup=0).may_proceed)
    gate.join(0)
    gate.join(1)
    assert gate.proceeding() == [0, 1]
    gate.pause(0)
    gate.pause(1)
    gate.join(2)
    assert gate.proceeding() == []
    gate.resume(0)
    gate.resume(1)
    assert gate.proceeding() == [0, 1], "these may still evaluate or save, and do not know the newcomer"
    gate.push(0)
    assert gate.proceeding() == []
    gate.push(1)
    assert gate.proceeding() == [0, 1, 2]


def test_those_who_begin_a_run_begin_together_or_without_whom_has_died() -> None:
    gate = Gate(StaleSynchronous(staleness=0).may_proceed, initial_workers=(0, 1, 2))
    gate.join(0)
    gate.join(2)
    assert gate.proceeding() == []
    gate.leave(1)
    assert gate.proceeding() == [0, 2]
    gate.join(1)
    assert gate.proceeding() == [1], "one that comes late after all is a newcomer as any other"


def test_whom_another_gate_has_let_in_passes_although_others_meet() -> None:
    gate = Gate(Synchronous(backup=0).may_proceed, initial_workers=(0,))
    gate.enter(0)
    assert gate.proceeding() == [0]
    gate.pause(0)
    gate.enter(1)
    assert gate.proceeding() == [1]
