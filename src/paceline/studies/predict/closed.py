"""A step by the closed path: one worker of each kind stands for all of its kind, so 100,000 cost what one costs."""

from dataclasses import replace

from paceline.costs.folded import Fold, fold, folded_costs
from paceline.runtimes.virtual.folded import FoldedRun
from paceline.strategies.base import Served, Strategy
from paceline.strategies.parameter_server import Synchronous
from paceline.studies.predict.base import Setup
from paceline.studies.predict.events import (
    Notes,
    Weighted,
    check_steps,
    long_run,
    settings_of,
    shape_of,
    timed,
)
from paceline.studies.predict.parts import Parts


def in_step(setup: Setup, strategy: Strategy) -> bool:
    """Whether all workers of a kind do the same at the same time, so that one of them can stand for all."""
    if any(host.comings_and_goings for host in setup.cluster.hosts):
        return False
    if not isinstance(strategy, Served):
        return True
    # What a server spends on each message depends on how they come in, one by one.
    return isinstance(strategy, Synchronous) and not strategy.backup and not setup.cluster.times.serve


def by_folding(setup: Setup, strategy: Strategy) -> Parts:
    """The step of workers that do not vary."""
    still = replace(setup, jitter=0.0)
    folding, places = _fold(setup, strategy)
    kinds = [kind for kind in folding.kinds if kind.workers]
    costs = folded_costs(timed(still), folding, setup.cost.samples)

    def simulated(steps: int) -> Weighted:
        check_steps(setup, steps)
        notes, settings = Notes(), settings_of(setup, len(kinds), steps)
        FoldedRun(settings, shape_of(setup, settings), folding, places, costs, strategy, notes).run()
        return [(notes.steps[rank], kind.workers) for rank, kind in enumerate(kinds)]

    return long_run(still, strategy, simulated, len(kinds))


def _fold(setup: Setup, strategy: Strategy) -> tuple[Fold, list[int]]:
    """The kinds of hosts, and on which of them the servers stand."""
    if not isinstance(strategy, Served):
        return fold(setup.cluster), []
    hosts = setup.cluster.place_servers(setup.servers)
    folding = fold(setup.cluster, set(hosts))
    kinds = {kind.place: number for number, kind in enumerate(folding.kinds)}
    return folding, [kinds[host] for host in hosts]
