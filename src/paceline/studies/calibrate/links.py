"""Links and contention as training meets them: small networks that are trained by all workers at once.

A link that is measured on idle cores looks better than it is in a step, where a worker that receives a message has to
get a core first. So gradients are averaged as in training, and count as what that adds to a step of workers that only
pass a barrier. All is measured in turn, round after round: a machine that is faster in one second than in the next is
so for all of it.

So are messages with a server: it needs a core as well, which the workers hold. What a synchronous server adds to the
steps of small jobs counts; they are trained for real, alone and with a server.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import nn

from paceline.clusters.profile import INSIDE, LinkFit, Profile, read_profile, write_profile
from paceline.collectives.traffic import plan_buckets
from paceline.costs.recorded import typical_step, usual_pace
from paceline.errors import UsageError
from paceline.jobs.build import traceable_of_job
from paceline.jobs.job import Traceable
from paceline.jobs.optimizers import Sgd
from paceline.jobs.step import StepPhase
from paceline.records.folder import RunFolder
from paceline.records.load import HostLoad, LoadMeter, disturbance, usable_cores
from paceline.records.summary import recorded_loads
from paceline.runtimes.config import read_run
from paceline.runtimes.flat import CONTROL, Flat
from paceline.runtimes.live.process_info import ProcessInfo, job_roots
from paceline.runtimes.live.worker.comm import ProcessGroupComm
from paceline.runtimes.live.worker.overlap import Overlap, Slowdown
from paceline.runtimes.threads import VARIABLE, usual_threads
from paceline.strategies.effects import BucketedMean
from paceline.studies.calibrate import link_fit
from paceline.studies.calibrate.device import BusyMachine, check_out
from paceline.studies.calibrate.measure import TrainingStep
from paceline.studies.collectives.group import BenchGroup, BenchInterrupted
from paceline.studies.collectives.probe import Prober, fit_line
from paceline.studies.predict.request import parse_counts

MEAN = BucketedMean(first_bucket=2**20, bucket=25 * 2**20)
WIDTHS = ("40", "420", "700-700", "1100-1100", "2000", "5000")
"""Of one or two dense layers whose gradients are of some 40 kB, 0.4 MB, 2.5 MB, 5.7 MB, 1.7 MB and 4.2 MB: those of two
layers are averaged in two buckets, the first of them while backward goes on."""
DENSE_SAMPLES, IMAGE_SAMPLES = 32, 24
LONG = 16
APART = ("images", "40", "420")
ROUNDS = 25
"""Many and short: a neighbour of a virtual machine slows one of its cores down for some tenths of a second, and not in
most rounds."""
TURN = 0.06
"""Seconds of the turns of one kind in a round, about."""
LEAST, MOST = 8, 80
"""Their number; after a pause, a network needs some of them to find its pace."""
AT_ONCE = 8

COMMON = {
    "data": "synthetic:shape=1x8x8,train=40000",
    "iterations": "600",
    "threads": "1",
    "evaluate_every": "never",
    "checkpoint_every": "never",
}
JOBS = (
    COMMON | {"model": "mlp:hidden=48", "batch_size": "64"},
    COMMON | {"model": "mlp:hidden=640,layers=2", "batch_size": "16"},
)
TRIES = 3
MOST_USUAL = 8
"""Workers that links are measured with, unless more are asked for."""

RoundTimes = Mapping[tuple[str, str], float]
Train = Callable[[Mapping[str, str]], RunFolder]


def link_counts(text: str | None, threads: int) -> tuple[int, ...]:
    """With how many workers the links of a machine are measured: as given, else 2 and as many as it has cores.

    None where workers have several ``threads``: links are measured with one each.
    """
    if threads > 1:
        if text is not None:
            raise UsageError(
                f"workers {text} and {threads} threads: links are measured with one thread each; leave one of them out"
            )
        return ()
    counts = (
        parse_counts(text) if text is not None else tuple(sorted({2, min(MOST_USUAL, usable_cores())} - {1}))
    )
    if min(counts) < 2:
        raise UsageError(f"workers {text}: one worker alone has no link; give 2 or more")
    return counts


def check_profile(path: Path, out: Path) -> None:
    if usual_threads() != 1:
        raise UsageError(
            f"{VARIABLE}={usual_threads()} does not go with links, which are measured with one thread each; unset it"
        )
    threads = read_profile(path).machine.get("threads", 1)
    if threads != 1:
        raise UsageError(
            f"{path} is of workers with {threads} threads, and links are measured with one thread each; give a "
            "profile that was made with one thread"
        )
    check_out(out)


def add_links_here(info: ProcessInfo, path: Path, out: Path, **how: Any) -> link_fit.ContentionFit | None:
    """Call ``calibrate_links``; rank 0 adds what was found to the profile ``path`` and writes it to ``out``."""
    if info.rank == 0:
        check_profile(path, out)
    found = calibrate_links(info, **how)
    if found is not None and info.rank == 0:
        write_profile(link_fit.add_contention(read_profile(path), found), out)
    return found


def calibrate_links(
    info: ProcessInfo,
    *,
    beside: float = 1.0,
    rounds: int = ROUNDS,
    beat: Callable[[int], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
    busy: bool = False,
) -> link_fit.ContentionFit | None:
    """Measure with all other workers of a launch, which must call this too; None where one was asked to stop.

    Workers of one host measure shared memory and Gloo on the loopback, those of several hosts the network between
    them. Hosts that are one machine compute ``beside`` times as long together, as was measured there before. All
    workers return the same. Unless a ``busy`` machine is accepted, rounds during which something else computed are
    measured again, and BusyMachine is raised where too many were.
    """
    torch.set_num_threads(1)
    with BenchGroup(info, stopping) as group, suppress(BenchInterrupted):
        probe = LinkProbe(group, beside)
        probe.round()  # it warms up
        meter = LoadMeter(job_roots(info), info.local_workers)
        found: list[RoundTimes] = []
        disturbed = ""
        for number in range(2 * rounds):
            beat(number)
            meter.restart()
            one = probe.round()
            loads = group.exchange(asdict(meter.load()) if info.local_rank == 0 else None)
            others = disturbance([HostLoad(**load) for load in loads if load], "the measurement")
            disturbed = others or disturbed
            if busy or not others:
                found.append(one)
            if len(found) == rounds:
                return probe.fit(found, disturbed if busy else "")
        raise BusyMachine(f"{disturbed} Nothing was written")
    return None


class LinkProbe:
    """Trains the networks in all ways, and fits what that took."""

    def __init__(self, group: BenchGroup, beside: float) -> None:
        self._group, self._beside = group, beside
        self._links = ("memory", "loopback") if len(set(group.hosts)) == 1 else ("network",)
        dense = {width: _subject(partial(_dense, width)) for width in WIDTHS}
        self._plain = {"images": TrainingStep(_subject(_images), IMAGE_SAMPLES)}
        self._plain |= {width: TrainingStep(subject, DENSE_SAMPLES) for width, subject in dense.items()}
        self._comm = _SharedComm(group) if "memory" in self._links else group
        self._averaged = {
            (link, width): _AveragingStep(subject, self._comm if link == "memory" else group)
            for link in self._links
            for width, subject in dense.items()
        }

    def round(self) -> RoundTimes:
        one = {}
        for net, step in self._plain.items():
            one["alone", net] = alone = self._alone(step)
            one["short", net] = self._together(step, 1, alone)
            if net in APART:
                one["long", net] = self._together(step, LONG, alone)
        for key, averaged in self._averaged.items():
            one[key] = self._timed(averaged.run)
        return one

    def _alone(self, step: TrainingStep) -> float:
        """One worker computes while all others sleep and do not poll: the mean of the first and the last."""
        found = []
        for rank in (0, self._group.workers - 1):
            seconds = self._alone_for(step, TURN / 2) if self._group.rank == rank else 0.0
            found.append(float(self._group.exchange(seconds)[rank]))
        return fmean(found)

    @staticmethod
    def _alone_for(step: TrainingStep, turn: float) -> float:
        step.run()
        marks = [time.perf_counter()]
        while marks[-1] - marks[0] < turn:
            step.run()
            marks.append(time.perf_counter())
        return _typical(_between(marks))

    def _together(self, step: TrainingStep, steps: int, alone: float) -> float:
        """Seconds of a step with all workers at it, with the quickest available barrier every ``steps`` steps."""
        if "memory" not in self._links:
            return self._beside * alone

        def turn() -> None:
            for _ in range(steps):
                step.run()
            self._comm.barrier()

        return self._timed(turn) / steps

    def _timed(self, turn: Callable[[], object]) -> float:
        """Seconds of a turn in a row of them, by the slowest worker."""
        (once,) = self._group.slowest(self._times(turn, 1))
        times = self._times(turn, max(LEAST, min(MOST, int(TURN / once))))
        return self._group.slowest([_typical(times)])[0]

    def _times(self, turn: Callable[[], object], times: int) -> list[float]:
        self._group.align()
        marks = [time.perf_counter()]
        for _ in range(times):
            turn()
            marks.append(time.perf_counter())
        return _between(marks)

    def fit(self, rounds: Sequence[RoundTimes], disturbed: str) -> link_fit.ContentionFit:
        group, wire = self._group, []
        if "network" in self._links:
            points = Prober(group, len(rounds) * TURN).exchange("across", group.first_of_each_host())
            wire = [link_fit.fit_wire(fit_line(points), points, group.workers)]
        factors = []
        for how, steps, nets in (("short", 1, tuple(self._plain)), ("long", LONG, APART)):
            for net in nets:
                alone = median(one["alone", net] for one in rounds)
                factors.append((steps * alone, _factor(rounds, how, net)))
        contention = link_fit.fit_contention(factors)
        links = []
        for link in self._links:
            averaged = [self._averaged_step(rounds, link, net, contention.barrier) for net in WIDTHS]
            links.append(
                link_fit.fit_link(link, group.hosts, averaged, wire=1 / wire[0].bandwidth if wire else None)
            )
        return link_fit.ContentionFit(
            workers=group.workers,
            short=contention.short,
            long=contention.long,
            links=(*links, *wire),
            disturbed=disturbed,
        )

    def _averaged_step(
        self, rounds: Sequence[RoundTimes], link: str, net: str, barrier: float
    ) -> link_fit.AveragedStep:
        """What averaging adds to a step in place of the ``barrier``, which is no part of computing."""
        # In steps of one worker alone, so that slow rounds count as much as quick ones.
        alone = median(one["alone", net] for one in rounds)
        added = alone * median((one[link, net] - one["short", net]) / one["alone", net] for one in rounds)
        beside = alone * _factor(rounds, "short", net) - barrier
        sizes = _bucket_bytes(self._plain[net].model.flat)
        return link_fit.AveragedStep(sizes=sizes, added=added + barrier, beside=beside)


def _between(marks: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(marks)]


def _typical(times: Sequence[float]) -> float:
    """The median of means of a few that follow each other, or of all where there are few."""
    few = AT_ONCE if len(times) >= 3 * AT_ONCE else 1
    return median(sum(times[at : at + few]) / few for at in range(0, len(times) - few + 1, few))


def _factor(rounds: Sequence[RoundTimes], how: str, net: str) -> float:
    return median(one[how, net] / one["alone", net] for one in rounds)


class _SharedComm(ProcessGroupComm):
    """Sums in shared memory, over a group that the benchmark has made and will end."""

    def __init__(self, group: BenchGroup) -> None:
        self.rank, self.workers, self._backend, self._group = group.rank, group.workers, "shm", group.shm
        self._barrier = self.zeros(16, torch.float32, torch.device("cpu"))

    def barrier(self) -> None:
        """A small sum, as training has one; the group's own barrier takes longer."""
        self.sum(self._barrier)


class _AveragingStep(TrainingStep):
    """A step with gradients averaged over all workers, as a live worker does it: in buckets, behind backward."""

    def __init__(self, subject: Traceable, comm: ProcessGroupComm) -> None:
        super().__init__(subject, DENSE_SAMPLES, comm.zeros)
        self._overlap = Overlap(self.model.flat, comm, Slowdown(), MEAN)

    def last_backward(self) -> None:
        self._overlap.begin()

    def end(self, phase: StepPhase) -> None:
        if phase == "backward":
            storage = self.model.flat.grad_storage
            storage[0], storage[1] = DENSE_SAMPLES, 0.0
            self._overlap.finish()
            storage[:2].tolist()
        super().end(phase)


def _bucket_bytes(flat: Flat) -> tuple[int, ...]:
    element = flat.grad_storage.element_size()
    sizes = [parameter.numel() for parameter in flat.parameters]
    buckets = plan_buckets(sizes, element, MEAN.first_bucket, MEAN.bucket)
    *early, last = ((bucket.stop - bucket.start) * element for bucket in buckets)
    return (*early, last + CONTROL * element)


def _subject(model: Callable[[], nn.Module]) -> Traceable:
    return Traceable(
        name="link",
        model=model,
        loss=nn.functional.cross_entropy,
        batch=lambda samples: (torch.randn(samples, 196), torch.randint(0, 10, (samples,))),
        optimizer=Sgd(lr=1e-3, weight_decay=0.0),
    )


def _dense(widths: str) -> nn.Module:
    sizes = [196, *map(int, widths.split("-"))]
    hidden = [layer for ins, outs in pairwise(sizes) for layer in (nn.Linear(ins, outs), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(sizes[-1], 10))


def _images() -> nn.Module:
    first = (nn.Unflatten(1, (1, 14, 14)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(8, 24, 3, padding=1), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*first, *second, nn.Linear(24 * 49, 10))


def add_messages(path: Path, workers: int, train: Train, *, busy: bool = False) -> link_fit.ContentionFit:
    """Measure messages, add them to the profile, and return all that it holds of ``workers`` workers on a host."""
    profile = read_profile(path)
    profile = link_fit.add_links(profile, calibrate_messages(profile, [workers], train, busy=busy))
    write_profile(profile, path)
    return link_fit.ContentionFit(
        workers=workers,
        short=profile.contention_short[workers - 1],
        long=profile.contention[workers - 1],
        links=tuple(link for link in profile.links if link.workers == workers and link.name in INSIDE),
    )


def calibrate_messages(
    profile: Profile, counts: Sequence[int], train: Train, *, busy: bool = False
) -> list[LinkFit]:
    """The link between workers and a server on their host, for each of these numbers of workers.

    The profile says what contention costs. Trains each job once on one worker and once for each count, and again
    where something else computed meanwhile, unless a ``busy`` machine is accepted.
    """
    steps: dict[int, list[link_fit.AveragedStep]] = {count: [] for count in counts}
    for job in JOBS:
        alone = _train(train, {**job, "strategy": "all-reduce", "workers": "1"}, busy)
        step = typical_step(alone).step
        gradient = step.data + step.forward + step.backward
        contention = profile.contention_between(gradient)
        with torch.device("meta"):
            model = traceable_of_job(read_run(alone).settings.job).model()
        size = sum(one.nbytes for one in model.parameters())
        for count, found in steps.items():
            beside = gradient * contention[min(count, len(contention)) - 1] + step.apply
            served = _train(train, {**job, "strategy": "ps", "workers": str(count)}, busy)
            added = usual_pace(served, AT_ONCE) - beside
            found.append(link_fit.AveragedStep(sizes=(size,), added=added, beside=beside))
    return [link_fit.fit_link("messages", (0,) * count, found) for count, found in steps.items()]


def _train(train: Train, settings: Mapping[str, str], busy: bool) -> RunFolder:
    for _ in range(TRIES):
        run = train(settings)
        disturbed = disturbance(recorded_loads(run), "the measurement")
        if busy or not disturbed:
            return run
    raise BusyMachine(f"{disturbed} Messages with a server were not added")
