"""Runs of a small job that can be slowed down or made to hang from outside, and the commands that they print."""

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, STDOUT

import psutil

from command import start_python
from paceline.records.folder import RunFolder

JOB = """
import ctypes, os, time, torch
from paceline import Job, TensorData

def due(name):
    return os.path.exists(os.path.join(os.environ["FAULTS"], name))

def loss(outputs, targets):
    if torch.is_grad_enabled():
        rank = os.environ.get("RANK", "joined")
        if due("slow"):
            time.sleep(0.02)
        while due(f"hang-{rank}"):
            time.sleep(0.1)
        if due(f"gil-{rank}"):
            os.remove(os.path.join(os.environ["FAULTS"], f"gil-{rank}"))
            ctypes.PyDLL(None).usleep(int(os.environ["HELD"]))
    return torch.nn.functional.mse_loss(outputs, targets)

def build():
    data = TensorData(torch.randn(64, 4, generator=torch.Generator().manual_seed(1)), torch.zeros(64, 1))
    sgd = lambda params: torch.optim.SGD(params, lr=0.1)
    return Job(name="mine", model=lambda: torch.nn.Linear(4, 1), loss=loss, train=data, test=data, optimizer=sgd)
"""
TRAIN = ("train", "--job", "mine:build", "--batch-size", "4", "--evaluate-every", "never")
PATIENCE = 40.0


class Faulty:
    """A training whose steps take 20 ms for as long as ``slow`` is there; ended with the test that started it."""

    def __init__(self, cwd: Path, *options: str, **variables: str) -> None:
        cwd.mkdir(exist_ok=True)
        (cwd / "mine.py").write_text(JOB)
        (cwd / "slow").touch()
        self.cwd, self._out = cwd, (cwd / f"out-{time.monotonic_ns()}.txt").open("w+")
        env = {
            "NO_COLOR": "1",
            "FAULTS": str(cwd),
            "TMPDIR": str(cwd),
            "PYTHONPATH": searched(cwd),
            **variables,
        }
        saves = () if "--checkpoint-every" in options else ("--checkpoint-every", "20 steps")
        words = (*TRAIN, *saves, *options)
        self.process = start_python(
            "-m",
            "paceline",
            *words,
            cwd=cwd,
            env=env,
            stdout=self._out,
            stderr=STDOUT,
        )

    @property
    def text(self) -> str:
        return Path(self._out.name).read_text()

    @property
    def folder(self) -> RunFolder:
        (path,) = self.cwd.glob("runs/*")
        return RunFolder(path)

    def until(self, happened: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < deadline, f"{what} did not happen:\n{self.text}"
            assert self.process.poll() is None, f"ended before {what}:\n{self.text}"
            time.sleep(0.02)

    def until_said(self, words: str) -> None:
        self.until(lambda: re.search(words, self.text), words)

    def until_saved(self) -> None:
        """Wait until every process has taken some steps and saved."""
        name = "server-0" if "--strategy" in self.process.args else "rank-0"
        self.until(lambda: list(self.cwd.glob(f"runs/*/checkpoints/*/{name}.safetensors")), "a checkpoint")

    def worker(self, rank: int) -> int:
        return json.loads(self.folder.env.read_text())["workers"][rank]["pid"]

    def server(self) -> int:
        """The launcher's only child that is no worker."""
        workers = [worker["pid"] for worker in json.loads(self.folder.env.read_text())["workers"]]
        (server,) = {child.pid for child in psutil.Process(self.process.pid).children()} - set(workers)
        return server

    def hurry(self) -> None:
        (self.cwd / "slow").unlink(missing_ok=True)

    def ended(self) -> int:
        return self.process.wait(PATIENCE)

    def end(self) -> None:
        if self.process.poll() is None:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                child.kill()
            self.process.kill()
            self.process.wait()


def searched(cwd: Path) -> str:
    """Where a new interpreter looks for modules: the job's folder, and the tree that these tests belong to."""
    return os.pathsep.join([str(cwd), os.environ["PYTHONPATH"]])


def printed(text: str, what: str) -> list[str]:
    """The words after "paceline" of the last command that was printed as ``what``, Resume or Join."""
    lines = re.findall(rf"^{what}: paceline (.*)$", text, re.MULTILINE)
    assert lines, f"no {what} command in:\n{text}"
    return shlex.split(lines[-1])


def start_printed(cwd: Path, text: str, what: str) -> "subprocess.Popen[str]":
    """Start the command as it was printed, in the folder where it was."""
    env = {"NO_COLOR": "1", "FAULTS": str(cwd), "PYTHONPATH": searched(cwd), "TMPDIR": str(cwd)}
    words = ("-m", "paceline", *printed(text, what))
    return start_python(*words, cwd=cwd, env=env, stdout=PIPE, stderr=STDOUT)


def run_printed(cwd: Path, text: str, what: str) -> str:
    """Run the command as it was printed; it must end well."""
    with start_printed(cwd, text, what) as process:
        try:
            told, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0, told
    return told
