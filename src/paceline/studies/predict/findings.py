"""What follows from the steps: where it stops to pay, why, and what would help."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from paceline import specs
from paceline.errors import Mistake
from paceline.records.prediction import Bandwidth, Findings, Gathering, Help, Knee, Reach
from paceline.runtimes.settings import MOST_SERVERS
from paceline.strategies import STRATEGIES
from paceline.strategies.base import Served
from paceline.studies.predict.base import Step
from paceline.studies.predict.model import Case
from paceline.studies.predict.pricing import Pricing
from paceline.studies.predict.question import Faster
from paceline.studies.predict.search import holds_up_to, least_factor, pays_up_to

WELL = 0.8
"""The efficiency from which training scales well."""

FAR = 100_000
"""As many workers are looked at where the closed path answers."""

CLOSE = 16
"""How many times as many workers as were asked for are looked at with another network."""

ROUGH = 0.1
"""To what part a bandwidth is found where every step is played."""

TENTH = 1.1
"""Links count as no limit where the step takes at most so many times as long as on perfect ones."""

WORTH = 1.1
"""What helps less than this is not worth a sentence."""

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
        knee = self._knee(limit)
        return Findings(
            well=holds_up_to(self._well, limit),
            knee=knee,
            crossover=holds_up_to(self._computes_longer, limit),
            bandwidth=self._bandwidth() if self._asked > 1 else None,
            helps=tuple(self._helps(knee.reach)) if self._asked > 1 else (),
            gathering=self._gathering() if self._asked > 1 else None,
        )

    def _case(self, workers: int) -> Case:
        return self._question.case(self._strategy, workers)

    def _limit(self) -> int:
        """How far to look: as far as the closed path goes and workers are of use; else as far as was asked."""
        if self._asked == 1:
            return 1
        return min(max(FAR, self._asked), self._question.most) if self._closed else self._asked

    def _well(self, workers: int) -> bool:
        """As the table shows it, in whole percent."""
        return round(self._pricing.rate(self._case(workers)) / self._pricing.alone / workers, 2) >= WELL

    def _knee(self, limit: int) -> Knee:
        reach, dip = pays_up_to(lambda workers: self._pricing.rate(self._case(workers)), limit)
        return Knee(
            reach=reach, bound=self._obstacle(min(reach.workers + 1, max(1, limit // 2)), limit), dip=dip
        )

    def _obstacle(self, workers: int, limit: int) -> str:
        """What keeps twice as many from being twice as fast.

        That need not be what takes longest: computing is in the way only where twice as many do not halve it a sample.
        """
        few, many = self._case(workers), self._case(min(2 * workers, limit))
        before, after = self._pricing.step(few), self._pricing.explained(many)
        lost = after.step / many.total - before.step / few.total / 2
        computing = _computing(after) / many.total - _computing(before) / few.total / 2
        return "compute" if computing > lost / 2 else after.besides

    def _computes_longer(self, workers: int) -> bool:
        """Jitter apart: it makes workers wait for each other, not for the network."""
        step = self._pricing.step(replace(self._case(workers), jitter=0.0))
        return step.communicate + step.hidden + step.wait <= _computing(step)

    def _bandwidth(self) -> Bandwidth:
        case = self._case(self._asked)
        perfect = self._pricing.perfect(case)
        factor = least_factor(
            lambda more: self._pricing.seconds(replace(case, bandwidth=more)) <= TENTH * perfect,
            precision=FINE if self._closed else ROUGH,
        )
        there = self._question.model.bandwidth(case)
        left = self._pricing.seconds(replace(case, bandwidth=UNLIMITED)) - perfect
        return Bandwidth(
            workers=self._asked,
            there=there,
            needed=None if factor is None else factor * there,
            left=max(0.0, left),
        )

    def _helps(self, knee: Reach) -> Iterator[Help]:
        yield from self._networks(knee)
        if self._pricing.explained(self._case(self._asked)).bound == "server":
            yield from self._servers()

    def _networks(self, knee: Reach) -> Iterator[Help]:
        """The slowest network that is worth it."""
        for network in self._question.networks:
            gain = self._gain(_on(self._case(self._asked), network))
            if gain < WORTH:
                continue
            yield Help(what=network.name, workers=self._asked, gain=gain, knee=self._moved(network, knee))
            return

    def _moved(self, network: Faster, knee: Reach) -> Reach | None:
        """Where the knee goes, if that is further out: where only steps are shorter, latency counts the sooner."""
        if not self._closed:
            return None
        reach, _ = pays_up_to(self._rate_on(network), min(knee.searched, CLOSE * self._asked))
        return reach if reach.workers > max(1, knee.workers) else None

    def _rate_on(self, network: Faster) -> Callable[[int], float]:
        return lambda workers: self._pricing.rate(_on(self._case(workers), network))

    def _servers(self) -> Iterator[Help]:
        """Twice as many, where a run may have them and the hosts have room for them."""
        more = 2 * self._question.servers
        if more > MOST_SERVERS:
            return
        try:
            gain = self._gain(replace(self._case(self._asked), servers=more))
        except Mistake:  # a described cluster offers so many places for servers and no more
            return
        if gain >= WORTH:
            yield Help(what=f"{more} servers", workers=self._asked, gain=gain)

    def _gathering(self) -> Gathering | None:
        """Where everybody gets everybody's messages: from where on gradients as they are would be faster."""
        gathers = self._question.gathers
        if gathers is None or isinstance(specs.build(self._strategy, STRATEGIES, "strategy"), Served):
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

    def _gain(self, better: Case) -> float:
        return self._pricing.rate(better) / self._pricing.rate(self._case(self._asked))


def _computing(step: Step) -> float:
    return step.data + step.forward + step.backward + step.apply


def _on(case: Case, network: Faster) -> Case:
    return replace(case, bandwidth=network.bandwidth, latency=network.latency)
