"""What --scale-lr, --label-smoothing and --recipe resolve to, and what they refuse."""

import json
from pathlib import Path

import pytest

from command import run_json, run_paceline
from paceline.api.recipes import follow
from paceline.cli.options import RunOptions
from paceline.errors import UsageError
from paceline.jobs.build import build_job
from paceline.jobs.spec import JobSpec
from paceline.runtimes.config import new_identity, resolved
from paceline.runtimes.prepare import prepare


def factor(workers: int = 4, **options: object) -> float:
    return prepare(RunOptions(**options).settings(workers)).rate_factor  # type: ignore[arg-type]


def test_k_counts_workers_and_accumulation_and_refers_to_one_mini_batch() -> None:
    assert factor() == 1
    assert factor(scale_lr="linear") == 4
    assert factor(scale_lr="linear", accumulate=3) == 12
    assert factor(scale_lr="sqrt") == 2
    assert factor(2, scale_lr="linear", batch_size="48,16") == 2
    assert factor(scale_lr="linear", reference_batch=256.0) == 0.5
    assert factor(scale_lr="sqrt", accumulate=8, reference_batch=256.0) == 2


def test_k_of_clients_is_that_of_one_client() -> None:
    """Each steps alone; if k counted workers, how many stand for the clients would change the result."""
    for workers in (1, 4):
        assert factor(workers, strategy="fedavg:clients=400", scale_lr="linear", accumulate=2) == 2
        assert factor(workers, strategy="fedavg:clients=4", scale_lr="linear", reference_batch=8.0) == 4


def test_a_reference_without_a_rule_is_refused() -> None:
    """If this failed, somebody would believe that it scales."""
    with pytest.raises(
        UsageError, match="a reference batch of 256 has no use where the learning rate is not scaled"
    ):
        RunOptions(reference_batch=256.0).settings(2)
    with pytest.raises(
        UsageError, match=r"a reference batch of -1\.0 is out of range: it must be more than 0"
    ):
        RunOptions(scale_lr="linear", reference_batch=-1.0).settings(2)


def test_the_reference_is_written_out_and_part_of_a_runs_identity() -> None:
    """If this failed, a run that goes on with other workers would change its learning rate."""
    scaled, plain = (RunOptions(scale_lr=rule).settings(4) for rule in ("linear", None))
    assert resolved(scaled).reference_batch == 32.0
    assert resolved(plain).reference_batch is None
    assert new_identity(scaled, run="0" * 16) != new_identity(plain, run="0" * 16)


@pytest.mark.parametrize(("smoothing", "differs"), [("0.1", True), ("0", False)])
def test_smoothed_labels_change_the_training_and_not_how_it_is_scored(
    smoothing: str, differs: bool, tmp_path: Path
) -> None:
    """One step: the model is nearly the same, so its test loss is, and the training loss is that of smoothed labels."""
    options = (
        "simulate",
        "--workers",
        "1",
        "--iterations",
        "1",
        "--lr",
        "1e-9",
        "--evaluate-every",
        "1 steps",
    )
    plain = run_json(*options, cwd=tmp_path)["rows"][0]
    smooth = run_json(*options, "--label-smoothing", smoothing, cwd=tmp_path)["rows"][0]
    assert smooth["test_loss"] == pytest.approx(plain["test_loss"], abs=1e-6)
    assert (smooth["train_loss"] != pytest.approx(plain["train_loss"], abs=1e-6)) == differs


def test_smoothing_is_refused_out_of_range_and_with_a_job_of_ones_own() -> None:
    with pytest.raises(
        UsageError, match="a label smoothing of 1 is out of range: it must be at least 0 and less"
    ):
        build_job(JobSpec(label_smoothing=1.0))
    with pytest.raises(
        UsageError, match="job='mine:build' brings its own parts, so label_smoothing has no place"
    ):
        RunOptions(job="mine:build", label_smoothing=0.1).settings(2)


def test_a_recipe_is_a_table_of_values() -> None:
    options, sentence = RunOptions(recipe="large-batch", model="resnet18", lr=0.1).with_recipe()
    assert (options.scale_lr, options.schedule, options.model, options.optimizer) == (
        "linear",
        "constant:warmup=5",
        "resnet18:zero_gamma=true",
        "sgd:momentum=0.9,nesterov=true,decay=weights",
    )
    assert options.recipe is None
    assert options.settings(2).job.optimizer.endswith("decay=weights,lr=0.1")
    assert sentence == (
        "recipe large-batch (Goyal et al., 2017) turns on: the learning rate scaled linearly with the batch, "
        "5 epochs of gradual warm-up, Nesterov momentum 0.9, no weight decay on biases and batch norm, "
        "gamma 0 in each block's last batch norm"
    )


def test_an_option_wins_over_a_recipe_and_the_sentence_says_so() -> None:
    given = {"scale_lr": "sqrt", "optimizer": "sgd:momentum=0", "schedule": "cosine:epochs=9,warmup=2"}
    changed, sentence = follow("large-batch", given)
    assert changed == {"optimizer": "sgd:momentum=0,decay=weights"}
    assert sentence == (
        "recipe large-batch (Goyal et al., 2017) turns on: no weight decay on biases and batch norm; as you gave it: "
        "scale-lr sqrt, warmup=2, momentum=0; model cnn has no zero_gamma"
    )
    changed, sentence = follow("large-batch", {"optimizer": "adam"})
    assert "optimizer" not in changed
    assert "optimizer adam has no momentum" in sentence


def test_a_recipe_for_a_job_of_ones_own_scales_its_rate_only() -> None:
    changed, sentence = follow("large-batch", {"job": "mine:build"})
    assert changed == {"scale_lr": "linear"}
    assert sentence.endswith("mine:build brings its own optimizer, job mine:build brings its own model")


def test_an_unknown_recipe_is_answered_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="unknown recipe 'large'; did you mean 'large-batch'"):
        RunOptions(recipe="large")


def test_a_live_run_says_what_a_recipe_turns_on_and_resumes_with_it(tmp_path: Path) -> None:
    options = ("train", "--recipe", "large-batch", "--model", "mlp", "--epochs")
    first = run_paceline(*options, "1", cwd=tmp_path)
    assert first.stderr.count("recipe large-batch (Goyal et al., 2017) turns on: ") == 1
    assert "learning rate 0.05 x 2 for a batch of 64 (linear)\n" in first.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    settings = json.loads((folder / "config.json").read_text())["settings"]
    assert (settings["scale_lr"], settings["reference_batch"]) == ("linear", 32.0)
    again = run_paceline(*options, "2", "--resume", str(folder), cwd=tmp_path)
    assert "resumed at step 23 of 46" in again.stdout
    refused = run_paceline("train", "--resume", str(folder), "--scale-lr", "sqrt", cwd=tmp_path, check=2)
    assert (
        "the scale lr cannot change when a run resumes: this run has linear and you gave sqrt"
        in refused.stderr
    )
