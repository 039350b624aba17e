"""What follows from the steps: whether more workers pay off, up to where, why not further, and what would help."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType

from paceline.codecs import build_codec
from paceline.errors import UsageError
from paceline.strategies import build_strategy
from paceline.studies.predict.model import Case
from paceline.studies.predict.prediction import (
    BandwidthNeed,
    Bound,
    Findings,
    Fit,
    GatheringCodec,
    Knee,
    Limit,
    Memory,
    PredictedStep,
    Setting,
    Speedup,
    Where,
)
from paceline.studies.predict.pricing import ONE_WORKER, PERFECT, Pricing
from paceline.studies.predict.search import holds_up_to, least_factor, pays_up_to

WELL = 0.8
"""The efficiency from which training scales well."""

FAR = 100_000
"""The largest number of workers that is tried where steps are found quickly."""

CLOSE = 16
"""Up to so many times the requested workers, the first number is looked for that is faster than one."""

ROUGH = 0.1
"""To what fraction a bandwidth is found where every worker is simulated."""

TENTH = 1.1
"""Links count as no limit where the step takes at most so many times as long as on perfect ones."""

ALIKE_RATES = 1.02
"""Rates that differ by less are the same: simulations vary by so much."""

WORTH = 1.1
"""What helps less than this is not recommended."""

SIMULATED = 3
"""Where every worker is simulated, one in so many values of a setting is tried, the last among them."""

MOST_HELPS = 3
"""Changes that are recommended at most."""

DIRECT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "bandwidth": ("network", "inside"),
        "latency": ("network", "inside", "collective"),
        "server": ("servers",),
        "encryption": ("servers",),
        "codec": ("codec",),
    }
)
"""Which settings come first, by what bounds a step; the others follow by how much they help."""

ROOMY = 0.9
"""The fraction of a memory that a recommended change needs at most: allocators leave gaps, predictions err."""

FINE = 0.02
"""To what fraction a bandwidth is found elsewhere."""

UNLIMITED = 1e9


class Finder:
    """Looks for the findings of one strategy."""

    def __init__(self, pricing: Pricing, strategy: str) -> None:
        self._pricing, self._strategy = pricing, strategy
        self._asked = max(pricing.workers)
        self._quick = pricing.step(self._case(self._asked)).path != "events"

    def findings(self) -> Findings:
        limit = self._limit()
        several = self._asked > 1
        return Findings(
            well=holds_up_to(self._well, limit),
            knee=self._knee(limit),
            crossover=holds_up_to(self._computes_longer, limit),
            slower=holds_up_to(self._no_faster, min(limit, CLOSE * self._asked)),
            limit=self._limit_of(self._focus()) if several else None,
            bandwidth=self._bandwidth() if several else None,
            helps=tuple(self._helps()) if several else (),
            gathering=self._gathering() if several else None,
            fits=tuple(self._fits()),
        )

    def _case(self, workers: int) -> Case:
        return self._pricing.case(self._strategy, workers)

    def _other(self, pricing: Pricing) -> str:
        """The strategy of a changed request, which may be another."""
        strategies = pricing.request.strategies
        return self._strategy if self._strategy in strategies else strategies[0]

    def _speed_up(self, workers: int) -> float:
        return self._pricing.rate(self._case(workers)) / self._pricing.alone

    def _limit(self) -> int:
        """How far to look: as far as workers are of use where steps are found quickly; else as far as was asked."""
        if self._asked == 1:
            return 1
        return min(max(FAR, self._asked), self._pricing.most) if self._quick else self._asked

    def _well(self, workers: int) -> bool:
        """As the table shows it, in whole percent."""
        return round(self._speed_up(workers) / workers, 2) >= WELL

    def _no_faster(self, workers: int) -> bool:
        return workers == 1 or self._speed_up(workers) <= 1

    def _knee(self, limit: int) -> Knee:
        reach, dip = pays_up_to(lambda workers: self._pricing.rate(self._case(workers)), limit)
        fewer = min(reach.workers + 1, max(1, limit // 2))
        limited = self._reason(self._case(fewer), self._case(min(2 * fewer, limit)), 2)
        where = self._pricing.explain(self._case(min(2 * fewer, limit))).link
        return Knee(reach=reach, bound=limited.bound, where=where, dip=dip)

    def _focus(self) -> int:
        """The number of workers whose limit the answer names: the slowest below one worker's rate, or the largest."""
        speeds = {workers: self._speed_up(workers) for workers in self._pricing.workers if workers > 1}
        slowest = min(speeds, key=lambda workers: speeds[workers])
        return slowest if speeds[slowest] < 1 else self._asked

    def _limit_of(self, workers: int) -> Limit:
        """What keeps these workers from being as many times as fast as one that trains alone."""
        one = replace(self._pricing.case(ONE_WORKER, 1), servers=1)
        return self._reason(one, self._case(workers), workers)

    def _reason(self, few: Case, case: Case, times: int) -> Limit:
        """What keeps the workers of a case from being ``times`` times as fast as those of the one with few."""
        step = self._pricing.explain(case)
        bound = _obstacle(self._pricing.step(few), few, step, case, times)
        limit = Limit(workers=case.workers, bound=bound, wire=None, without=None)
        if bound == "encryption":
            return replace(limit, cipher=step.cipher)
        if bound not in ("bandwidth", "latency", "server"):
            return limit
        without: dict[Bound, float] = {"bandwidth": self._relieved(case, step.link, bandwidth=UNLIMITED)}
        if bound == "server":
            if without["bandwidth"] < WORTH * self._speed_up(case.workers):
                return limit
        else:
            without["latency"] = self._relieved(case, step.link, latency=0.0)
            # Where either would do, the one that counts for more now is named.
            now = bound
            bound = max(without, key=lambda name: without[name] * (ALIKE_RATES if name == now else 1.0))
        wire = self._pricing.model.wire(case, step.link)
        return replace(limit, bound=bound, wire=wire, without=without.get(bound, without["bandwidth"]))

    def _relieved(self, case: Case, where: Where, *, bandwidth: float = 1.0, latency: float = 1.0) -> float:
        """The speed-up with a better link."""
        other = case.with_link(where, bandwidth=bandwidth, latency=latency)
        return self._pricing.rate(other) / self._pricing.alone

    def _computes_longer(self, workers: int) -> bool:
        """Without jitter, which makes workers wait for each other, not for the network."""
        parts = self._pricing.step(replace(self._case(workers), jitter=0.0)).breakdown
        return parts.communicate + parts.hidden + parts.wait <= parts.compute

    def _bandwidth(self) -> BandwidthNeed | None:
        """Of the link that a step would gain most from; None where no links make workers compute more than wait."""
        case = self._case(self._asked)
        best = self._pricing.step(replace(case, change=PERFECT, jitter=0.0)).breakdown
        if best.wait > best.compute:
            return None
        now = self._pricing.explain(case)
        where = "network" if now.besides == "encryption" else now.link
        wire = self._pricing.model.wire(case, where)
        perfect = self._pricing.seconds(replace(case, change=PERFECT))
        factor = least_factor(
            lambda more: self._pricing.seconds(case.with_link(where, bandwidth=more)) <= TENTH * perfect,
            precision=FINE if self._quick else ROUGH,
        )
        left = self._pricing.seconds(case.with_link(where, bandwidth=UNLIMITED)) - perfect
        return BandwidthNeed(
            workers=self._asked,
            wire=wire,
            needed=None if factor is None else factor * wire.bandwidth,
            left=max(0.0, left),
        )

    def _helps(self) -> list[Speedup]:
        """The changes that help most, each predicted: of every setting the first that is enough, else the fastest."""
        if self._speed_up(self._asked) * WORTH > self._asked or not _has_room(self._memory(self._pricing)):
            return []
        settings = groupby(self._pricing.remedies, key=lambda remedy: remedy[0])
        found = {setting: self._best(list(remedies)) for setting, remedies in settings}
        helps = {setting: one for setting, one in found.items() if one is not None}
        first = DIRECT.get(self._pricing.explain(self._case(self._asked)).besides, ())
        order = sorted(helps, key=lambda setting: (setting not in first, -helps[setting].gain))
        return [helps[setting] for setting in order[:MOST_HELPS]]

    def _best(self, remedies: list[Setting]) -> Speedup | None:
        best: Speedup | None = None
        for remedy in remedies[:: -1 if self._quick else -SIMULATED][::-1]:
            try:
                one = self._speedup(remedy)
            except UsageError:  # too little data for a larger batch, no hosts for more servers
                continue
            if one is None:
                continue
            if best is None or one.gain > WORTH * best.gain:
                best = one
            if best.speed_up >= WELL * self._asked:
                break
        now = self._speed_up(self._asked)
        worth = best is not None and best.gain >= WORTH and best.speed_up >= WORTH * now
        return best if worth else None

    def _speedup(self, remedy: Setting) -> Speedup | None:
        """What a change gains; None where it does not fit the memory."""
        pricing = self._pricing.changed(remedy)
        if not _has_room(self._memory(pricing)):
            return None
        rate = pricing.rate(pricing.case(self._other(pricing), self._asked))
        return Speedup(
            change=(remedy,),
            workers=self._asked,
            gain=rate / self._pricing.rate(self._case(self._asked)),
            speed_up=rate / pricing.alone,
        )

    def _memory(self, pricing: Pricing, workers: int | None = None) -> Memory | None:
        case = pricing.case(self._other(pricing), workers or self._asked)
        return pricing.model.memory(case)

    def _fits(self) -> Iterator[Fit]:
        """For the most workers that do not fit: the smaller batch, and of every other setting the first that is enough.

        Where none is, the one with the largest batch; and of devices also the smallest that is of use.
        """
        short = [
            workers
            for workers in self._pricing.workers
            if not _has_room(self._memory(self._pricing, workers))
        ]
        if not short:
            return
        for _, settings in groupby((None, *self._pricing.roomier), key=lambda one: one and one[0]):
            found = [one for setting in settings if (one := self._fit(setting, max(short)))]
            if found:
                best = max(found, key=lambda one: one[0])
                yield from [one for _, one in ([found[0]] if found[0][0] < best[0] else []) + [best]]

    def _fit(self, setting: Setting | None, workers: int) -> tuple[int, Fit] | None:
        """The change, with as large a batch as fits with memory to spare, up to the requested one; and the batch."""
        change = () if setting is None else (setting,)
        try:
            pricing = self._pricing.changed(*change) if change else self._pricing
        except UsageError:  # the device has no matrix units for the precision
            return None
        memory = self._memory(pricing, workers)
        if memory is not None and not _is_roomy(memory):
            batch = self._largest_batch(pricing, workers, memory)
            if not batch:
                return None
            change = (*change, ("batch_size", str(batch)))
            pricing = self._pricing.changed(*change)
            memory = self._memory(pricing, workers)
        if memory is None or memory.capacity is None:
            return None
        rate = pricing.rate(pricing.case(self._other(pricing), workers))
        fit = Fit(change=change, workers=workers, needed=memory.needed, capacity=memory.capacity, rate=rate)
        return pricing.batch, fit

    def _largest_batch(self, pricing: Pricing, workers: int, memory: Memory) -> int:
        """Samples of a mini-batch, of all workers together in strong scaling; 0 where none fits."""
        strong = pricing.request.scaling == "strong"
        accumulate = pricing.model.accumulate
        least = accumulate * (workers if strong else 1)
        most = pricing.batch // least if memory.largest is None else memory.largest // accumulate
        case = pricing.case(self._other(pricing), workers)

        def is_roomy(times: int) -> bool:
            return _is_roomy(pricing.model.memory(replace(case, batch=times * accumulate)))

        times = holds_up_to(is_roomy, max(1, most)).workers
        return times * least // accumulate

    def _gathering(self) -> GatheringCodec | None:
        """Where every worker receives all messages: from where on uncompressed gradients would be faster."""
        codec = self._pricing.request.codec
        if build_codec(codec).sums or build_strategy(self._strategy).served:
            return None
        plain = self._pricing.changed(("codec", "identity"))
        slower = None
        for workers in sorted(self._pricing.workers, reverse=True) if self._quick else []:
            case = self._case(workers)
            if workers == 1 or plain.rate(case) <= self._pricing.rate(case):
                break
            slower = workers
        return GatheringCodec(codec=codec, slower=slower)


def _obstacle(before: PredictedStep, few: Case, after: PredictedStep, many: Case, times: int) -> Bound:
    """What keeps ``times`` as many workers from being as many times as fast.

    That need not be what takes longest: computing is in the way only where more workers do not shorten it a sample.
    """
    lost = after.seconds / many.samples - before.seconds / few.samples / times
    computing = after.breakdown.compute / many.samples - before.breakdown.compute / few.samples / times
    return "compute" if computing > lost / 2 else after.besides


def _has_room(memory: Memory | None) -> bool:
    return memory is None or memory.fits


def _is_roomy(memory: Memory | None) -> bool:
    """Whether it fits with some memory to spare."""
    return memory is None or memory.capacity is None or memory.needed <= ROOMY * memory.capacity
