"""Workers of a recorded job: who waits for all goes on in step, who does not drifts apart as the record has it."""

import pytest

from paceline.clusters.cluster import StepTimes
from paceline.clusters.profile import LinkFit, Profile
from paceline.costs.recorded import Typical
from paceline.costs.trace.trace import trace
from paceline.jobs.build import traceable_of
from paceline.studies.predict.batches import Batches
from paceline.studies.predict.machine import Machine
from paceline.studies.predict.model import Case
from paceline.studies.predict.modelled import Modelled
from paceline.studies.predict.places import SyncPattern
from paceline.studies.predict.sources import Nominal, Recorded

SAMPLES = 4


def link(name: str, bandwidth: float) -> LinkFit:
    return LinkFit(name=name, bandwidth=bandwidth, latency=1e-4, spread=0.1, points=9)


PROFILE = Profile(
    name="here",
    made="now",
    versions={},
    machine={},
    device={},
    links=(link("memory", 4e9), link("loopback", 1e9), link("messages", 1e6)),
)


def step(strategy: str, jitter: float, stated: float = 0.0) -> float:
    """Of two workers, of whom the server is the limit."""
    subject = traceable_of("mlp", shape=(1, 8, 8), classes=10)
    source = Recorded(
        typical=Typical(StepTimes(forward=1e-3, backward=2e-3), SAMPLES),
        folder="there",
        device=Nominal(),
        batches=Batches(lambda samples: trace(subject, samples)),
        jitter=jitter,
    )
    model = Modelled(source=source, place=Machine(PROFILE), links="", links_spread=0.1)
    case = Case(strategy=strategy, workers=2, batch=SAMPLES, total=2 * SAMPLES, jitter=stated)
    return model.explained(case).step


@pytest.mark.parametrize("strategy", ["ssp", "async"])
def test_workers_who_do_not_wait_vary_as_in_the_record(strategy):
    assert step(strategy, 0.1) != step(strategy, 0.0)
    assert step(strategy, 0.1, stated=0.3) == step(strategy, 0.0, stated=0.3), "what is stated counts"


@pytest.mark.parametrize("strategy", ["all-reduce", "ps", "ssp:staleness=0", "local-sgd:period=4"])
def test_workers_who_wait_for_all_do_so_in_company(strategy):
    assert step(strategy, 0.1) == step(strategy, 0.0)


def test_gloo_goes_over_the_loopback():
    shm, gloo = Machine(PROFILE), Machine(PROFILE, "gloo")
    assert shm.cluster(2, SyncPattern()).hosts[0].inside.bandwidth == 4e9
    (host,) = gloo.cluster(2, SyncPattern()).hosts
    assert (host.inside.bandwidth, host.backend) == (1e9, "gloo")
    assert gloo.cluster(2, SyncPattern(served=True)).hosts[0].inside.bandwidth == 1e6
