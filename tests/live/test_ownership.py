"""Whose files a run uses, who may use a run's folder, and what is safe: on real runs of one host."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from command import run_json, run_paceline, start_python

TRAIN = ("train", "-b", "8", "--evaluate-every", "10 steps", "--checkpoint-every", "10 steps")
JOB = """
import os, resource
from torch import nn, optim
from paceline.jobs.build import build_job
from paceline.jobs.spec import JobSpec
from dataclasses import replace

class Altering(optim.SGD):
    steps = 0
    def step(self):
        super().step()
        self.steps += 1
        if self.steps == 5 and os.environ.get("ALTER") == os.environ["RANK"]:
            self.param_groups[0]["params"][0].data.view(-1)[7] += 1e-6
        if self.steps == 5 and os.environ.get("FULL") == os.environ["RANK"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))

def build():
    return replace(build_job(JobSpec()), optimizer=lambda params: Altering(params, lr=0.05, momentum=0.9))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, Path]:
    """Two runs of 30 steps that differ in nothing but their ids."""
    home = tmp_path_factory.mktemp("runs")
    made = [run_json(*TRAIN, "-i", "30", cwd=home) for _ in range(2)]
    return tuple(home / one["run"]["folder"] for one in made)  # type: ignore[return-value]


@pytest.fixture
def run(runs, tmp_path) -> Path:
    """A copy of the first."""
    return Path(shutil.copytree(runs[0], tmp_path / runs[0].name))


def resume(run: Path, *more: str, check: int | None = 0) -> subprocess.CompletedProcess[str]:
    words = ("train", "--resume", run.name, *more, "--json")
    return run_paceline(*words, cwd=run.parent, check=check)


def rank_file(run: Path, step: int, rank: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}" / f"rank-{rank}.safetensors"


def test_files_of_another_run_or_rank_are_refused_by_name_and_the_step_before_is_used(runs, run):
    """If this failed, replicas would go on from two different models, with exit code 0."""
    shutil.copy(rank_file(runs[1], 30, 1), rank_file(run, 30, 1))
    shutil.copy(rank_file(run, 20, 0), rank_file(run, 20, 1))
    done = resume(run, "-i", "40")
    assert json.loads(done.stdout)["run"]["first_step"] == 10
    other = json.loads((runs[1] / "config.json").read_text())["identity"]["run"]
    own = json.loads((runs[0] / "config.json").read_text())["identity"]["run"]
    assert (
        f"step-00000030/rank-1.safetensors belongs to run {other}, rank 1, step 30, not to run {own}"
        in done.stderr
    )
    assert (
        f"step-00000020/rank-1.safetensors belongs to run {own}, rank 0, step 20, not to run {own}"
        in done.stderr
    )


def test_a_worker_of_servers_whose_file_is_lost_records_no_step_twice(tmp_path):
    """If this failed, it would draw the same mini-batches again, and its record have two of every step."""
    made = run_json(*TRAIN, "--strategy", "ps", "-i", "30", cwd=tmp_path)
    run = tmp_path / made["run"]["folder"]
    last = max(path.name for path in (run / "checkpoints").glob("step-*"))
    (run / "checkpoints" / last / "rank-1.safetensors").unlink()
    run_paceline("train", "--resume", str(run), "-i", "50", cwd=tmp_path)
    lines = map(json.loads, (run / "events" / "rank-1.jsonl").read_text().splitlines())
    steps = [line["step"] for line in lines if line.get("is_step", True)]
    assert steps == list(range(1, 51))


def test_damaged_lines_do_not_keep_a_run_from_going_on(run):
    """If this failed, one bad line in a record would make whole checkpoints useless."""
    for file, number in ((run / "events" / "rank-1.jsonl", 5), (run / "metrics.jsonl", 2)):
        lines = file.read_bytes().splitlines(keepends=True)
        lines[number - 1] = b"\x00" * 40 + b"\n"
        file.write_bytes(b"".join(lines))
    done = resume(run, "-i", "35")
    assert "events/rank-1.jsonl: damaged lines, the first of 1 is line 5" in done.stderr
    assert "metrics.jsonl: damaged lines, the first of 1 is line 2" in done.stderr
    totals = json.loads((run / "summary.json").read_text())["totals"]
    assert [part["damaged"] for part in totals] == [0, 1]
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3


def test_of_two_resumes_at_once_exactly_one_goes_on(run):
    """If this failed, two runs would write into one folder, and every record be there twice."""
    words = ("-m", "paceline", "train", "--resume", run.name, "-i", "400")
    both = [start_python(*words, cwd=run.parent) for _ in range(2)]
    told = [one.communicate(timeout=100)[1] for one in both]
    assert sorted(one.returncode for one in both) == [0, 2], told
    refused = next(text for one, text in zip(both, told, strict=True) if one.returncode == 2)
    owner = next(one.pid for one in both if one.returncode == 0)
    assert re.search(
        rf"is in use: process {owner} on \S+ has held it since .* UTC \(paceline train --resume", refused
    )
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(10, 401, 10))


@pytest.fixture
def living(tmp_path) -> Iterator["subprocess.Popen[str]"]:
    words = (*TRAIN, "-i", "1000000")
    process = start_python("-m", "paceline", *words, cwd=tmp_path)
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("runs/*/checkpoints/complete-0.json")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_run_that_lives_is_not_resumed_and_ends_when_its_folder_is_deleted(living, tmp_path):
    """If this failed, two trajectories would mix, or a run train for hours into files that nobody can find."""
    (folder,) = (tmp_path / "runs").iterdir()
    done = run_paceline("train", "--resume", str(folder), cwd=tmp_path, check=2)
    assert "is in use: process" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert living.poll() is None
    shutil.rmtree(
        folder.rename(tmp_path / "deleted"), ignore_errors=True
    )  # all at once, for those who watch it
    _, stderr = living.communicate(timeout=60)
    assert living.returncode == 1
    # The launcher names it as it was given, a worker by its whole path, whichever is first to see it.
    assert re.search(rf"the run folder \S*{folder.name} was deleted or replaced while the run was", stderr)
    assert "is gone; start again with the same command" in stderr
    assert "Traceback" not in stderr
    assert not folder.exists()


def test_a_worker_whose_parameters_drift_is_named(tmp_path):
    """If this failed, the workers of an all-reduce run could train different models, with exit code 0."""
    (tmp_path / "job.py").write_text(JOB)
    words = ("train", "--job", "job.py:build", "-np", "3", "-i", "20", "--checkpoint-every", "10 steps")

    done = run_paceline(*words, cwd=tmp_path, check=1, env={"ALTER": "1"})
    told = "at step 10 the parameters of rank 1 are not those of ranks 0 and 2, and at step 0 all were equal"
    assert told in done.stderr
    assert "Safe: no checkpoint yet" in done.stderr, "what differs must not be saved"


def test_a_full_disk_at_the_first_checkpoint_leaves_nothing_that_is_called_safe(tmp_path):
    """If this failed, a user would keep, and resume in vain, what one worker never wrote."""
    (tmp_path / "job.py").write_text(JOB)
    words = ("train", "--job", "job.py:build", "-i", "20", "--checkpoint-every", "10 steps")

    done = run_paceline(*words, cwd=tmp_path, check=1, env={"FULL": "1"})
    assert (
        done.stderr.splitlines()[-1]
        == "Safe: no checkpoint yet; start again with the same command when the error is repaired."
    )
    assert "File too large" in done.stderr
    assert list(tmp_path.glob("runs/*/checkpoints/*/rank-0.safetensors")), (
        "one was written, and not the other"
    )


def test_what_is_safe_on_a_full_disk_is_what_a_resume_uses(tmp_path):
    """If this failed, Safe would name a step, and the run go on from another or not at all."""
    if os.geteuid() != 0:
        pytest.skip("a small file system needs root")
    small = tmp_path / "runs"
    small.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=900k", "none", str(small)], check=False)
    if mount.returncode:
        pytest.skip("this machine mounts no tmpfs")
    try:
        done = run_paceline(*TRAIN, "-i", "60", cwd=tmp_path, check=1)
        (step,) = re.findall(r"Safe: checkpoint of step (\d+), ", done.stderr)
        (command,) = re.findall(r"Resume: paceline (.*)", done.stderr)
        subprocess.run(["mount", "-o", "remount,size=20m", str(small)], check=True)
        again = run_paceline(*command.split(), "--json", cwd=tmp_path)
        assert json.loads(again.stdout)["run"]["first_step"] == int(step)
    finally:
        subprocess.run(["umount", str(small)], check=True)
