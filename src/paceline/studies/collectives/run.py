"""The whole study, as one worker takes part in it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from paceline.collectives.over_torch import find_operation
from paceline.errors import UsageError
from paceline.records.load import LoadMeter, disturbance
from paceline.runtimes.live.process_info import ProcessInfo, job_roots
from paceline.runtimes.threads import usual_threads
from paceline.shm.table import PIECE
from paceline.shm.team import ALL_READ_ALL, IN_PLACE_FROM
from paceline.studies.collectives.measure import ROUNDS, Measurer
from paceline.studies.collectives.pattern import Pattern
from paceline.studies.collectives.predict import predict
from paceline.studies.collectives.probe import Found, Prober
from paceline.studies.collectives.request import ELSEWHERE, SHM, Request, check_workers
from paceline.studies.collectives.results import Bench, BenchObserver, Ending, SilentBench
from paceline.studies.collectives.room import BenchGroup, Interrupted
from paceline.studies.collectives.sides import Side, build_sides, left_out


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How it ended."""

    ending: Ending


def run_bench(
    asked: Request,
    place: ProcessInfo,
    *,
    observer: BenchObserver,
    beat: Callable[[int], None],
    stopping: Callable[[], bool],
) -> Outcome:
    """Measure with all other workers, who must ask for the same; only rank 0's observer is told anything.

    ``beat`` hears how many turns are done, and ``stopping`` is asked at each of them whether to end.
    """
    check_workers(place.workers)
    room = BenchGroup(place, stopping)
    try:
        _check_alike(room, asked)
        told = observer if place.rank == 0 else SilentBench()
        study = _Study(asked, room, told, beat)
        meter = LoadMeter(job_roots(place), place.local_workers * torch.get_num_threads())
        try:
            ending = study.go()
        except Interrupted:
            ending = "interrupted"
        if disturbed := disturbance([meter.load()], "the benchmark"):
            told.noted(disturbed)
        told.finished(ending)
        del study  # its tensors live in the group's memory
    except BaseException:
        room.abandon()
        raise
    room.leave()
    return Outcome(ending=ending)


def _check_alike(room: BenchGroup, asked: Request) -> None:
    for rank, other in enumerate(room.exchange(str(asked))):
        difference = asked.unlike(other)
        if difference:
            raise UsageError(
                f"rank {rank} was asked for something else than rank {room.rank}: {difference}; start all alike"
            )


class _Study:
    def __init__(
        self, asked: Request, room: BenchGroup, observer: BenchObserver, beat: Callable[[int], None]
    ) -> None:
        idle = left_out(asked, room.shm.party.teams)
        self._asked = asked = replace(asked, what=tuple(name for name in asked.what if name not in idle))
        if not asked.what:
            raise UsageError(
                f"{', '.join(idle)}: no two workers share memory here; choose --only ring, or start two on a host"
            )
        torch.set_num_threads(usual_threads())
        self._room, self._observer, self._beat = room, observer, beat
        self._dtype = getattr(torch, asked.dtype)
        self._operation = find_operation(asked.op, self._dtype)
        self._turns = 0

    def go(self) -> Ending:
        """Probe, predict, measure."""
        asked, room = self._asked, self._room
        self._observer.started(self._bench())
        self._step("probes")
        sides = build_sides(asked, room, self._operation, self._dtype)
        found = self._probe(sides)
        prediction = predict(found, room.hosts, asked.what, asked.sizes, asked.element)
        self._observer.predicted(prediction)
        pattern = Pattern(self._operation, self._dtype, room.rank, room.workers)
        measurer = Measurer(asked, room, pattern, self._step)
        right = True
        for size in asked.sizes:
            expected = {name: prediction.seconds[name][size] for name in asked.what}
            cells = measurer.measure(size, list(sides.values()), expected)
            self._observer.measured(cells)
            right = right and all(cell.right for cell in cells)
        return "done" if right else "wrong"

    def _probe(self, sides: dict[str, Side]) -> Found:
        room, hosts = self._room, self._room.hosts
        prober = Prober(room, self._operation, self._dtype, self._asked.cell_seconds / 2)
        here = [rank for rank, host in enumerate(hosts) if host == hosts[room.rank]]
        firsts = [hosts.index(host) for host in sorted(set(hosts))]
        across = prober.exchange("across", firsts) if len(firsts) > 1 else None
        inside = prober.exchange("inside", here) if max(Counter(hosts).values()) > 1 else None
        reduce_seconds = prober.reducing()
        shared = {
            name: prober.shared(sides[name], _limit(name, room)) for name in (SHM, ELSEWHERE) if name in sides
        }
        return Found(
            across=across,
            inside=inside,
            reduce_seconds=reduce_seconds,
            shared=shared,
            measured=tuple(prober.measured),
        )

    def _bench(self) -> Bench:
        asked, room = self._asked, self._room
        return Bench(
            what=asked.what,
            sizes=asked.sizes,
            op=asked.op,
            dtype=asked.dtype,
            workers=room.workers,
            hosts=tuple(Counter(room.hosts).values()),
            repeats=asked.repeats,
            cell_seconds=asked.cell_seconds,
            threads=torch.get_num_threads(),
            torch=str(torch.__version__),
        )

    def _step(self, words: str) -> None:
        asked = self._asked
        self._beat(self._turns)
        done = self._turns / (len(asked.sizes) * len(asked.what) * ROUNDS)
        self._observer.progressed(done, words)
        self._turns += 1


def _limit(name: str, room: BenchGroup) -> int:
    """Bytes up to which a team all-reduces with one meeting."""
    if room.workers > 2:
        return ALL_READ_ALL
    return IN_PLACE_FROM if name == SHM else PIECE
