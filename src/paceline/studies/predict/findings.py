"""What follows from the steps: whether more workers pay off, up to where, why not further, and what would help."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from paceline.clusters.catalogue import all_devices, find_network
from paceline.codecs import NO_CODEC
from paceline.collectives import NATIVE
from paceline.errors import UsageError
from paceline.runtimes.settings import MOST_SERVERS
from paceline.studies.predict.compute import narrower_format
from paceline.studies.predict.deployment import inside_name
from paceline.studies.predict.model import ONE_WORKER, PacelineModel
from paceline.studies.predict.observe import observe
from paceline.studies.predict.prediction import (
    BandwidthNeed,
    Bound,
    Findings,
    FittingChange,
    Knee,
    Limit,
    Memory,
    SettingValue,
    Speedup,
)
from paceline.studies.predict.request import USUAL_NETWORK
from paceline.studies.predict.search import holds_up_to, least_factor, pays_up_to
from paceline.studies.predict.setup import PERFECT, Setup, with_link, with_slower

WELL = 0.8
FAR = 100_000
"""The largest number of workers that is tried where steps are found quickly."""
CLOSE = 16
"""The first number that is faster than one worker is searched for up to this multiple of the requested numbers."""
FINE, ROUGH = 0.02, 0.1
"""To what fraction a bandwidth is found: where steps are found quickly, and where every worker is simulated."""
TENTH = 1.1
"""Links count as no limit where the step takes at most this many times as long as on perfect ones."""
ALIKE_RATES = 1.02
"""Rates that differ by less are the same: simulations vary by this much."""
WORTH = 1.1
SIMULATED = 3
"""Where every worker is simulated, one in this many values of a setting is tried, the last among them."""
MOST_HELPS = 3
ROOMY = 0.9
"""The fraction of a memory that a recommended change needs at most: allocators leave gaps, predictions err."""
CODECS = ("half", "int8", "powersgd")
UNLIMITED = 1e9

DIRECT: Mapping[str, tuple[str, ...]] = {
    "bandwidth": ("network", "inside"),
    "latency": ("network", "inside", "collective"),
    "server": ("servers",),
    "encryption": ("servers",),
    "codec": ("codec",),
}
"""Which settings come first, by what bounds a step; the others follow by how much they help."""
NETWORKS = (
    *("2.5gbit", "10gbit", "25gbit", "100gbit", "200gbit"),
    *("infiniband-hdr", "400gbit", "infiniband-ndr"),
)


def find_remedies(model: PacelineModel) -> Iterator[SettingValue]:
    """Changes that may make training faster; of one setting, what costs least comes first."""
    request = model.request
    per_host = request.per_host or 1
    if model.deployment.by_catalogue:
        if request.workers is None or max(request.workers) > per_host:
            now = find_network(request.network or USUAL_NETWORK).bandwidth
            yield from (("network", name) for name in NETWORKS if find_network(name).bandwidth > now)
        if model.sheet is not None and per_host > 1:
            linked = inside_name(request)
            now = find_network(linked).bandwidth if linked else 0.0
            yield from (("inside", name) for name in model.sheet.inside if find_network(name).bandwidth > now)
    if request.served and 2 * request.servers <= MOST_SERVERS:
        yield "servers", str(2 * request.servers)
    if request.codecs == (NO_CODEC,):  # others are compared with it
        yield from (("codec", name) for name in CODECS)
    if not request.served and request.collective == NATIVE:
        yield "collective", "halving-doubling"
    if len(request.built) == 1:
        seconds = model.cost(model.batch).step.compute
        if request.served:
            yield "strategy", "all-reduce"
        elif (
            not request.built[0].partition(2).clients
            and observe(request.built[0], 2, seconds, model.strategies[0]).cycle == 1
        ):
            yield "strategy", "local-sgd:period=16"
    yield from (("batch_size", str(times * model.batch // model.compute.accumulate)) for times in (2, 4))


def find_roomier(model: PacelineModel) -> Iterator[SettingValue]:
    """Changes that need less memory or have more."""
    request, sheet = model.request, model.sheet
    if request.device is None or sheet is None:
        return
    if narrow := narrower_format(request, sheet, model.compute.trace(model.batch)):
        yield "precision", narrow
    if request.memory is None:
        for one in sorted(all_devices().values(), key=lambda one: one.memory):
            if one.kind == sheet.kind and one.memory > sheet.memory:
                yield "device", one.name


class Finder:
    def __init__(self, model: PacelineModel, strategy: str, remedies: Sequence[SettingValue]) -> None:
        self._model, self._strategy, self._remedies = model, strategy, remedies
        self._asked = max(model.workers)
        self._now = self._setup(self._asked)
        self._quick = model.step(self._now).path != "events"

    def findings(self) -> Findings:
        several = self._asked > 1
        limit = self._asked
        if several and self._quick:  # as far as workers are of use
            limit = min(max(FAR, self._asked), self._model.most)
        return Findings(
            # In whole percent, as the table shows it.
            well=holds_up_to(lambda workers: round(self._speed_up(workers) / workers, 2) >= WELL, limit),
            knee=self._knee(limit),
            crossover=holds_up_to(self._computes_longer, limit),
            slower=holds_up_to(
                lambda workers: workers == 1 or self._speed_up(workers) <= 1, min(limit, CLOSE * self._asked)
            ),
            limit=self._limit() if several else None,
            bandwidth=self._bandwidth() if several else None,
            helps=tuple(self._helps()) if several else (),
            fits=tuple(self._fits()),
        )

    def _setup(self, workers: int, model: PacelineModel | None = None) -> Setup:
        model = model or self._model
        named = self._strategy in model.strategies  # else another one is the change
        return model.setup(self._strategy if named else model.strategies[0], workers)

    def _seconds(self, setup: Setup) -> float:
        return self._model.step(setup).seconds

    def _rate(self, workers: int) -> float:
        return self._model.rate(self._setup(workers))

    def _speed_up(self, workers: int) -> float:
        return self._rate(workers) / self._model.alone

    def _even(self, workers: int) -> Setup:
        """Without jitter, which makes workers wait for each other, not for the network."""
        return self._model.setup(self._strategy, workers, 0.0)

    def _computes_longer(self, workers: int) -> bool:
        parts = self._model.step(self._even(workers)).breakdown
        return parts.communicate + parts.hidden + parts.wait <= parts.compute

    def _knee(self, limit: int) -> Knee:
        reach, dip = pays_up_to(self._rate, limit)
        fewer = min(reach.workers + 1, max(1, limit // 2))
        more = self._setup(min(2 * fewer, limit))
        bound = self._reason(self._setup(fewer), more, 2).bound
        return Knee(reach=reach, bound=bound, where=self._model.bounds(more).link, dip=dip)

    def _limit(self) -> Limit:
        speeds = {workers: self._speed_up(workers) for workers in self._model.workers if workers > 1}
        slowest = min(speeds, key=lambda workers: speeds[workers])
        workers = slowest if speeds[slowest] < 1 else self._asked
        return self._reason(self._model.setup(ONE_WORKER, 1), self._setup(workers), workers)

    def _reason(self, few: Setup, setup: Setup, times: int) -> Limit:
        bounds, bound = self._model.bounds(setup), self._obstacle(few, setup, times)
        limit = Limit(workers=setup.cluster.workers, bound=bound, wire=None, without=None)
        if bound == "encryption":
            return replace(limit, cipher=bounds.cipher)
        if bound not in ("bandwidth", "latency", "server"):
            return limit

        def relieved(bandwidth: float = 1.0, latency: float = 1.0) -> float:
            other = with_link(setup, bounds.link, bandwidth=bandwidth, latency=latency)
            return self._model.rate(other) / self._model.alone

        without: dict[Bound, float] = {"bandwidth": relieved(bandwidth=UNLIMITED)}
        if bound == "server":
            if without["bandwidth"] < WORTH * self._speed_up(limit.workers):
                return limit
        else:
            without["latency"] = relieved(latency=0.0)
            # Where either would do, the one that counts for more now is named.
            now = bound
            bound = max(without, key=lambda name: without[name] * (ALIKE_RATES if name == now else 1.0))
        wire = self._model.deployment.wire(setup.cluster, bounds.link)
        return replace(limit, bound=bound, wire=wire, without=without.get(bound, without["bandwidth"]))

    def _obstacle(self, few: Setup, many: Setup, times: int) -> Bound:
        before, after = self._model.step(few), self._model.step(many)
        fewer, more = (self._model.samples(one.cluster.workers) for one in (few, many))
        lost = after.seconds / more - before.seconds / fewer / times
        computing = after.breakdown.compute / more - before.breakdown.compute / fewer / times
        return "compute" if computing > lost / 2 else self._model.bounds(many).besides

    def _bandwidth(self) -> BandwidthNeed | None:
        """Of the link that a step would gain most from; None where no links make workers compute more than wait."""
        model, setup = self._model, self._now
        best = model.step(with_slower(self._even(self._asked), transfers=PERFECT)).breakdown
        if best.wait > best.compute:
            return None
        where = model.bounds(setup).carrier
        wire = model.deployment.wire(setup.cluster, where)
        perfect = self._seconds(with_slower(setup, transfers=PERFECT))
        factor = least_factor(
            lambda more: self._seconds(with_link(setup, where, bandwidth=more)) <= TENTH * perfect,
            precision=FINE if self._quick else ROUGH,
        )
        left = self._seconds(with_link(setup, where, bandwidth=UNLIMITED)) - perfect
        return BandwidthNeed(
            workers=self._asked,
            wire=wire,
            needed=None if factor is None else factor * wire.bandwidth,
            left=max(0.0, left),
        )

    def _helps(self) -> list[Speedup]:
        """The changes that help most, each predicted: of every setting the first that is enough, else the fastest."""
        if self._speed_up(self._asked) * WORTH > self._asked or not self._model.memory(self._now).fits:
            return []
        settings = groupby(self._remedies, key=lambda remedy: remedy[0])
        found = {setting: self._best(list(remedies)) for setting, remedies in settings}
        helps = {setting: one for setting, one in found.items() if one is not None}
        first = DIRECT.get(self._model.bounds(self._now).besides, ())
        order = sorted(helps, key=lambda setting: (setting not in first, -helps[setting].gain))
        return [helps[setting] for setting in order[:MOST_HELPS]]

    def _best(self, remedies: list[SettingValue]) -> Speedup | None:
        best: Speedup | None = None
        for remedy in remedies[:: -1 if self._quick else -SIMULATED][::-1]:
            try:
                one = self._speedup(remedy)
            except UsageError:  # too little data for a larger batch, no hosts for more servers
                continue
            if one is not None and (best is None or one.gain > WORTH * best.gain):
                best = one
            if best is not None and best.speed_up >= WELL * self._asked:
                break
        now = self._speed_up(self._asked)
        worth = best is not None and best.gain >= WORTH and best.speed_up >= WORTH * now
        return best if worth else None

    def _speedup(self, remedy: SettingValue) -> Speedup | None:
        model = self._model.changed([remedy])
        setup = self._setup(self._asked, model)
        if not model.memory(setup).fits:
            return None
        rate = model.rate(setup)
        return Speedup(
            change=(remedy,),
            workers=self._asked,
            gain=rate / self._rate(self._asked),
            speed_up=rate / model.alone,
        )

    def _fits(self) -> Iterator[FittingChange]:
        """For the most workers that do not fit: of each setting the first of use, and that of the largest batch."""
        memory = {count: self._model.memory(self._setup(count)) for count in self._model.workers}
        short = [count for count, found in memory.items() if not found.fits]
        if not short:
            return
        for _, settings in groupby((None, *find_roomier(self._model)), key=lambda one: one and one[0]):
            found = [one for setting in settings if (one := self._fit(setting, max(short)))]
            if found:
                best = max(found, key=lambda one: one[0])
                yield from [one for _, one in ([found[0]] if found[0][0] < best[0] else []) + [best]]

    def _fit(self, setting: SettingValue | None, workers: int) -> tuple[int, FittingChange] | None:
        """The change, with as large a batch as fits with memory to spare, up to the requested one; and the batch."""
        change = () if setting is None else (setting,)
        try:
            model = self._model.changed(change)
            setup = self._setup(workers, model)
        except UsageError:  # the device has no matrix units for the precision, or for the model's own dtype
            return None
        memory = model.memory(setup)
        if not _is_roomy(memory):
            batch = self._largest_batch(model, setup, memory)
            if not batch:
                return None
            change = (*change, ("batch_size", str(batch)))
            model = self._model.changed(change)
            setup = self._setup(workers, model)
            memory = model.memory(setup)
        assert memory.capacity is not None, "what does not fit is said of a known memory"
        rate = model.rate(setup)
        fit = FittingChange(
            change=change, workers=workers, needed=memory.needed, capacity=memory.capacity, rate=rate
        )
        return model.batch, fit

    def _largest_batch(self, model: PacelineModel, setup: Setup, memory: Memory) -> int:
        """Samples of a mini-batch, of all workers together in strong scaling; 0 where none fits."""
        accumulate, shares = model.compute.accumulate, setup.cluster.workers if model.strong else 1
        most = model.batch // (accumulate * shares)
        if memory.largest is not None:
            most = memory.largest // accumulate

        def is_roomy(times: int) -> bool:
            return _is_roomy(model.memory_with(setup, times * accumulate))

        return holds_up_to(is_roomy, max(1, most)).workers * shares


def _is_roomy(memory: Memory) -> bool:
    return memory.capacity is None or memory.needed <= ROOMY * memory.capacity
