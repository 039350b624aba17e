"""What several learners a worker cost: in turn, together, and as many as the model finds."""

from dataclasses import replace

import pytest
from predict_setups import COST, SHAPE, make_setup

from paceline.errors import UsageError
from paceline.strategies.base import LearnerPlan
from paceline.studies.predict import PredictRequest, predict
from paceline.studies.predict.model import find_model
from paceline.studies.predict.step import predict_step

REQUEST = PredictRequest(model="cnn", device="v100", network="10gbit", workers=(1, 2), batch_size=4)


def test_a_step_of_four_learners_has_their_samples_and_sends_one_vector() -> None:
    four = make_setup(
        2, "sma:learners=4,compute=in-turn", cost=replace(COST, samples=128, step=COST.step * 4)
    )
    step = predict_step(four)
    assert step.breakdown.compute == pytest.approx(4 * COST.step.compute)
    assert step.rate == pytest.approx(2 * 128 / step.seconds)
    assert step.sent == pytest.approx(4 * SHAPE.size, rel=1e-3), "a sum of one vector, whatever the learners"


def test_learners_in_turn_take_as_many_gradients_and_together_fewer_calls() -> None:
    compute = find_model(REQUEST).compute
    one = compute.cost(4).step
    in_turn, together = (
        compute.cost_with(LearnerPlan(count=4, compute=way), 4) for way in ("in-turn", "together")
    )
    assert in_turn.samples == together.samples == 16
    assert in_turn.step.forward == pytest.approx(4 * one.forward)
    assert in_turn.step.backward == pytest.approx(4 * one.backward)
    assert one.apply < in_turn.step.apply <= 4 * one.apply
    assert one.compute < together.step.compute < in_turn.step.compute, "a GPU waits for its calls"


def test_auto_takes_as_many_learners_as_raise_the_modelled_throughput() -> None:
    wide = find_model(replace(REQUEST, strategies=("sma:learners=auto",)))
    (spec,) = wide.strategies
    assert spec.startswith("sma:learners=")
    assert "auto" not in spec
    few = find_model(replace(REQUEST, strategies=("sma:learners=auto",), samples=25, epochs=1))
    assert few.strategies == ("sma:learners=4,compute=together",), (
        "there is no data for 8 learners of 4 samples"
    )


def test_the_prediction_names_what_was_decided_and_counts_every_model() -> None:
    request = replace(REQUEST, strategies=("all-reduce", "sma:learners=4"))
    plain, averaged = predict(request).series
    assert averaged.strategy == "sma:learners=4,compute=together"
    assert averaged.rows[1].samples == 4 * plain.rows[1].samples
    assert averaged.rows[0].rate > plain.rows[0].rate
    assert averaged.rows[0].memory.parameters == pytest.approx(4 * plain.rows[0].memory.parameters)


def test_a_codec_for_corrections_is_refused() -> None:
    with pytest.raises(UsageError, match=r"codec 'int8' cannot be used with several learners .* learners=1"):
        replace(REQUEST, strategies=("sma",), codecs=("int8",))
