"""Workers of a recorded job: who waits for all goes on in step, who does not drifts apart as the record has it."""

from functools import partial

import pytest

from paceline.clusters.cluster import Device
from paceline.clusters.profile import LinkFit, Profile
from paceline.costs.recorded import RecordedStep
from paceline.costs.trace.trace import trace
from paceline.jobs.build import traceable_of
from paceline.records.spans import StepBreakdown
from paceline.studies.predict.compute import BatchTraces, ComputeTimes, NominalDevice
from paceline.studies.predict.deployment import Deployment, one_machine
from paceline.studies.predict.model import PacelineModel
from paceline.studies.predict.request import PredictRequest

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
    compute = ComputeTimes(
        level="profiled",
        words="",
        typical=RecordedStep(StepBreakdown(forward=1e-3, backward=2e-3), SAMPLES),
        device=NominalDevice(),
        traces=BatchTraces(lambda samples: trace(subject, samples)),
        jitter=jitter,
    )
    model = PacelineModel(
        request=PredictRequest(model="mlp", device="a100"),
        subject=subject,
        profile=PROFILE,
        sheet=None,
        compute=compute,
        deployment=Deployment(layout=partial(one_machine, PROFILE, "shm"), most=2, words="", spread=0.1),
        device=Device(name="here"),
    )
    return model.step(model.setup(strategy, 2, stated)).seconds


@pytest.mark.parametrize("strategy", ["ssp", "async"])
def test_workers_who_do_not_wait_vary_as_in_the_record(strategy):
    assert step(strategy, 0.1) != step(strategy, 0.0)
    assert step(strategy, 0.1, stated=0.3) == step(strategy, 0.0, stated=0.3), "what is stated counts"


@pytest.mark.parametrize("strategy", ["all-reduce", "ps", "ssp:staleness=0", "local-sgd:period=4"])
def test_workers_who_wait_for_all_do_so_in_company(strategy):
    assert step(strategy, 0.1) == step(strategy, 0.0)


def test_gloo_goes_over_the_loopback():
    shm, gloo = (partial(one_machine, PROFILE, backend) for backend in ("shm", "gloo"))
    assert shm(2, False, 0.0).hosts[0].inside.bandwidth == 4e9
    (host,) = gloo(2, False, 0.0).hosts
    assert (host.inside.bandwidth, host.backend) == (1e9, "gloo")
    assert gloo(2, True, 0.0).hosts[0].inside.bandwidth == 1e6
