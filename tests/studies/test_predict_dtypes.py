"""A module is predicted in its own dtype, and the text says which; what nothing is known of is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import paceline
from paceline.costs.trace.trace import trace
from paceline.errors import UsageError
from paceline.jobs.build import traceable_of
from paceline.studies.predict.compute import BatchTraces, ComputeTimes, NominalDevice, precision_words
from paceline.studies.predict.request import PredictRequest

SIDE = 2048


class Adapted(nn.Module):
    """A frozen part in bfloat16, and a head in float32 that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(SIDE, SIDE, dtype=torch.bfloat16).requires_grad_(False)
        self.head = nn.Linear(SIDE, SIDE)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.frozen(inputs.bfloat16()).float())


def net(dtype: torch.dtype) -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(SIDE, SIDE), nn.ReLU(), nn.Linear(SIDE, SIDE)).to(dtype)


def predicted(model: nn.Module | torch.dtype, **settings):
    made = net(model) if isinstance(model, torch.dtype) else model
    words = {"device": "a100", "batch_size": 2048, "workers": [1], "input": (SIDE,)} | settings
    return paceline.predict(made, **words).value


def computing(found) -> tuple[float, float]:
    parts = found.series[0].rows[0].breakdown
    return parts.forward, parts.backward


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_module_computes_as_quickly_as_mixed_precision(dtype):
    narrow, wide = predicted(dtype), predicted(torch.float32)
    mixed = predicted(torch.float32, precision="bf16")
    assert computing(narrow) == pytest.approx(computing(mixed), rel=0.01)
    assert computing(narrow)[0] < computing(wide)[0] / 8


@pytest.mark.parametrize(
    ("dtype", "precision", "says"),
    [
        (torch.bfloat16, None, ("BF16, the model's own dtype", None)),
        (torch.bfloat16, "torch", ("BF16, the model's own dtype", None)),
        (torch.bfloat16, "bf16", ("BF16, the model's own dtype", None)),
        (torch.float16, None, ("FP16, the model's own dtype", None)),
        (torch.float32, "bf16", ("BF16 mixed precision", None)),
    ],
)
def test_the_precision_is_that_of_the_module_and_no_lower_one_is_offered(dtype, precision, says):
    basis = predicted(dtype, precision=precision).basis
    assert (basis.precision, basis.faster_precision) == says


def test_the_precision_that_is_the_modules_own_changes_nothing():
    usual, asked = predicted(torch.bfloat16), predicted(torch.bfloat16, precision="bf16")
    assert asked.series[0].rows == usual.series[0].rows


def test_each_part_of_a_module_counts_in_its_own_dtype():
    usual, mixed = predicted(Adapted()), predicted(Adapted(), precision="bf16")
    assert usual.basis.precision == (
        "FP32 with TF32 tensor cores in convolutions (PyTorch's default), BF16 where the model's own tensors are"
    )
    gain = sum(computing(usual)) / sum(computing(mixed))
    assert usual.basis.faster_precision == ("bf16", pytest.approx(gain, rel=0.2))
    assert mixed.basis.precision == "BF16 mixed precision"
    assert (
        computing(predicted(torch.bfloat16))[0] < computing(usual)[0] < computing(predicted(torch.float32))[0]
    )


@pytest.mark.parametrize(
    ("dtype", "settings", "says"),
    [
        (
            torch.float64,
            {},
            r"no float64 peak of a100, and module '0' of 'Sequential' .* with \.float\(\), or train it",
        ),
        (torch.float64, {"device": "epyc-7763"}, "no float64 peak of epyc-7763"),
        (
            torch.bfloat16,
            {"device": "v100"},
            "no bfloat16 peak of v100.*, or choose a device .* such as a10$",
        ),
        (torch.bfloat16, {"precision": "tf32"}, "precision tf32 does not go with .* own dtype is bfloat16"),
        (torch.float16, {"precision": "bf16"}, "precision bf16 does not go with .* own dtype is float16"),
        (
            torch.bfloat16,
            {"cost_model": "paleo"},
            "numbers of 32 bits only, and 'Sequential' computes in bfloat16",
        ),
        (
            torch.float64,
            {"cost_model": "paleo"},
            "numbers of 32 bits only, and 'Sequential' computes in float64",
        ),
    ],
)
def test_what_nothing_is_known_of_is_refused_in_a_sentence(dtype, settings, says):
    with pytest.raises(UsageError, match=says):
        predicted(dtype, **settings)


def subject(dtype: torch.dtype):
    return replace(
        traceable_of("mlp:hidden=16"),
        name="net",
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).to(dtype),
        batch=lambda samples: (torch.zeros(samples, 4, dtype=dtype), torch.zeros(samples, dtype=torch.int64)),
    )


def times_of(level: str, dtype: torch.dtype) -> ComputeTimes:
    traces = BatchTraces(lambda samples: trace(subject(dtype), samples))
    return ComputeTimes(level=level, words="", device=NominalDevice(), traces=traces)


@pytest.mark.parametrize(
    ("dtype", "fix"),
    [(torch.bfloat16, "give a device"), (torch.float64, "train it on one worker and give that run as times")],
)
def test_a_profile_which_is_measured_in_float32_says_nothing_of_other_dtypes(dtype, fix):
    times_of("calibrated", torch.float32).cost(8)
    says = f"a profile is measured in float32, and module '1' of 'net' computes in .*; .*{fix}"
    with pytest.raises(UsageError, match=says):
        times_of("calibrated", dtype).cost(8)
    times_of("profiled", dtype).cost(8)  # the run computed in it


@pytest.mark.parametrize(
    ("dtype", "precision", "said"),
    [
        (torch.float32, "fp32", ""),
        (torch.float32, "bf16", "BF16 mixed precision, as in that run"),
        (torch.float64, "fp32", "FP64, the model's own dtype"),
    ],
)
def test_the_times_of_a_run_are_those_of_its_precision(dtype, precision, said):
    request, ours = PredictRequest(times=Path("runs/one")), replace(subject(dtype), precision=precision)
    assert precision_words(request, None, ours, trace(ours, 4)) == said
