"""Paceline's own cost model: traced compute on a device, the strategy's program on the links."""

from dataclasses import dataclass, field, replace
from math import exp

from paceline import specs
from paceline.clusters.cluster import CIPHER
from paceline.codecs import build_codec
from paceline.codecs.base import Identity
from paceline.costs.compression import UNCOMPRESSED, Compression, compression_of
from paceline.costs.device import StepCost
from paceline.costs.trace.trace import Trace
from paceline.runtimes.virtual.shape import JobShape
from paceline.strategies import STRATEGIES
from paceline.strategies.periods import StepPeriod, TimePeriod
from paceline.studies.predict.base import Setup, Step, Where
from paceline.studies.predict.closed import waits_for_all
from paceline.studies.predict.few import Few, few_of, slower
from paceline.studies.predict.layers import layer_table
from paceline.studies.predict.memory import Room, predict_memory
from paceline.studies.predict.model import Case
from paceline.studies.predict.places import LinkNames, Place, SyncPattern, changed
from paceline.studies.predict.prediction import Known, Layer, Memory, Wire
from paceline.studies.predict.search import holds_up_to
from paceline.studies.predict.sources import Source
from paceline.studies.predict.steps import closed, explained_step, predict_step, unexplained_step


@dataclass(frozen=True, kw_only=True)
class Modelled:
    """Compute times from a source, links from a place."""

    source: Source
    place: Place
    links: str
    """Where the links' figures are from, in words."""
    links_spread: float
    collective: str = "native"
    codec: str = "identity"
    names: LinkNames = LinkNames()
    precision: str = ""
    """In which number format the source computes, in words; empty where it was measured."""
    room: Room = Room(name="the host")
    """The memory of a worker that stands where nobody says what memory there is."""
    mixed: bool = False
    """Whether the source computes in mixed precision."""
    cipher: float = CIPHER
    """Bytes a second that a process encrypts, of what goes to servers on other hosts."""
    name: str = "paceline"
    costs: dict[int, StepCost] = field(default_factory=dict)
    """Of the source, by batch: one dictionary for all models that have it."""
    _compressions: list[Compression] = field(default_factory=list, init=False)
    _fews: dict[Case, Few] = field(default_factory=dict, init=False)
    _memories: dict[Case, Memory] = field(default_factory=dict, init=False)

    @property
    def known(self) -> Known:
        """What the source and the place rest on."""
        return Known(
            level=self.source.level,
            compute=self.source.words + _mini_batches(self.source.accumulate),
            links=self.links,
            interval=f"{self.source.doubt}; transfers likewise {exp(self.links_spread):.3g}",
            precision=self.precision,
        )

    @property
    def most(self) -> int:
        """As many as the place has room for."""
        return self.place.most

    def wire(self, case: Case, where: Where) -> Wire:
        """Among the workers, and to their servers where there are any."""
        return self.names.wire(self.place.cluster(case.workers, self._meeting(case)), where)

    def hosts(self, workers: int) -> int:
        """How many hosts so many workers stand on."""
        return self.place.hosts(workers)

    def cost(self, batch: int) -> StepCost:
        """Asked of the source once a batch."""
        if batch not in self.costs:
            self.costs[batch] = self.source.cost(batch)
        return self.costs[batch]

    def parameters(self) -> int:
        """Of whatever batch was asked for first."""
        return self.source.trace(next(iter(self.costs))).size

    def layers(self, batch: int) -> tuple[Layer, ...]:
        """Module by module."""
        trace = self.source.trace(batch)
        return layer_table(trace, self.source.timed(trace), self.source.accumulate)

    def memory(self, case: Case) -> Memory:
        """By the trace, once a case; where it does not fit, also the largest batch that does."""
        if case not in self._memories:
            self._memories[case] = self._memory(case)
        return self._memories[case]

    def _memory(self, case: Case) -> Memory:
        needed = predict_memory(self._setup(case.as_described), self.room, mixed=self.mixed)

        def needs(batch: int) -> Memory:
            """With another batch; how long it takes does not matter."""
            return needed(self.source.trace(batch))

        found = needs(case.batch)
        if found.fits:
            return found
        smaller = case.batch - 1
        largest = holds_up_to(lambda batch: needs(batch).fits, smaller).workers if smaller else 0
        largest -= largest % self.source.accumulate  # of whole mini-batches
        return replace(found, largest=largest, least=None if largest else needs(1).needed)

    def step(self, case: Case) -> Step:
        """By the closed path where there is one; what bounds it is not looked for."""
        plain = case.as_described
        few = self._few(plain)
        if few is None:
            return unexplained_step(self._setup(case))
        parts = closed(few if case == plain else _elsewhere(few, case))
        return unexplained_step(self._setup(case)) if parts is None else parts.as_step("closed")

    def explained(self, case: Case) -> Step:
        """Run the strategy's program, or its closed form, and see what it would gain most from."""
        few = self._few(case) if case == case.as_described else None
        return predict_step(self._setup(case)) if few is None else explained_step(few)

    def _few(self, case: Case) -> Few | None:
        """The kinds of hosts, found once: large clusters take their time. None where messages may be played."""
        if specs.build(case.strategy, STRATEGIES, "strategy").served:
            return None
        if case not in self._fews:
            self._fews[case] = few_of(self._setup(case))
        return self._fews[case]

    def _setup(self, case: Case) -> Setup:
        cluster = changed(self.place.cluster(case.workers, self._meeting(case)), case)
        if specs.build(case.strategy, STRATEGIES, "strategy").served:
            cluster = replace(cluster, cipher=self.cipher / case.links)
        return Setup(
            strategy=case.strategy,
            cluster=cluster,
            cost=slower(self.cost(case.batch), case.compute),
            shape=self._shape(case.batch),
            collective=self.collective,
            servers=case.servers,
            jitter=case.jitter or self._drift(case.strategy),
        )

    def _drift(self, spec: str) -> float:
        """How workers vary who do not wait for all others: as in the record, or they would never fall out of step.

        Those who meet wait for the slowest, which is measured where contention is.
        """
        strategy = specs.build(spec, STRATEGIES, "strategy")
        loose = strategy.served and not waits_for_all(strategy)
        return self.source.jitter if loose else 0.0

    def _meeting(self, case: Case) -> SyncPattern:
        strategy = specs.build(case.strategy, STRATEGIES, "strategy")
        cost = self.cost(case.batch)
        alone = cost.data + cost.compute
        match getattr(strategy, "period", StepPeriod(1)):
            case StepPeriod(count=count):
                apart = count * alone
            case TimePeriod(length=length):
                apart = max(length, alone)
        return SyncPattern(strategy.served, apart)

    def _shape(self, batch: int) -> JobShape:
        trace = self.source.trace(batch)
        return JobShape(
            name=trace.name,
            parameters=tuple(parameter.elements for parameter in trace.parameters),
            dtype=trace.dtype,
            buffers=trace.buffers,
            train_samples=1,
            test_samples=1,
            compression=self._compression(trace),
        )

    def _compression(self, trace: Trace) -> Compression:
        """Traced once: it does not depend on the batch."""
        if not self._compressions:
            codec = build_codec(self.codec)
            shapes = [parameter.shape for parameter in trace.parameters]
            whole = isinstance(codec, Identity)
            self._compressions.append(
                UNCOMPRESSED
                if whole
                else compression_of(codec, shapes, trace.dtype, self.source.timed(trace))
            )
        return self._compressions[0]


def _elsewhere(few: Few, case: Case) -> Few:
    """The same in a better or worse world."""
    return replace(few, described=changed(few.described, case), cost=slower(few.cost, case.compute))


def _mini_batches(accumulate: int) -> str:
    return f"; {accumulate} mini-batches a step" if accumulate > 1 else ""
