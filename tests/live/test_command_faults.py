"""What a user sees when a run on one host is killed, interrupted or raises; and that nothing is lost."""

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import torch

from command import local_rank, run_json, run_paceline, run_python, start_python
from paceline.records.tensors import read_tensors
from paceline.runtimes.live.heartbeat import read_progress
from paceline.runtimes.live.process_info import ProcessInfo

LONG = ("--iterations", "100000", "--checkpoint-every", "20 steps", "--evaluate-every", "50 steps")


@pytest.fixture
def running(tmp_path):
    """A run that would go on for minutes, once it has saved its first checkpoints."""
    process = start_python("-m", "paceline", "train", *LONG, cwd=tmp_path)
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("runs/*/checkpoints/complete-0.json")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "no checkpoint within a minute"
            time.sleep(0.05)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def workers_of(process: subprocess.Popen) -> list[psutil.Process]:
    """The worker processes, by rank."""
    children = psutil.Process(process.pid).children()
    return sorted(children, key=lambda child: local_rank(child.pid))


def newest(folder: Path) -> int:
    """The last step that both workers have saved."""
    saved = [
        {path.parent.name for path in folder.glob(f"checkpoints/*/rank-{rank}.safetensors")}
        for rank in (0, 1)
    ]
    return max(int(name.removeprefix("step-")) for name in saved[0] & saved[1])


def recorded(folder: Path) -> list[int]:
    """The last step of each worker's record."""
    files = [folder / "events" / f"rank-{rank}.jsonl" for rank in (0, 1)]
    return [max(json.loads(line)["step"] for line in file.read_text().splitlines()) for file in files]


def assert_resumes_as_if_never_stopped(folder: Path, tmp_path: Path) -> None:
    goal = str(newest(folder) + 30)
    run_paceline("train", "--resume", str(folder.relative_to(tmp_path)), "--iterations", goal, cwd=tmp_path)
    through = run_json("simulate", "--iterations", goal, "--evaluate-every", "50 steps", cwd=tmp_path)
    resumed, unstopped = (
        read_tensors(path / "model.safetensors") for path in (folder, tmp_path / through["run"]["folder"])
    )
    assert all(torch.equal(resumed[name], unstopped[name]) for name in unstopped)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [row["step"] for row in through["rows"]]
    assert [row["test_loss"] for row in rows] == [row["test_loss"] for row in through["rows"]]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["samples"] == through["summary"]["samples"]
    assert [part["steps"] for part in summary["totals"]] == [int(goal)] * 2
    sent = [part["sent"] for part in through["summary"]["totals"]]
    assert [part["sent"] for part in summary["totals"]] == sent


def test_a_killed_worker_stops_all_and_the_run_resumes_bit_for_bit(running, tmp_path):
    workers = workers_of(running)
    workers[1].send_signal(signal.SIGKILL)
    begun = time.monotonic()
    _, stderr = running.communicate(timeout=30)
    assert time.monotonic() - begun < 10, "the rest must stop within 10 s"
    assert running.returncode == 1
    assert not any(worker.is_running() for worker in workers)
    (folder,) = (tmp_path / "runs").iterdir()
    what, safe, resume = stderr.splitlines()[-3:]
    assert re.search(r"rank 1 on \S+ died at step \d+ \(killed by signal 9", what)
    assert f"checkpoint of step {newest(folder)}" in safe
    assert resume == f"Resume: paceline train --resume runs/{folder.name}"
    assert "Traceback" not in stderr
    assert min(recorded(folder)) >= newest(folder), "what is saved is recorded"
    assert_resumes_as_if_never_stopped(folder, tmp_path)


def test_ctrl_c_saves_and_the_run_resumes_bit_for_bit(running, tmp_path):
    workers = workers_of(running)
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=30)
    assert running.returncode == 130
    assert not any(worker.is_running() for worker in workers)
    (folder,) = (tmp_path / "runs").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["ending"] == "interrupted"
    assert summary["steps"] == newest(folder), "the last checkpoint is that of the last step"
    assert f"paceline train --resume runs/{folder.name}" in stdout + stderr
    assert "Traceback" not in stderr
    assert_resumes_as_if_never_stopped(folder, tmp_path)


def test_ctrl_c_in_a_round_that_never_ends_stops_soon_and_saves(tmp_path):
    options = ("--strategy", "local-sgd:period=1000000", "--model", "mlp", "--evaluate-every", "never")
    words = ("-m", "paceline", "train", *options, "--iterations", "1000000")
    process = start_python(*words, cwd=tmp_path, env={"TMPDIR": str(tmp_path)})
    try:
        wait_for_steps(process, tmp_path, 20)
        process.send_signal(signal.SIGINT)
        begun = time.monotonic()
        stdout, stderr = process.communicate(timeout=30)
        assert time.monotonic() - begun < 12, "a second or two, on a machine that is not busy"
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 130, stdout + stderr
    (folder,) = (tmp_path / "runs").iterdir()
    step = newest(folder)
    assert json.loads((folder / "summary.json").read_text())["steps"] == step
    assert recorded(folder) == [step, step]
    goal = ("--iterations", str(step + 10))
    run_paceline("train", "--resume", str(folder), *goal, cwd=tmp_path)
    through = run_json("simulate", *options, *goal, cwd=tmp_path)
    resumed, unstopped = (
        read_tensors(path / "model.safetensors") for path in (folder, tmp_path / through["run"]["folder"])
    )
    assert all(torch.equal(resumed[name], unstopped[name]) for name in unstopped)


def wait_for_steps(process: subprocess.Popen, launches: Path, steps: int) -> None:
    """Wait until both workers have taken so many, as their launcher's folder tells."""
    deadline = time.monotonic() + 60
    while True:
        (launch,) = list(launches.glob("paceline-*")) or [launches]
        infos = [ProcessInfo(rank=rank, workers=2, launch=launch) for rank in (0, 1)]
        if all(read_progress(info).step >= steps for info in infos):
            return
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no steps within a minute"
        time.sleep(0.05)


def test_a_job_that_raises_is_told_last_with_rank_and_step(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os, torch\n"
        "from paceline import Job, TensorData\n"
        "calls = 0\n"
        "def loss(outputs, targets):\n"
        "    global calls\n"
        "    calls += torch.is_grad_enabled()\n"
        "    if calls == 8 and os.environ['RANK'] == '1':\n"
        "        raise ZeroDivisionError('no samples of class 7')\n"
        "    return torch.nn.functional.mse_loss(outputs, targets)\n"
        "def build():\n"
        "    data = TensorData(torch.randn(64, 4), torch.randn(64, 1))\n"
        "    sgd = lambda params: torch.optim.SGD(params, lr=0.1)\n"
        "    model = lambda: torch.nn.Linear(4, 1)\n"
        "    return Job(name='mine', model=model, loss=loss, train=data, test=data, optimizer=sgd)\n"
    )
    begun = time.monotonic()
    done = run_paceline("train", "--job", "mine:build", "--batch-size", "4", cwd=tmp_path, check=1)
    assert time.monotonic() - begun < 60
    told = done.stderr[done.stderr.rindex("paceline: ") :]
    assert "rank 1" in told
    assert "step 7" in told
    assert "ZeroDivisionError" in told
    assert "no samples of class 7" in told


def test_torchrun_runs_the_same_job(tmp_path):
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "paceline")
    train = ("train", "--iterations", "30", "--json")
    done = run_python(*torchrun, *train, cwd=tmp_path, env={"OMP_NUM_THREADS": "1"}, seconds=100)
    assert done.returncode == 0, done.stderr
    model = read_tensors(tmp_path / json.loads(done.stdout)["run"]["folder"] / "model.safetensors")
    through = run_json("simulate", "--iterations", "30", cwd=tmp_path)
    virtual = read_tensors(tmp_path / through["run"]["folder"] / "model.safetensors")
    assert all(torch.equal(model[name], virtual[name]) for name in virtual)


def test_an_error_in_a_loader_process_is_told_with_its_line_and_a_warning_once(tmp_path: Path) -> None:
    """If this failed, a bug in a data set would be told as "Caught KeyError in DataLoader worker process 1"."""
    (tmp_path / "bad.py").write_text(
        "import torch\n"
        "from paceline import Job\n"
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n        return 8\n"
        "    def __getitem__(self, index):\n        return torch.ones(3), 1.0\n"
        "class Late(Data):\n"
        "    def __getitem__(self, index):\n        return torch.ones(3), {0: 1.0}[index]\n"
        "def job(data=Late):\n"
        "    return Job(name='bad', model=lambda: torch.nn.Linear(3, 1), loss=torch.nn.functional.mse_loss,\n"
        "        train=data(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1), loader_workers=1)\n"
        "def warned():\n    return job(Data)\n"
    )
    common = ("--batch-size", "2", "--iterations", "2", "--checkpoint-every", "never")
    failed = run_paceline("train", "--job", "bad.py:job", *common, cwd=tmp_path, check=1).stderr
    assert re.search(r"failed before its first step: KeyError: \d \(bad.py:10 in __getitem__\)", failed), (
        failed
    )
    warned = run_paceline("train", "--job", "bad.py:warned", *common, cwd=tmp_path)
    assert warned.stderr.count("UserWarning: Using a target size") == 1, "each worker warns of the same"
