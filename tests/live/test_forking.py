"""Workers that are forked must be what new interpreters would be: the same results, exit codes and parents."""

import json
import os
import signal
import sys
import threading
import time

import psutil
import pytest
import torch

from command import run_paceline
from paceline.records.folder import RunFolder
from paceline.records.tensors import read_tensors
from paceline.runtimes.live.launcher import forking, launch, processes
from paceline.runtimes.live.launcher.forking import ForkServer
from paceline.runtimes.live.launcher.launch import starting

JOB = """
import json, os, random, sys
import numpy, torch
from paceline import Job, TensorData

TOLD = dict(
    rank=os.environ["RANK"] if "RANK" in os.environ else None,
    python=random.random(),
    numpy=numpy.random.random(),
    torch=torch.rand(1).item(),
    path="" in sys.path or os.getcwd() in sys.path[:1],
    parent=os.getppid(),
    session=os.getsid(0) == os.getpid(),
)

def loss(outputs, targets):
    if torch.is_grad_enabled():
        told = TOLD | dict(threads=torch.get_num_threads(), compiler="torch._dynamo" in sys.modules)
        with open(f"told-{os.environ['RANK']}.json", "w") as file:
            json.dump(told, file)
    return torch.nn.functional.mse_loss(outputs, targets)

def build():
    data = TensorData(torch.randn(64, 16, generator=torch.Generator().manual_seed(1)), torch.zeros(64, 1))
    return Job(
        name="mine",
        model=lambda: torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1)),
        loss=loss,
        train=data,
        test=data,
        optimizer=lambda params: torch.optim.Adam(params, lr=0.1),
    )
"""
TRAIN = ("train", "--job", "mine.py:build", "-b", "4", "-i", "6", "--runs", "runs")


def trained(home, first=lambda: None):
    """What the two workers said, and what they have saved."""
    home.mkdir()
    (home / "mine.py").write_text(JOB)
    run_paceline(*TRAIN, cwd=home, first=first)
    told = [json.loads((home / f"told-{rank}.json").read_text()) for rank in range(2)]
    return told, weights(home)


def never_fork():
    launch.may_fork = lambda: False


def test_forked_workers_train_what_new_interpreters_train(tmp_path):
    """If this failed, a run's result would depend on how its processes were started."""
    forked, saved = trained(tmp_path / "forked")
    afresh, expected = trained(tmp_path / "afresh", never_fork)
    assert len(saved) == 2
    assert saved == expected
    assert [told["rank"] for told in forked] == ["0", "1"], "the user's code is imported by the worker itself"
    for name in ("python", "numpy", "torch"):
        assert forked[0][name] != forked[1][name], f"{name} draws the same in both workers"
    for name in ("threads", "path", "session"):
        assert [told[name] for told in forked] == [told[name] for told in afresh], name
    assert forked[0]["parent"] == forked[1]["parent"]
    assert not any(told["compiler"] for told in afresh), "an optimizer has imported torch's compiler"


def weights(home):
    (run,) = (home / "runs").iterdir()
    return [
        plain(read_tensors(path)) for path in sorted(RunFolder(run).checkpoints.glob("*/rank-*.safetensors"))
    ]


def plain(value):
    """Tensors as lists, the clock apart."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items() if name != "now"}
    return value.tolist() if isinstance(value, torch.Tensor) else value


def ended(server, command, count=1):
    """The exit codes of so many processes of a fork server."""
    with server:
        children = list(server.start(command, [dict(os.environ)] * count))
        assert {psutil.Process(child).ppid() for child in children} <= {os.getpid()}
        return [code_of(child) for child in children]


def code_of(child):
    """The exit code of a child, once it has ended."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def be(command):
    """What a fork does."""
    if command[0] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if command[0] == "leave":
        raise SystemExit(int(command[1]))
    return int(command[0])


def nothing():
    pass


@pytest.mark.parametrize(("words", "code"), [(["0"], 0), (["5"], 5), (["kill"], -9), (["leave", "3"], 3)])
def test_exit_codes_are_those_of_a_child(words, code):
    """If this failed, a worker that was killed or has failed would be told of as something else."""
    assert ended(ForkServer(be, nothing), words, 2) == [code, code]


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_fork_server_that_is_killed_leaves_nobody_behind(when):
    """If this failed, a rank could be there twice, or a worker wait for ever for a launcher that does not know it."""
    before = set(psutil.Process().children())
    server = Dying(be, nothing) if when == "meanwhile" else ForkServer(be, nothing)
    with server:
        if when == "before":
            os.kill(server._pid, signal.SIGKILL)
        program = [sys.executable, "-c", "raise SystemExit(7)"]
        children = list(server.start(program, [dict(os.environ)] * 2))
        assert [code_of(child) for child in children] == [7, 7], "new interpreters take their place"
    end = time.monotonic() + 20
    while any(
        child.status() != psutil.STATUS_ZOMBIE for child in psutil.Process().children() if child not in before
    ):
        assert time.monotonic() < end, "a fork that nobody knows still lives"
        time.sleep(0.02)


class Dying(ForkServer):
    """Ends after its first fork."""

    def _fork(self, *arguments):
        super()._fork(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_fork_server_ends_with_its_context():
    """If this failed, a refused command would leave a process behind."""
    with ForkServer(be, nothing) as server:
        pid = server._pid
    assert not psutil.pid_exists(pid)


def test_new_interpreters_where_a_fork_would_not_do(monkeypatch):
    """If this failed, workers would inherit a CUDA context that they cannot use, or locks that nobody releases."""
    with starting(be, "cuda") as start:
        assert start is processes.start
    with monkeypatch.context() as patch:
        patch.setattr("torch.cuda.is_initialized", lambda: True)
        assert not forking.may_fork()
    resting = threading.Event()
    thread = threading.Thread(target=resting.wait)
    thread.start()
    try:
        assert not forking.may_fork()
    finally:
        resting.set()
        thread.join()
