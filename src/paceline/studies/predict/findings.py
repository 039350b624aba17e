"""What follows from the steps: whether it pays off, up to where, why not further, and what would help."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType

from paceline import specs
from paceline.errors import UsageError
from paceline.strategies import STRATEGIES
from paceline.studies.predict.base import Step, Where
from paceline.studies.predict.model import ALIKE, Case
from paceline.studies.predict.prediction import Bandwidth, Findings, Fitting, Gathering, Help, Knee, Limit
from paceline.studies.predict.pricing import PERFECT, Pricing
from paceline.studies.predict.question import Question, Remedy
from paceline.studies.predict.search import holds_up_to, least_factor, pays_up_to

WELL = 0.8
"""The efficiency from which training scales well."""

FAR = 100_000
"""As many workers are looked at where the closed path answers."""

CLOSE = 16
"""How many times as many workers as were asked for are looked at for the first that are faster than one."""

ROUGH = 0.1
"""To what part a bandwidth is found where every step is played."""

TENTH = 1.1
"""Links count as no limit where the step takes at most so many times as long as on perfect ones."""

ALIKE_RATES = 1.02
"""Rates that differ by less are the same: where every message is played, they vary by so much."""

WORTH = 1.1
"""What helps less than this is not worth a sentence."""

PLAYED = 3
"""Where every step is played, one in so many changes of a kind is looked at, the last among them."""

FEW = 3
"""As many changes are recommended at most."""

DIRECT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "bandwidth": ("network", "inside"),
        "latency": ("network", "inside", "collective"),
        "server": ("servers",),
        "encryption": ("servers",),
        "codec": ("codec",),
    }
)
"""Which changes come first, by what bounds a step; the others follow by how much they help."""

ROOMY = 0.9
"""The part of a memory that what is said to fit needs at most: allocators leave gaps, and predictions are off."""

FINE = 0.02
"""To what part it is found elsewhere."""

UNLIMITED = 1e9


class Finder:
    """Looks for the findings of one strategy."""

    def __init__(self, pricing: Pricing, strategy: str) -> None:
        self._pricing, self._question, self._strategy = pricing, pricing.question, strategy
        self._asked = max(self._question.workers)
        self._closed = pricing.step(self._case(self._asked)).path == "closed"

    def findings(self) -> Findings:
        """All of them."""
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
            fittings=tuple(self._fittings()),
        )

    def _case(self, workers: int) -> Case:
        return self._question.case(self._strategy, workers)

    def _speed_up(self, workers: int) -> float:
        return self._pricing.rate(self._case(workers)) / self._pricing.alone

    def _limit(self) -> int:
        """How far to look: as far as the closed path goes and workers are of use; else as far as was asked."""
        if self._asked == 1:
            return 1
        return min(max(FAR, self._asked), self._question.most) if self._closed else self._asked

    def _well(self, workers: int) -> bool:
        """As the table shows it, in whole percent."""
        return round(self._speed_up(workers) / workers, 2) >= WELL

    def _no_faster(self, workers: int) -> bool:
        return workers == 1 or self._speed_up(workers) <= 1

    def _knee(self, limit: int) -> Knee:
        reach, dip = pays_up_to(lambda workers: self._pricing.rate(self._case(workers)), limit)
        few = min(reach.workers + 1, max(1, limit // 2))
        limited = self._reason(self._case(few), self._case(min(2 * few, limit)), 2)
        where = self._pricing.explained(self._case(min(2 * few, limit))).link
        return Knee(reach=reach, bound=limited.bound, where=where, dip=dip)

    def _focus(self) -> int:
        """The number of workers whose limit the answer names: the slowest below one worker's rate, or the largest."""
        speeds = {workers: self._speed_up(workers) for workers in self._question.workers if workers > 1}
        slowest = min(speeds, key=lambda workers: speeds[workers])
        return slowest if speeds[slowest] < 1 else self._asked

    def _limit_of(self, workers: int) -> Limit:
        """What keeps so many from being as many times as fast as one who trains alone."""
        one = replace(self._question.case(ALIKE, 1), servers=1)
        return self._reason(one, self._case(workers), workers)

    def _reason(self, few: Case, case: Case, times: int) -> Limit:
        """What keeps the workers of a case from being so many times as fast as those of the one with few."""
        step = self._pricing.explained(case)
        bound = _obstacle(self._pricing.step(few), few, step, case, times)
        limit = Limit(workers=case.workers, bound=bound, wire=None, without=None)
        if bound == "encryption":
            return replace(limit, cipher=step.cipher)
        if bound not in ("bandwidth", "latency", "server"):
            return limit
        without = {"bandwidth": self._relieved(case, step.link, bandwidth=UNLIMITED)}
        if bound == "server":
            if without["bandwidth"] < WORTH * self._speed_up(case.workers):
                return limit
        else:
            without["latency"] = self._relieved(case, step.link, latency=0.0)
            # Where either would do, the one that counts for more now is named.
            bound = max(without, key=lambda name: without[name] * (ALIKE_RATES if name == bound else 1.0))
        wire = self._question.model.wire(case, step.link)
        return replace(limit, bound=bound, wire=wire, without=without.get(bound, without["bandwidth"]))

    def _relieved(self, case: Case, where: Where, *, bandwidth: float = 1.0, latency: float = 1.0) -> float:
        """The speed-up with a better link."""
        other = case.with_link(where, bandwidth=bandwidth, latency=latency)
        return self._pricing.rate(other) / self._pricing.alone

    def _computes_longer(self, workers: int) -> bool:
        """Jitter apart: it makes workers wait for each other, not for the network."""
        step = self._pricing.step(replace(self._case(workers), jitter=0.0))
        return step.communicate + step.hidden + step.wait <= _computing(step)

    def _bandwidth(self) -> Bandwidth | None:
        """Of the link that a step would gain most from; None where no links make workers compute more than wait."""
        case = self._case(self._asked)
        best = self._pricing.step(replace(case, links=PERFECT, jitter=0.0))
        if best.wait > _computing(best):
            return None
        now = self._pricing.explained(case)
        where = "network" if now.besides == "encryption" else now.link
        wire = self._question.model.wire(case, where)
        perfect = self._pricing.perfect(case)
        factor = least_factor(
            lambda more: self._pricing.seconds(case.with_link(where, bandwidth=more)) <= TENTH * perfect,
            precision=FINE if self._closed else ROUGH,
        )
        left = self._pricing.seconds(case.with_link(where, bandwidth=UNLIMITED)) - perfect
        return Bandwidth(
            workers=self._asked,
            wire=wire,
            needed=None if factor is None else factor * wire.bandwidth,
            left=max(0.0, left),
        )

    def _helps(self) -> list[Help]:
        """The changes that help most, each predicted: of every kind the first that is enough, else the fastest."""
        if self._speed_up(self._asked) * WORTH > self._asked or not self._fits(self._question, self._asked):
            return []
        kinds = groupby(self._question.remedies, key=lambda remedy: remedy.kind)
        found = {kind: self._best(remedies) for kind, remedies in kinds}
        helps = {kind: one for kind, one in found.items() if one is not None}
        first = DIRECT.get(self._pricing.explained(self._case(self._asked)).besides, ())
        order = sorted(helps, key=lambda kind: (kind not in first, -helps[kind].gain))
        return [helps[kind] for kind in order[:FEW]]

    def _best(self, remedies: Iterator[Remedy]) -> Help | None:
        best: Help | None = None
        for remedy in list(remedies)[:: -1 if self._closed else -PLAYED][::-1]:
            try:
                one = self._predicted(remedy) if self._fits(remedy.question, self._asked) else None
            except UsageError:  # a described cluster offers so many places for servers and no more
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

    def _other(self, question: Question, workers: int) -> Case:
        """The same of another question, which may be about another strategy."""
        same = self._strategy in question.strategies
        return question.case(self._strategy if same else question.strategies[0], workers)

    def _fits(self, question: Question, workers: int) -> bool:
        memory = question.model.memory(self._other(question, workers))
        return memory is None or memory.fits

    def _fittings(self) -> Iterator[Fitting]:
        """For the most workers that do not fit: the smaller batch, and of every other change the first that is enough.

        Where none is, the one with the largest batch; and of devices also the smallest that is of use.
        """
        short = [workers for workers in self._question.workers if not self._fits(self._question, workers)]
        if not short:
            return
        same = Remedy(kind="batch-size", what="", question=self._question)
        for _, remedies in groupby((same, *self._question.roomier), key=lambda remedy: remedy.kind):
            found = [one for remedy in remedies if (one := self._fitting(remedy, max(short)))]
            if found:
                best = max(found, key=lambda one: one[0])
                yield from [one for _, one in ([found[0]] if found[0][0] < best[0] else []) + [best]]

    def _fitting(self, remedy: Remedy, workers: int) -> tuple[int, Fitting] | None:
        """The change with as large a batch as fits with some memory to spare, up to the one that was asked for.

        With that batch.
        """
        question, what = remedy.question, remedy.what
        memory = question.model.memory(self._other(question, workers))
        if memory is not None and not self._is_roomy(question, workers):
            # In batches of whole mini-batches, of all workers together in strong scaling.
            least = question.accumulate * (workers if question.scaling == "strong" else 1)
            most = (
                question.batch // least if memory.largest is None else memory.largest // question.accumulate
            )
            batches = holds_up_to(
                lambda times: self._is_roomy(replace(question, batch=times * least), workers), max(1, most)
            )
            if not batches.workers:
                return None
            question = replace(question, batch=batches.workers * least)
            what = f"{what} --batch-size {question.batch // question.accumulate}".lstrip()
            memory = question.model.memory(self._other(question, workers))
        if memory is None or memory.capacity is None:
            return None
        rate = Pricing(question).rate(self._other(question, workers))
        fitting = Fitting(
            what=what, workers=workers, needed=memory.needed, capacity=memory.capacity, rate=rate
        )
        return question.batch, fitting

    def _is_roomy(self, question: Question, workers: int) -> bool:
        memory = question.model.memory(self._other(question, workers))
        return memory is None or memory.capacity is None or memory.needed <= ROOMY * memory.capacity

    def _predicted(self, remedy: Remedy) -> Help:
        question = remedy.question
        pricing = Pricing(question)
        rate = pricing.rate(self._other(question, self._asked))
        return Help(
            what=remedy.what,
            workers=self._asked,
            gain=rate / self._pricing.rate(self._case(self._asked)),
            speed_up=rate / pricing.alone,
        )

    def _gathering(self) -> Gathering | None:
        """Where everybody gets everybody's messages: from where on gradients as they are would be faster."""
        gathers = self._question.gathers
        if gathers is None or specs.build(self._strategy, STRATEGIES, "strategy").served:
            return None
        plain = Pricing(replace(self._question, model=gathers.plain, gathers=None))
        slower = None
        shown = sorted(self._question.workers, reverse=True) if self._closed else []
        for workers in shown:
            case = self._case(workers)
            if workers == 1 or plain.rate(case) <= self._pricing.rate(case):
                break
            slower = workers
        return Gathering(codec=gathers.codec, slower=slower)


def _obstacle(before: Step, few: Case, after: Step, many: Case, times: int) -> str:
    """What keeps ``times`` as many workers from being as many times as fast.

    That need not be what takes longest: computing is in the way only where more workers do not shorten it a sample.
    """
    lost = after.step / many.total - before.step / few.total / times
    computing = _computing(after) / many.total - _computing(before) / few.total / times
    return "compute" if computing > lost / 2 else after.besides


def _computing(step: Step) -> float:
    return step.data + step.forward + step.backward + step.apply
