"""Predictions of strategies whose workers train clients."""

import pytest
from predict_setups import make_setup

from paceline.errors import UsageError
from paceline.studies.predict.request import PredictRequest
from paceline.studies.predict.step import find_bounds, predict_step, quick_seconds


def test_even_clients_of_whole_batches_are_local_sgd_of_as_many_steps() -> None:
    """5 mini-batches of 32 each between two averages of the parameters."""
    federated = predict_step(make_setup(4, "fedavg", samples=640))
    local = predict_step(make_setup(4, "local-sgd:period=5"))
    assert federated.seconds == pytest.approx(local.seconds, rel=1e-6)
    assert federated.sent == pytest.approx(local.sent)
    assert federated.rate == pytest.approx(local.rate)


def test_more_local_epochs_and_larger_samples_spread_the_exchange_over_more_steps() -> None:
    spec = "fedavg:clients=16,sample={},epochs={}"
    once, twice, both = (
        predict_step(make_setup(4, spec.format(*one), samples=16 * 32)).breakdown.communicate
        for one in ((4, 1), (4, 2), (8, 2))
    )
    assert once == pytest.approx(2 * twice) == pytest.approx(4 * both)


def test_uneven_clients_make_workers_wait() -> None:
    even, uneven = (
        predict_step(make_setup(4, f"fedavg:clients=32,sample=4,uneven={spread}", samples=32 * 320))
        for spread in (0, 0.8)
    )
    assert even.breakdown.wait == pytest.approx(0, abs=1e-9)
    assert uneven.breakdown.wait > 0.2 * uneven.seconds
    assert uneven.rate < 0.8 * even.rate


def test_one_worker_and_bounds() -> None:
    alone = make_setup(1, "fedavg:clients=4", samples=640)
    assert predict_step(alone).seconds == pytest.approx(alone.cost.step.total)
    setup = make_setup(4, "fedavg", samples=128)
    assert quick_seconds(setup) == pytest.approx(predict_step(setup).seconds)
    assert find_bounds(setup).besides == "bandwidth"


def test_what_must_be_known_is_asked_for() -> None:
    with pytest.raises(UsageError, match=r"divides the training data among clients.*give epochs and samples"):
        predict_step(make_setup(2, "fedavg"))
    request = PredictRequest(
        model="mlp", device="v100", strategies=("fedavg:clients=9,sample=3",), workers=(2, 4)
    )
    with pytest.raises(UsageError, match="has work for at most 3 workers, and this run has 4"):
        request.counts(100)
