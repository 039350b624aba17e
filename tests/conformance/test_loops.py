"""The equalities of the table for a script's own loop: it is one more way of training the same job."""

import shlex
from itertools import groupby
from pathlib import Path

import pytest
import torch

from command import run_json
from loop.pairs import run_in_turn
from paceline.records.tensors import read_tensors

AS_LOOP = str(Path(__file__).parent / "as_loop.py")
STEPS, HALF = 15, 7

SPECS = (
    "all-reduce",
    "all-reduce:bucket=20000,first-bucket=4000",
    "local-sgd:period=1",
    "local-sgd:period=4",
    "diloco:period=6,overlap=3,fragments=2",
    "post-local:switch=5,period=3",
    "sma:learners=1",
    "sma:learners=2",
    "easgd:learners=3,period=3",
)
RESUMED = (
    ("all-reduce", "top-k:ratio=0.1"),
    ("local-sgd:period=4", "sign"),
    ("diloco:period=6,overlap=3,fragments=2", "identity"),
    ("sma:learners=2", "identity"),
)
ALONE = ("all-reduce", "local-sgd:period=5", "sma:learners=1")

Run = tuple[int, str, str, int, int, int]
"""Workers, strategy, codec, batch of a worker, and the steps from and to which it goes."""


def learners_of(spec: str) -> int:
    return int(spec.partition("learners=")[2].partition(",")[0] or 1)


def rows(spec: str) -> int:
    """Of a worker's mini-batch, 6 for each learner."""
    return 6 * learners_of(spec)


RUNS: list[Run] = [
    *((2, spec, "identity", rows(spec), 0, STEPS) for spec in SPECS),
    (2, "all-reduce", "top-k:ratio=1", 6, 0, STEPS),
    *((1, spec, "identity", 12, 0, STEPS) for spec in ALONE),
]
for _spec, _codec in RESUMED:
    RUNS += [(2, _spec, _codec, rows(_spec), *part) for part in ((0, HALF), (HALF, STEPS))]
    if _codec != "identity":
        RUNS.append((2, _spec, _codec, rows(_spec), 0, STEPS))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """What every run ended with; those of as many workers share their processes."""
    folder = tmp_path_factory.mktemp("loops")
    found = {}
    for workers, runs in groupby(sorted(RUNS, key=lambda run: run[0]), key=lambda run: run[0]):
        own = list(runs)
        # A resumed run finds what the first part has saved under the same name.
        outs = [
            folder
            / f"{workers}-{codec}-{spec}{'-part' if (first, last) != (0, STEPS) else ''}".replace(":", "_")
            for _, spec, codec, _, first, last in own
        ]
        scripts = [
            shlex.join([AS_LOOP, spec, codec, str(batch), str(first), str(last), str(out)])
            for (_, spec, codec, batch, first, last), out in zip(own, outs, strict=True)
        ]
        run_in_turn(scripts, folder, workers)
        found |= {run: torch.load(out) for run, out in zip(own, outs, strict=True) if run[-1] == STEPS}
    return found


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], tolerance: float = 1e-6) -> bool:
    return one.keys() == other.keys() and all(
        torch.allclose(one[name], other[name], rtol=0, atol=tolerance) for name in one
    )


def simulated(spec: str, workers: int, batch: int, folder: Path) -> dict[str, torch.Tensor]:
    document = run_json(
        *("simulate", "--strategy", spec, "--workers", str(workers), "--batch-size", str(batch)),
        *("--iterations", str(STEPS)),
        cwd=folder,
    )
    found: dict[str, torch.Tensor] = read_tensors(folder / document["run"]["folder"] / "model.safetensors")
    return found


@pytest.mark.parametrize("spec", SPECS)
def test_a_loop_is_the_job_with_the_same_data_and_seed(spec, models, tmp_path):
    assert close(models[2, spec, "identity", rows(spec), 0, STEPS], simulated(spec, 2, 6, tmp_path))


@pytest.mark.parametrize("spec", ALONE)
def test_one_worker_is_plain_training(spec, models, tmp_path):
    assert close(models[1, spec, "identity", 12, 0, STEPS], simulated("all-reduce", 1, 12, tmp_path))


def test_workers_that_share_a_batch_are_one_worker_with_the_whole(models):
    two, one = (models[n, "all-reduce", "identity", 12 // n, 0, STEPS] for n in (2, 1))
    assert close(two, one, 2e-6)


def test_a_codec_at_full_rate_changes_nothing(models):
    full, plain = (models[2, "all-reduce", codec, 6, 0, STEPS] for codec in ("top-k:ratio=1", "identity"))
    assert close(full, plain)


@pytest.mark.parametrize(("spec", "codec"), RESUMED)
def test_a_resumed_loop_is_the_loop_that_never_stopped(spec, codec, models):
    through, resumed = (models[2, spec, codec, rows(spec), first, STEPS] for first in (0, HALF))
    assert all(torch.equal(through[name], resumed[name]) for name in through)
