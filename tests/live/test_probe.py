"""What is measured before the first step: enough for a prediction, and without a trace in the training."""

import json
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import engine_jobs
import pytest
import torch

from command import run_json, run_paceline
from paceline.codecs.reduction import NotFinite
from paceline.records.files import from_document, read_json
from paceline.records.folder import RunFolder
from paceline.records.summary import Probe
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.runtimes.live.worker.probe import SUMS, _attempt, _time_sums
from paceline.studies.predict.forecast import RunForecast
from paceline.units import show_seconds
from run_folders import checkpoints_of


@pytest.fixture(scope="module")
def out(run_ranks: Callable[..., Path]) -> Path:
    return run_ranks("probe_pair.py")


def saved(out: Path, name: str, rank: int) -> dict[str, Any]:
    (path,) = (out / name).iterdir()
    return checkpoints_of(RunFolder(path)).load(6, rank)


def noted(out: Path, name: str) -> dict[str, Any]:
    return json.loads((out / f"{name}-0.json").read_text())


def assert_same(one: Any, other: Any, where: str = "") -> None:
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    else:
        assert one == other, where


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["gradients", "differences"])
def test_a_run_that_is_measured_equals_one_that_is_not_to_the_last_bit(
    out: Path, name: str, rank: int
) -> None:
    """Parameters, buffers, optimizer, error memory, loss and random streams; measured twice, as the run was resumed."""
    measured, other = saved(out, f"{name}-measured", rank), saved(out, f"{name}-not", rank)
    assert measured["replica"]["rng"].keys() == {"torch", "python", "numpy"}
    measured["worker"]["now"] = other["worker"]["now"]
    assert_same(measured, other)


def test_a_worker_that_is_slowed_down_is_measured_as_slow_as_it_is(out: Path) -> None:
    probe = from_document(noted(out, "slowed")["probe"], Probe)
    fast, slow = probe.steps
    assert slow.compute > 3 * fast.compute, "20 times, where nothing else goes on"
    sizes = [p.numel() for p in engine_jobs.wide().model().parameters()]
    assert [torch.Size(shape).numel() for shape in probe.shapes] == sizes
    (small, _), (large, seconds) = probe.sums
    assert small < large <= 2**22
    assert 0 < seconds < 2
    assert probe.coding > 0
    assert len(probe.ready) == len(sizes)
    assert max(probe.ready) == 1 > min(probe.ready) > 0
    assert probe.ready[0] > probe.ready[-1], "backward comes to the first layer last"


def test_what_cannot_be_measured_is_told_and_the_run_goes_on(out: Path) -> None:
    found = noted(out, "uncopied")
    assert found["probe"] is None
    assert found["told"] == [
        "what to expect of a step cannot be said: TypeError: this model cannot be copied"
    ]
    assert saved(out, "uncopied", 0)["position"]


def failing(error: Exception) -> Callable[[], None]:
    def task() -> None:
        raise error

    return task


def test_why_it_failed_is_told_in_our_words_and_with_the_type_of_a_users_error() -> None:
    assert _attempt(failing(NotFinite("3 of 4 elements are nan"))) == (None, "3 of 4 elements are nan")
    assert _attempt(failing(KeyError("label"))) == (None, "KeyError: 'label'")


TRAIN = ("train", "--model", "cnn", "--backend", "gloo", "--threads", "1", "--evaluate-every", "never")


def test_the_prediction_is_told_and_kept_before_the_first_step_and_compared_after_the_last(
    tmp_path: Path,
) -> None:
    text = run_paceline(*TRAIN, "--codec", "int8", "-i", "30", cwd=tmp_path).stdout.splitlines()
    (expected,) = [line for line in text if line.startswith("expected: ")]
    assert text.index(expected) < 6, "below the header"
    assert "without a codec (" in expected
    assert "; int8 pays (1 % or more) " in expected or expected.endswith("; the link could not be measured")
    seconds = expected.removeprefix("expected: ").partition(",")[0]
    scored = f"; expected with int8 were {seconds.removesuffix(' a step')} ("
    assert any(scored in line for line in text), "after the table"
    (path,) = (tmp_path / "runs").iterdir()
    kept = from_document(read_json(RunFolder(path).prediction), RunForecast).codec
    assert (kept.coded.codec, kept.comparison.workers) == ("int8", 2)
    assert show_seconds(kept.coded.step) in seconds
    run_paceline("train", "--resume", str(path), "-i", "60", cwd=tmp_path)
    again = from_document(read_json(RunFolder(path).prediction), RunForecast).codec
    assert again.probe.sums != kept.probe.sums, "a run that goes on is measured again"


def test_what_a_step_sends_is_as_long_as_messages_of_its_gradients_where_only_data_tell(
    tmp_path: Path,
) -> None:
    """About, since messages of several parameters that go together are as long as the longest worker's."""
    codec = "threshold:bound=0.01,memory=none"
    document = run_json(*TRAIN, "--codec", codec, "-i", "1", cwd=tmp_path)
    expected = from_document(document["prediction"], RunForecast).codec.coded.sent
    totals = document["summary"]["totals"][0]
    assert 0.8 * expected < totals["step_sent"] < 1.1 * expected
    assert 0 < document["summary"]["coding"] < sum(totals["seconds"].values())


class Counted(SoloComm):
    """Small sums take as long as large ones, in their place among all."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def sum(self, tensor: torch.Tensor) -> None:
        self.sizes.append(tensor.nbytes)
        sleep(0.002)


def test_small_and_large_sums_take_turns() -> None:
    comm = Counted()
    (small, _), (large, _) = _time_sums(comm, torch.zeros(2**20))
    turns = comm.sizes[comm.sizes.index(large) + 1 :]
    assert turns == [small, large] * SUMS


def test_what_is_expected_is_near_to_what_is_measured(tmp_path: Path) -> None:
    """By a factor of two, once: others may use this machine. How near it is, is for benchmarks."""
    ratios = []
    for _ in range(3):
        words = (
            "--data",
            "synthetic",
            "--model",
            "resnet18",
            "-b",
            "2",
            "-i",
            "8",
            "--checkpoint-every",
            "never",
        )
        document = run_json("train", "--codec", "half", "--evaluate-every", "never", *words, cwd=tmp_path)
        assert document["run"]["probe"] is None
        expected = from_document(document["prediction"], RunForecast).codec.coded.step
        measured = [one["typical"] for one in document["summary"]["totals"]]
        steps = [sum(one[part] for part in one if part != "hidden") for one in measured]
        ratios.append(sum(steps) / len(steps) / expected)
        if 0.5 < ratios[-1] < 2:
            return
    pytest.fail(f"measured over expected: {ratios}")


def test_a_run_without_a_codec_predicts_nothing(tmp_path: Path) -> None:
    document = run_json(*TRAIN, "-i", "5", cwd=tmp_path)
    assert document["prediction"] is None
    assert document["summary"]["coding"] is None
    (path,) = (tmp_path / "runs").iterdir()
    assert not RunFolder(path).prediction.exists()
