"""Whether it fits: predicted for every row, and every change that is said to fit is predicted as it would be typed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.cli.main import main
from paceline.errors import UsageError
from paceline.records.files import from_document, to_document
from paceline.reports.predict.text import text_lines
from paceline.studies.predict import predict
from paceline.studies.predict.memory import KERNELS, LOADED
from paceline.studies.predict.prediction import Memory, Prediction
from paceline.studies.predict.request import PredictRequest

WIDE = PredictRequest(model="mlp:hidden=2000000", device="t4", workers=(4,), batch_size=1024)
"""Few operators, and megabytes a sample."""
MLP = PredictRequest(model="mlp:hidden=2000,layers=2", device="epyc-7763", workers=(1,), batch_size=16)
VECTOR = 4 * (16 + 64 * 2000 + 2000 + 2000 * 2000 + 2000 + 2000 * 10 + 10)
"""Bytes of its parameters, or of its gradients: both have 16 control elements in front."""


def memory_of(words: PredictRequest, row: int = -1) -> Memory:
    memory = predict(words).series[0].rows[row].memory
    assert memory is not None
    return memory


def test_the_largest_gpt_2_does_not_fit_a_t4() -> None:
    """Predicted happily before: parameters, gradients and momentum alone are more than the T4 has."""
    prediction = predict(PredictRequest(model="gpt2-xl", device="t4", batch_size=64, workers=(1,)))
    lines = text_lines(prediction)
    assert lines[0].startswith(
        "Does not fit: a worker needs 383 GB with batch 64, NVIDIA T4 has 16.1 GB (15 GiB)"
    )
    assert "not even batch 1 fits, which needs 25" in lines[0]
    assert lines[1].startswith("With enough memory: one worker takes ")
    assert sum("does not fit (no batch does)" in line for line in lines) == 1
    (series,) = prediction.series
    assert series.findings.helps == ()
    fittings = series.findings.fits
    assert [one.change for one in fittings] == [
        (("device", "a100"), ("batch_size", "3")),
        (("device", "mi300x"), ("batch_size", "29")),
    ], "the smallest that is of use, and the one for the largest batch"
    assert all(one.needed <= 0.9 * one.capacity for one in fittings), "nothing that fits by a hair"


def test_the_largest_batch_that_fits_does_and_the_next_does_not() -> None:
    largest = memory_of(WIDE).largest
    assert largest
    assert memory_of(replace(WIDE, batch_size=largest)).fits
    assert not memory_of(replace(WIDE, batch_size=largest + 1)).fits


@pytest.mark.parametrize("accumulate", [None, 4])
@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_what_would_fit_fits_when_it_is_typed(scaling: str, accumulate: int | None) -> None:
    """Each with the memory and the rate that were promised, which are of a mini-batch and of a whole step."""
    batch = 2048 if scaling == "strong" else 1024
    words = replace(WIDE, batch_size=batch, scaling=scaling, workers=(2,), accumulate=accumulate)
    fittings = predict(words).series[0].findings.fits
    assert [one.change[0][0] for one in fittings] == [
        "batch_size",
        "precision",
        "device",
        "device",
    ]
    for one in fittings:
        changes = {name: int(value) if name == "batch_size" else value for name, value in one.change}
        row = predict(replace(words, **changes)).series[0].rows[0]
        assert row.fits
        assert row.memory is not None
        assert (row.memory.needed, row.rate) == pytest.approx((one.needed, one.rate))


def test_nothing_is_recommended_that_does_not_fit() -> None:
    """Four times the batch would help most, and it does not fit: twice the batch does."""
    slow = replace(WIDE, batch_size=200, codecs=("half",))  # so that no other codec is recommended
    roomy = replace(slow, memory="200 GB")
    found = [[one.change[0] for one in predict(words).series[0].findings.helps] for words in (slow, roomy)]
    assert [dict(helps)["batch_size"] for helps in found] == [
        "400",
        "800",
    ]


def test_a_workers_parts_by_hand() -> None:
    memory = memory_of(MLP)
    assert (memory.parameters, memory.gradients) == (VECTOR, VECTOR)
    assert memory.optimizer == VECTOR - 64
    assert memory.base == LOADED + KERNELS
    assert memory.exchange == 0
    parts = memory.parameters + memory.gradients + memory.optimizer + memory.activations
    assert memory.total == parts + memory.workspace + memory.exchange + memory.base


@pytest.mark.parametrize(("optimizer", "state"), [("sgd:momentum=0", 0), ("sgd", 1), ("adam", 2)])
def test_memory_grows_with_the_batch_from_the_state_on(optimizer: str, state: int) -> None:
    """Parameters, gradients and the optimizer's state are the floor of every batch."""
    totals = [
        memory_of(replace(MLP, optimizer=optimizer, batch_size=batch)).total for batch in (1, 2, 5, 64, 300)
    ]
    assert totals == sorted(set(totals))
    assert totals[0] > (2 + state) * (VECTOR - 64)


def test_servers_keep_the_optimizers_state() -> None:
    """Two of them: each has half of parameters, gradients and both moments, after it had the whole model."""
    words = replace(
        MLP, strategies=("ps",), servers=2, workers=(2,), per_host=2, optimizer="adam", memory="64 GB"
    )
    memory = memory_of(words)
    assert memory.optimizer == 0
    assert memory.server == LOADED + max(2 * VECTOR, (2 * VECTOR + 2 * (VECTOR - 64)) / 2)
    assert memory.needed == pytest.approx(2 * memory.total + 2 * memory.server)
    apart = memory_of(replace(words, per_host=None))
    assert apart.exchange == 2 * VECTOR  # a gradient that goes, parameters that come
    assert apart.server is not None
    assert apart.server == LOADED + (4 * VECTOR - 2 * 64) / 2 + 2 * 2 * VECTOR / 2


def test_workers_of_a_cpu_share_the_memory_of_their_host() -> None:
    words = replace(MLP, workers=(1, 8), per_host=8, memory="2 GB")
    alone, eight = (memory_of(words, row) for row in (0, 1))
    assert alone.fits
    assert not eight.fits
    assert eight.needed == pytest.approx(8 * eight.total)
    assert text_lines(predict(words))[0].startswith(
        "Does not fit with 8 workers by all-reduce: the workers of a host need"
    )
    unknown = memory_of(MLP)
    assert unknown.capacity is None
    assert unknown.fits


def test_codecs_take_memory() -> None:
    """Top-k has the sizes of all numbers beside them, and a memory; messages that are gathered come to everybody."""
    plain, kept, coded, more = (
        memory_of(replace(MLP, codecs=(codec,), workers=(workers,), per_host=64, optimizer="sgd:momentum=0"))
        for codec, workers in (
            ("identity", 4),
            ("top-k:memory=none", 4),
            ("top-k", 4),
            ("dgc:ratio=0.01", 64),
        )
    )
    assert plain.exchange == 0 < kept.exchange < coded.exchange < more.exchange
    assert coded.exchange - kept.exchange == pytest.approx(VECTOR, rel=0.01)


def test_mixed_precision_narrows_activations_only() -> None:
    """Parameters, gradients and the optimizer's state stay in 32 bits."""
    words = PredictRequest(model="cnn", device="t4", workers=(1,), batch_size=512)
    whole, mixed = memory_of(words), memory_of(replace(words, precision="fp16"))
    assert (mixed.parameters, mixed.gradients, mixed.optimizer) == (
        whole.parameters,
        whole.gradients,
        whole.optimizer,
    )
    assert 0.45 < mixed.activations / whole.activations < 0.8


def test_a_cluster_file_states_memory(tmp_path: Path) -> None:
    """The host with least to spare decides; one of the catalogue has its own."""
    file = tmp_path / "lab.toml"
    old = '[[hosts]]\nname = "old"\nworkers = 1\ndevice = "t4"\nbandwidth = "10 Gbit/s"\n'
    new = '[[hosts]]\nname = "new"\nworkers = 1\ndevice = "a10"\nmemory = "1 GiB"\nbandwidth = "10 Gbit/s"\n'
    file.write_text(old + new)
    words = PredictRequest(model="mlp:hidden=2000,layers=2", cluster=str(file), batch_size=2000)
    one, two = (memory_of(words, row) for row in (0, 1))
    assert (one.device, one.fits) == ("NVIDIA T4", True)
    assert (two.device, two.capacity, two.fits) == ("NVIDIA A10", 2**30, False)


@pytest.mark.parametrize("memory", ["0 GB", "much"])
def test_memory_that_is_none_is_refused(memory: str) -> None:
    with pytest.raises(UsageError, match=memory):
        predict(replace(MLP, memory=memory))


def test_a_document_has_the_memory_and_one_without_can_be_read() -> None:
    prediction = predict(replace(MLP, memory="64 GB"))
    document = json.loads(json.dumps(to_document(prediction)))
    assert from_document(document, Prediction).series == prediction.series
    for row in document["series"][0]["rows"]:
        del row["memory"]
    del document["series"][0]["findings"]["fits"]
    assert from_document(document, Prediction).series[0].rows[0].memory is None


def test_the_command_says_so_first_and_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "mlp:hidden=2000000", "--device", "t4", "-b", "2000", "--workers", "1"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Does not fit: ")
    assert "What would fit: --batch-size" in shown
