"""Pipelining, as a schedule made of another one: neither executor, price nor drawing need to know of it."""

from dataclasses import replace

from paceline.collectives.schedule import Round, Schedule, Transfer
from paceline.collectives.turns import alike
from paceline.errors import UsageError

MESSAGE = 2**20
"""Bytes of the largest message that is not cut."""

MOST = 16
"""Segments at most: each one more costs every rank its messages of all rounds."""


def pipelined(schedule: Schedule, segments: int) -> Schedule:
    """Cut the tensor into segments that go through the schedule one behind the other.

    Wave w carries segment s through round w - s: one segment is reduced while the next one travels. Chunk c of segment
    s becomes chunk s * chunks + c. The messages of a pair stay apart, the segment that started first in front.
    """
    if segments < 1:
        raise UsageError(f"{segments} segments cannot hold a tensor: there must be at least 1")
    if segments == 1 or not schedule.rounds:
        return schedule
    rounds = tuple(schedule.rounds)
    waves = (_wave(rounds, schedule.chunks, segments, wave) for wave in range(len(rounds) + segments - 1))
    return replace(schedule, chunks=segments * schedule.chunks, rounds=tuple(waves))


def _wave(rounds: tuple[Round, ...], chunks: int, segments: int, wave: int) -> Round:
    """Earlier segments are in later rounds."""
    under_way = [
        (rounds[wave - segment], segment) for segment in range(segments) if 0 <= wave - segment < len(rounds)
    ]
    phases = dict.fromkeys(turn.phase for turn, _ in reversed(under_way))
    transfers = (
        _shifted(transfer, segment * chunks) for turn, segment in under_way for transfer in turn.transfers
    )
    return Round(", ".join(phases), tuple(transfers))


def _shifted(transfer: Transfer, by: int) -> Transfer:
    return replace(transfer, start=transfer.start + by, stop=transfer.stop + by)


def segments_for(schedule: Schedule, nbytes: int) -> int:
    """How many segments a tensor of ``nbytes`` is worth: messages of 1 MiB at most, up to 16 of them.

    Segments use links that would be idle meanwhile, so a schedule in which every rank sends in every round goes in one
    piece. Three hosts at 1 Gbit/s, 10 MB (a rank of ``benchmarks/segments.py`` on each): a tree takes 319 ms in one
    piece, 203 in 8 segments and 185 in 16; a ring 118 ms in 1 to 4 segments, 122 in 8 and 135 in 16.
    """
    turns = [turn for turn, _ in alike(schedule.rounds)]
    busy = all(len({sent.source for sent in turn.transfers}) == schedule.workers for turn in turns)
    chunks = max((sent.stop - sent.start for turn in turns for sent in turn.transfers), default=0)
    return segments_of(nbytes * chunks // schedule.chunks, busy)


def segments_of(largest: int, busy: bool) -> int:
    """The same by the bytes of the largest message, and by whether every rank sends in every round."""
    return 1 if busy else max(1, min(MOST, -(-largest // MESSAGE)))
