"""Settings that may help, each predicted with the rebuilt run; those that are not worth it are left out."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from paceline.codecs import build_codec
from paceline.costs.coding import CodecCosts, MemoryRate
from paceline.costs.device import exposed_loading
from paceline.errors import UsageError
from paceline.records.spans import StepBreakdown
from paceline.runtimes.prepare import check_settings
from paceline.runtimes.settings import Settings
from paceline.strategies import is_watched
from paceline.studies.findings.finding import WORTH, Change, Remedy
from paceline.studies.findings.observed import ObservedSteps
from paceline.studies.findings.rebuilt import RebuiltRun
from paceline.studies.predict.setup import Setup

MOST = 2
"""Remedies of one finding."""
STALENESS, PERIOD = 4, 8
PLAIN = "all-reduce"
"""What a watched script does by itself, as a strategy that a run can have; one worker alone needs no other."""
LEAST_PART = 0.25
"""Of a rank's batch that it keeps: what less takes is not known."""
BATCHES = (2, 4)
"""Multiples of the batch that are tried."""
PAYS = 1.05
"""Several workers pay off where they train at least this many times as fast as one."""
LARGEST = 1024
"""The largest multiple of the batch at which several workers are tried against one."""
OPTIMIZER_PASSES = 5
"""Times that SGD with momentum reads or writes each parameter's bytes: the memory's rate follows from its time."""
LOADERS = (1, 2, 4, 8)
LOADERS_A_CORE = 2
"""More loader processes of all workers of a host slow each other down, even where they mostly wait."""


def worth(rebuilt: RebuiltRun | None, changes: Mapping[Change, Setup]) -> tuple[Remedy, ...]:
    """The changes that gain enough, the best first; none where the run could not be rebuilt."""
    if rebuilt is None:
        return ()
    found, settings = [], rebuilt.seen.run.config.settings
    for change, setup in changes.items():
        try:
            check_change(settings, change)
            found.append(Remedy(change=change, gain=rebuilt.gain(setup)))
        except UsageError:  # it does not go with the run's other settings, or cannot be predicted
            continue
    return best(found)


def check_change(settings: Settings, change: Change) -> None:
    """Refuse what a run with these settings and the change would refuse."""
    changed = dict(change)
    sizes = tuple(map(int, changed.pop("batch_size").split(","))) if "batch_size" in changed else ()
    workers, sizes = int(changed.pop("workers", settings.workers)), sizes or settings.batch_sizes
    known: dict[str, Any] = {"strategy": PLAIN} if is_watched(settings.strategy) else {}
    known |= {name: changed[name] for name in ("strategy", "codec") if name in changed}
    known["servers"] = int(changed.get("servers", settings.servers))
    known["batch_sizes"] = sizes if len(sizes) == workers else sizes[:1] * workers
    check_settings(replace(settings, **known))


def best(remedies: Iterable[Remedy]) -> tuple[Remedy, ...]:
    """Of each setting the best value."""
    found: dict[str, Remedy] = {}
    for one in sorted(remedies, key=lambda one: -one.gain):
        if one.gain >= WORTH:
            found.setdefault(one.change[0][0], one)
    return tuple(found.values())[:MOST]


def for_slow_rank(rebuilt: RebuiltRun | None) -> tuple[Remedy, ...]:
    if rebuilt is None:
        return ()
    setup = rebuilt.setup
    changes: dict[Change, Setup] = {
        (("strategy", spec),): replace(setup, strategy=spec)
        for spec in (f"ssp:staleness={STALENESS}", "async")
        if not spec.startswith(setup.strategy.partition(":")[0])
        and rebuilt.seen.run.config.settings.workers > 1
    }
    if not setup.program.served:
        changes |= _evened_batches(rebuilt)
    return worth(rebuilt, changes)


def _evened_batches(rebuilt: RebuiltRun) -> dict[Change, Setup]:
    """The same global batch, divided so that ranks take as long; none where no step tells what less takes."""
    seen, sizes = rebuilt.seen, list(rebuilt.seen.run.config.settings.batch_sizes)
    old, fixed = tuple(sizes), seen.fixed
    if fixed is None or len(seen.workers) < len(old):
        return {}

    def seconds(rank: int) -> float:
        return with_batch(seen.step(rank), sizes[rank] / old[rank], fixed).compute

    ranks, moved = range(len(old)), max(1, sum(old) // 256)
    while True:
        slow, fast = (pick(ranks, key=seconds) for pick in (max, min))
        longest = seconds(slow)
        sizes[slow], sizes[fast] = sizes[slow] - moved, sizes[fast] + moved
        if sizes[slow] < LEAST_PART * old[slow] or max(map(seconds, ranks)) >= longest:
            break
    sizes[slow], sizes[fast] = sizes[slow] + moved, sizes[fast] - moved
    setup = rebuilt.with_computing({rank: seconds(rank) for rank in ranks})
    return {(("batch_size", ",".join(map(str, sizes))),): setup}


def for_communication(rebuilt: RebuiltRun | None) -> tuple[Remedy, ...]:
    """Fewer exchanges, smaller ones, or more work between two of them."""
    if rebuilt is None:
        return ()
    settings = rebuilt.seen.run.config.settings
    return worth(
        rebuilt,
        {**_fewer_exchanges(rebuilt), **_smaller(rebuilt), **_larger_batches(rebuilt, settings.batch_sizes)},
    )


def _fewer_exchanges(rebuilt: RebuiltRun) -> dict[Change, Setup]:
    setup = rebuilt.setup
    plain = not setup.coding.compresses and not setup.has_clients and setup.learners == 1
    if not setup.program.served:
        spec = f"local-sgd:period={PERIOD}"
        rare = setup.pattern.cycle > 1  # it averages now and then already
        return {(("strategy", spec),): replace(setup, strategy=spec)} if plain and not rare else {}
    many = 2 * setup.servers
    changes: dict[Change, Setup] = {(("servers", str(many)),): replace(setup, servers=many)}
    if plain:
        changes[_without_servers(setup)] = replace(setup, strategy=PLAIN, servers=1)
    return changes


def _without_servers(setup: Setup) -> Change:
    """Of a run with servers: the options of one that has none."""
    return (("strategy", PLAIN), *((("servers", "1"),) if setup.servers > 1 else ()))


def _smaller(rebuilt: RebuiltRun) -> dict[Change, Setup]:
    """A codec takes as long as the bytes that it moves do at the rate at which the optimizer moved its own."""
    setup, step = rebuilt.setup, rebuilt.setup.cost.step
    if setup.coding.compresses or not step.apply or setup.program.served:
        return {}
    rate = OPTIMIZER_PASSES * 4 * setup.shape.size / step.apply
    return {
        (("codec", name),): replace(setup, coding=CodecCosts(codec=build_codec(name), timed=MemoryRate(rate)))
        for name in ("half", "int8")
    }


def _larger_batches(rebuilt: RebuiltRun, sizes: tuple[int, ...]) -> dict[Change, Setup]:
    if len(set(sizes)) > 1:
        return {}
    return {
        (("batch_size", str(times * sizes[0])),): enlarged(rebuilt, times)
        for times in BATCHES
        if _has_data(rebuilt.seen, times)
    }


def enlarged(rebuilt: RebuiltRun, times: int) -> Setup:
    cost = rebuilt.setup.cost
    step = with_batch(cost.step, times, rebuilt.seen.fixed)
    return replace(rebuilt.setup, cost=replace(cost, step=step, samples=times * cost.samples))


def with_batch(step: StepBreakdown, times: float, fixed: float | None) -> StepBreakdown:
    """The computing of so many times the batch, but for the optimizer.

    Where it is not known what part is ``fixed``, all is in proportion: a larger batch takes no longer than that.
    """
    factor = (fixed or 0.0) + (1 - (fixed or 0.0)) * times
    return StepBreakdown(
        data=step.data * factor,
        forward=step.forward * factor,
        backward=step.backward * factor,
        apply=step.apply,
    )


def _has_data(seen: ObservedSteps, times: float) -> bool:
    summary = seen.run.summary
    samples = summary.samples / summary.epochs if summary.epochs else 0.0
    return times * sum(seen.run.config.settings.batch_sizes) <= samples


def paying_batch(rebuilt: RebuiltRun) -> int | None:
    """The least multiple of the batch, a power of two, at which these workers are faster than one; None: none is."""
    seen, step = rebuilt.seen, rebuilt.seen.step(rebuilt.seen.fastest)
    samples, times = seen.samples(seen.fastest), 2
    while times <= LARGEST and _has_data(seen, times):
        alone = times * samples / (with_batch(step, times, seen.fixed).compute + step.other)
        if rebuilt.gain(enlarged(rebuilt, times)) * seen.rate >= PAYS * alone:
            return times
        times *= 2
    return None


def for_one_worker(rebuilt: RebuiltRun | None, batch: int, gain: float) -> tuple[Remedy, ...]:
    """One worker that exchanges nothing, not even with a server, at the batch at which it would gain so much."""
    if rebuilt is None:
        return ()
    seen, settings = rebuilt.seen, rebuilt.seen.run.config.settings
    change: Change = (*((("nodes", "1"),) if seen.hosts > 1 else ()), ("workers", "1"))
    if rebuilt.setup.program.served:
        change += _without_servers(rebuilt.setup)
    if len({*settings.batch_sizes}) > 1 and not settings.job.is_script:
        change += (("batch_size", str(batch)),)
    try:
        check_change(settings, change)
    except UsageError:
        return ()
    return best([Remedy(change=change, gain=gain)])


def for_data(rebuilt: RebuiltRun | None) -> tuple[Remedy, ...]:
    """Of a run without loader processes: they prepare batches behind the rest of the step, as many as keep up with it.

    What the step spends on other things, which counts as data where the run is rebuilt, they do not save.
    """
    if rebuilt is None:
        return ()
    seen, cost = rebuilt.seen, rebuilt.setup.cost
    data = seen.step(seen.slowest).data
    rest = rebuilt.now.seconds - data
    loads = seen.run.summary.loads
    cores = min((load.cores for load in loads), default=1)
    most = max(1, LOADERS_A_CORE * cores * max(1, len(loads)) // len(seen.workers))
    usable = [one for one in LOADERS if one <= most]
    many = next((one for one in usable if data / one <= rest), usable[-1])
    saved = data - exposed_loading(data, many, rest)
    loaded = replace(cost, step=replace(cost.step, data=cost.step.data - saved))
    return worth(rebuilt, {(("loader_workers", str(many)),): replace(rebuilt.setup, cost=loaded)})


def rarer(option: str, count: int, unit: str, seconds: float, whole: float, done: int) -> Remedy:
    """Do it a fifth as often, or as rarely as the run allows: the whole time without the rest of it."""
    times = min(5, done)
    gain = whole / (whole - seconds * (1 - ceil(done / times) / done))
    return Remedy(change=((option, f"{times * count} {unit}"),), gain=gain)
