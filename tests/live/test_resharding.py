"""A run goes on with another number of workers: on real runs of one host."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch

from command import run_json, run_paceline
from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec
from paceline.records import folder as folder_module
from paceline.records.folder import RunFolder, check_writable
from paceline.records.summary import Observer
from paceline.records.tensors import read_tensors
from paceline.runtimes.config import read_config, write_config
from paceline.runtimes.live.launcher.launch import environments
from paceline.runtimes.live.launcher.processes import LaunchPlan
from paceline.runtimes.live.launcher.resharding import reshard, with_workers
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.request import LiveOptions, TrainRequest
from paceline.runtimes.settings import Settings
from run_folders import checkpoints_of

TRAIN = (
    "train",
    "--model",
    "mlp",
    "-b",
    "24",
    "--checkpoint-every",
    "10 steps",
    "--evaluate-every",
    "10 steps",
)


def train(*words: str, home: Path) -> Path:
    """The run folder of a training."""
    return home / run_json(*words, cwd=home)["run"]["folder"]


def weights(run: Path) -> torch.Tensor:
    """The model that the run has exported."""
    return torch.cat([tensor.flatten() for tensor in read_tensors(run / "model.safetensors").values()])


@pytest.mark.parametrize("workers", [1, 3])
def test_the_model_is_the_one_of_a_run_that_never_changed(tmp_path, workers):
    whole = train(*TRAIN, "-i", "30", home=tmp_path)
    first = train(*TRAIN, "-i", "20", home=tmp_path)
    before = {
        path: path.read_bytes() for path in first.rglob("*") if path.is_file() and "lock" not in path.name
    }
    last = train("train", "--resume", str(first), "--workers", str(workers), "-i", "30", home=tmp_path)
    assert last != first
    # The same global batches, cut differently: nothing but the order of sums differs.
    torch.testing.assert_close(weights(last), weights(whole), rtol=1e-4, atol=1e-6)
    assert {path: path.read_bytes() for path in before} == before, "the old folder must stay as it is"
    steps = [json.loads(line)["step"] for line in (last / "metrics.jsonl").read_text().splitlines()]
    assert steps == [10, 20, 30], "the curve goes on from the old one"
    assert read_config(RunFolder(last)).origin == f"{first.name}, step 20"


@pytest.mark.parametrize("strategy", ["ps", "ssp:staleness=2", "local-sgd:period=4"])
def test_other_strategies_go_on_and_resume_once_more(tmp_path, strategy):
    first = train(*TRAIN, "--strategy", strategy, "-i", "20", home=tmp_path)
    second = train("train", "--resume", str(first), "--workers", "3", "-i", "30", home=tmp_path)
    third = train("train", "--resume", "latest", "-i", "40", home=tmp_path)
    assert third == second
    losses = [json.loads(line)["test_loss"] for line in (third / "metrics.jsonl").read_text().splitlines()]
    assert len(losses) == 4
    assert max(losses[1:]) < losses[0], "the model is no longer the one that was trained"


@pytest.mark.parametrize(("codec", "told"), [("top-k:ratio=0.1", True), ("int8", False)])
def test_one_worker_is_told_that_error_memories_are_not_used(tmp_path, capsys, codec, told):
    first = train(*TRAIN, "--codec", codec, "-i", "10", home=tmp_path)
    reshard(RunFolder(first), 3, trust=True)
    assert "error memories" not in capsys.readouterr().err
    reshard(RunFolder(first), 1, trust=True)
    assert ("what the error memories hold is not used: one worker" in capsys.readouterr().err) is told


def test_what_a_codec_keeps_is_averaged_evenly_and_parameters_by_samples(tmp_path):
    """What is kept is in units of an even share; weighted, the new workers would send another sum than the old ones."""
    uneven = ("36,12" if word == "24" else word for word in TRAIN)
    options = ("--codec", "top-k:ratio=0.1", "--strategy", "local-sgd:period=12", "-i", "20")
    first = train(*uneven, *options, home=tmp_path)
    saved = [checkpoints_of(RunFolder(first)).load(20, rank) for rank in range(2)]
    assert [tree["worker"]["samples_since_sync"] for tree in saved] == [8 * 36, 8 * 12], "in a round"
    made = reshard(RunFolder(first), 3, trust=True, runs=tmp_path / "new")
    new = checkpoints_of(made).load(20, 2)
    memories = [tree["state"]["codec.memory"] for tree in saved]
    torch.testing.assert_close(new["state"]["codec.memory"], (memories[0] + memories[1]) / 2)
    params = [tree["replica"]["params"] for tree in saved]
    torch.testing.assert_close(new["replica"]["params"], 0.75 * params[0] + 0.25 * params[1])


def test_replaying_a_run_that_began_at_a_checkpoint_is_refused(tmp_path):
    first = train(*TRAIN, "--strategy", "ps", "-i", "10", home=tmp_path)
    told = run_paceline("reshard", str(first), "--workers", "1", "--runs", "other", cwd=tmp_path).stderr
    (second,) = (tmp_path / "other").iterdir()
    assert "with 1 worker x batch 48 instead of 2" in told
    assert told.endswith(f"Resume: paceline train --resume other/{second.name}\n")
    same = run_paceline("reshard", str(first), "--workers", "2", cwd=tmp_path, check=2).stderr
    assert f"has 2 workers already; resume it as it is, with 'paceline train --resume {first}'" in same
    told = run_paceline("simulate", "--replay", str(second), cwd=tmp_path, check=2).stderr
    assert f"began at a checkpoint of {first.name}, step 10" in told


def test_slow_ranks_that_are_left_stay_slow_and_the_global_batch_is_kept():
    settings = Settings(job=JobSpec(), batch_sizes=(48, 17), epochs=1, slow={1: 2.0}, slow_turns=3)
    more, fewer = with_workers(settings, 4), with_workers(settings, 1)
    assert sum(more.batch_sizes) == 65
    assert max(more.batch_sizes) - min(more.batch_sizes) == 1
    assert (more.slow, more.slow_turns) == ({1: 2.0}, 3)
    assert (fewer.batch_sizes, fewer.slow, fewer.slow_turns) == ((65,), {}, 0)
    with pytest.raises(UsageError, match="66 workers cannot share a global batch of 65 samples"):
        with_workers(settings, 66)


def test_a_file_that_is_missing_is_told_before_anything_starts(tmp_path):
    first = train(*TRAIN, "-i", "10", home=tmp_path)
    (first / "checkpoints" / "step-00000010" / "rank-1.safetensors").unlink()
    told = run_paceline("reshard", str(first), "--workers", "3", cwd=tmp_path, check=2).stderr
    assert "no checkpoint that is whole for all 2 workers" in told
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [first.name]


def test_resuming_is_refused_at_once_and_in_a_sentence(tmp_path):
    train(*TRAIN, "-i", "10", home=tmp_path)
    done = run_paceline("train", "--resume", "latest", cwd=tmp_path, check=2)
    assert done.stderr.endswith(
        "is at step 10, and these settings end at step 10; ask for more epochs or iterations\n"
    )
    told = run_paceline("train", "--resume", "nowhere", cwd=tmp_path, check=2).stderr
    assert "nowhere is not the folder of a run: there is no such folder" in told
    told = run_paceline("train", "--resume", "latest", "--runs", "elsewhere", cwd=tmp_path, check=2).stderr
    assert "elsewhere holds no run of 'paceline train'" in told


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    folder.checkpoints.mkdir()
    check_writable(folder)
    monkeypatch.setattr(os, "access", lambda path, _: path != folder.checkpoints)  # root may write anywhere
    with pytest.raises(UsageError, match="checkpoints is read-only, and a run goes on in its folder"):
        check_writable(folder)


def test_a_place_where_no_folder_can_be_made_is_refused_with_the_command_that_makes_it_elsewhere(
    tmp_path, monkeypatch
):
    folder = RunFolder(tmp_path / "runs" / "it")
    folder.path.mkdir(parents=True)
    write_config(folder, Settings(job=JobSpec(), batch_sizes=(8, 8), epochs=1), "live", {})

    def refuse(place):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))

    monkeypatch.setattr(folder_module, "try_writing", refuse)  # root may write anywhere
    with pytest.raises(
        UsageError, match=r"make it elsewhere with 'paceline reshard .*it --workers 1 --runs FOLDER'"
    ):
        reshard(folder, 1, trust=False)


def test_the_command_that_resumes_a_resumed_run_repeats_how_long(tmp_path):
    settings = Settings(job=JobSpec(), epochs=40)
    request = TrainRequest(
        asked=lambda _: settings,
        given={"epochs": 40, "target_accuracy": 0.97, "seed": 1},
        options=LiveOptions(),
        observe=lambda _: Observer(),
        runs=tmp_path,
        resume=RunFolder(tmp_path),
        trust=True,
    )
    assert request.repeated() == {"trust": True, "epochs": 40, "target_accuracy": 0.97}


def test_workers_go_on_in_the_folder_that_their_launcher_found(tmp_path):
    """If this failed, a worker would look for the latest run itself, and might find another one."""
    plan = LaunchPlan(resume=tmp_path / "it")
    found = environments(plan, 29500, tmp_path, tmp_path / "secret", {})[1]
    assert ProcessInfo.from_environment(found).resume == tmp_path / "it"
    found = environments(LaunchPlan(), 29500, tmp_path, tmp_path / "secret", {})[1]
    assert ProcessInfo.from_environment(found).resume is None
