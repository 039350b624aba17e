"""Whole live runs with servers, as a user starts them, and what happens to them from outside."""

import contextlib
import io
import json
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from command import local_rank, run_json, run_paceline, start_python
from paceline.cli.main import main
from paceline.jobs.build import build_job
from paceline.jobs.spec import JobSpec
from paceline.records.files import from_document
from paceline.records.folder import RunFolder
from paceline.records.servers import ServerTotals
from paceline.records.tensors import read_tensors
from paceline.runtimes.live.failures import complete_steps, newest_safe
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.wire.messages import Goodbye, Hello, RequestRank, Welcome
from paceline.runtimes.live.wire.shared_flat import SharedFlat
from paceline.runtimes.live.worker.server_comm import ServerClient
from paceline.strategies.messages import Push

PATIENCE = 60.0


class Command:
    """A command under way."""

    def __init__(self, cwd: Path, *arguments: str) -> None:
        self._out = (cwd / f"out-{random.randrange(10**9)}.txt").open("w+")
        streams = {"stdout": self._out, "stderr": subprocess.STDOUT}
        self.process = start_python("-m", "paceline", *arguments, cwd=cwd, env={"NO_COLOR": "1"}, **streams)

    @property
    def text(self) -> str:
        return Path(self._out.name).read_text()

    def ended(self) -> int:
        return self.process.wait(PATIENCE)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.ended()


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Command]]:
    """Start commands; none outlives the test."""
    started: list[Command] = []

    def begin(*arguments: str) -> Command:
        started.append(Command(tmp_path, *arguments))
        return started[-1]

    yield begin
    for command in started:
        if command.process.poll() is None:
            command.process.kill()
            command.process.wait()


def wait_until(happened: Callable[[], bool], command: Command, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, f"{what} did not happen:\n{command.text}"
        assert command.process.poll() is None, f"ended before {what}:\n{command.text}"
        time.sleep(0.05)


def folder_of(cwd: Path, command: Command) -> RunFolder:
    """The run's folder, once its first evaluation is in it."""
    wait_until(lambda: bool(list(cwd.glob("runs/*/metrics.jsonl"))), command, "an evaluation")
    (path,) = cwd.glob("runs/*")
    return RunFolder(path)


def rows(folder: RunFolder) -> int:
    return len(folder.metrics.read_text().splitlines())


def pid_of(folder: RunFolder, rank: int) -> int:
    return json.loads(folder.env.read_text())["workers"][rank]["pid"]


def shared_memory(process: int) -> list[str]:
    """What a process calls the memory that it shares, heartbeats apart."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    return [line.split()[5] for line in lines if "/memfd:paceline-" in line or "/dev/shm/paceline-" in line]


def server_pid(launcher: int) -> int:
    """The launcher's only child that keeps parameters."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    (server,) = [int(child) for child in children if local_rank(int(child)) == 2]
    return server


def annoy(folder: RunFolder) -> None:
    """Everything that a stranger may send to a server's socket: nothing, noise, and half a greeting."""
    host, port = json.loads(folder.join.read_text())["endpoint"].removeprefix("tcp://").rsplit(":", 1)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + b"\0" + bytes(31)
    noise = [b"", b"GET / HTTP/1.1\r\n\r\n", random.Random(1).randbytes(5000), greeting, greeting[:30]]
    for one in noise * 3:
        with socket.create_connection((host, int(port)), timeout=5) as stranger:
            stranger.sendall(one)


@pytest.mark.parametrize("codec", ["identity", "int8"])
def test_strangers_and_a_death_do_not_end_a_run(tmp_path, start, codec):
    every = ("--epochs", "100000", "--evaluate-every", "2 epochs")
    run = start("train", "--strategy", "ssp:staleness=3", "--codec", codec, *every)
    folder = folder_of(tmp_path, run)
    annoy(folder)
    assert {name.partition("-")[0] for name in shared_memory(pid_of(folder, 1))} == {"/memfd:paceline"}, (
        "a worker that is killed leaves memory behind that has a name"
    )
    os.kill(pid_of(folder, 1), signal.SIGKILL)
    wait_until(lambda: "rank 1" in run.text, run, "the word of a death")
    seen = rows(folder)
    wait_until(lambda: rows(folder) > seen + 2, run, "training after the death")
    assert run.stop() == 130
    (totals,) = [
        from_document(one, ServerTotals) for one in json.loads(folder.summary.read_text())["servers"]
    ]
    assert [(one.worker, one.how) for one in totals.changes] == [(1, "died")]
    told = re.findall(r"rank 1 on \S+ died at step (\d+)", run.text)
    assert told == [str(totals.changes[0].clock)], "the launcher and the servers name one step for one death"
    assert sum(totals.refused.values()) >= 9, totals.refused
    assert totals.used == totals.pushes
    assert "the run goes on with the others" in run.text


def test_bytes_that_no_encoder_makes_are_counted_and_survived(tmp_path, start):
    """From a member that has the secret: of the right length, with indices that lie outside of the parameters."""
    run = start("train", "--strategy", "async", "--codec", "top-k", "--epochs", "100000", "--workers", "1")
    folder = folder_of(tmp_path, run)
    document = json.loads(folder.join.read_text())
    secret, endpoint = Secret.read(Path(document["secret"])), document["endpoint"]
    elements = sum(one.numel() for one in build_job(JobSpec()).model().parameters())
    with ServerClient(secret, [endpoint], SharedFlat(), patience=5) as member:
        member.send(0, RequestRank())
        rank = member.wait_for(Welcome).message.rank
        member.send(0, Hello(rank))
        member.wait_for(Welcome)
        raw = torch.full((8 * round(elements * 0.01),), 255, dtype=torch.uint8)
        for _ in range(3):
            member.send(0, Push(raw, 0, 0, 8))
        member.send(0, Push(raw[:-1], 0, 0, 8))
        member.send(0, Goodbye(rank, 0, "left"))
    seen = rows(folder)
    wait_until(lambda: rows(folder) > seen + 2, run, "training after the attack")
    assert run.stop() == 130
    (server,) = json.loads(folder.summary.read_text())["servers"]
    assert server["refused"] == {"corrupt": 3, "wrong length": 1}
    assert "refused" in run.text


@pytest.mark.parametrize("codec", ["identity", "top-k"])
def test_a_worker_that_joined_may_leave_again(tmp_path, start, codec):
    """Also where it comes to one that was alone: from then on there are two to meet."""
    options = ("--workers", "1", "--epochs", "100000", "--servers", "2", "--codec", codec)
    run = start("train", "--strategy", "async", *options)
    folder = folder_of(tmp_path, run)
    newcomer = start("train", "--join", str(folder.path))
    wait_until(lambda: "joined" in newcomer.text and folder.events(1).exists(), run, "the newcomer's joining")
    seen = rows(folder)
    wait_until(lambda: rows(folder) > seen + 2, run, "training with the newcomer")
    assert newcomer.stop() == 0, newcomer.text
    seen = rows(folder)
    wait_until(lambda: rows(folder) > seen + 2, run, "training without the newcomer")
    assert run.stop() == 130
    for one in json.loads(folder.summary.read_text())["servers"]:
        totals = from_document(one, ServerTotals)
        assert [(going.worker, going.how) for going in totals.changes] == [(1, "joined"), (1, "left")]
        assert totals.changes[-1].clock > 0


def test_the_first_worker_may_die_too(tmp_path, start):
    run = start("train", "--strategy", "ps", "--iterations", "300", "--evaluate-every", "10 steps")
    folder = folder_of(tmp_path, run)
    os.kill(pid_of(folder, 0), signal.SIGKILL)
    assert run.ended() == 0, run.text
    assert "rank 1 reports from here on" in run.text
    summary = json.loads(folder.summary.read_text())
    assert summary["steps"] == 300
    assert len(summary["totals"]) == 2
    assert folder.model.exists()


@pytest.mark.parametrize("codec", ["identity", "top-k"])
def test_a_killed_server_ends_the_run_and_the_run_resumes(tmp_path, start, codec):
    run = start("train", "--strategy", "ps", "--epochs", "100000", "--codec", codec)
    folder = folder_of(tmp_path, run)
    wait_until(lambda: rows(folder) > 3, run, "some epochs")
    os.kill(server_pid(run.process.pid), signal.SIGKILL)
    assert run.ended() == 1
    assert "server 0 on" in run.text
    assert "killed by signal 9" in run.text
    assert not folder.join.exists(), "it says that the run can be joined"
    resume = run.text.rpartition("Resume: paceline ")[2].split()
    assert resume[:2] == ["train", "--resume"], run.text
    saved = newest_safe([complete_steps(folder.path)], nodes=1)
    assert saved is not None
    assert f"Safe: checkpoint of step {saved}," in run.text
    epochs = str(saved // 23 + 2)
    document = json.loads(run_paceline(*resume, "--epochs", epochs, "--json", cwd=tmp_path).stdout)
    assert document["run"]["first_step"] == saved
    resumed = read_tensors(folder.model)
    through = run_json("simulate", "--strategy", "ps", "--epochs", epochs, "--codec", codec, cwd=tmp_path)
    straight = read_tensors(tmp_path / through["run"]["folder"] / "model.safetensors")
    assert all((resumed[name] == straight[name]).all() for name in straight), "a resumed server differs"


def test_an_asynchronous_run_can_be_repeated_to_the_last_bit(tmp_path):
    options = ("--strategy", "async", "--servers", "2", "--slow", "1=2", "--epochs", "2")
    document = run_json("train", *options, cwd=tmp_path)
    folder = document["run"]["folder"]
    assert document["run"]["transport"] == "shm", "tensors go through memory that the servers map"
    out = io.StringIO()
    with contextlib.chdir(tmp_path), contextlib.redirect_stdout(out):
        assert main(["simulate", "--replay", folder]) == 0
    assert "equal to the last bit" in out.getvalue()
    straight = run_json("simulate", *options, cwd=tmp_path)
    repeated, other = (
        read_tensors(path)
        for path in (
            tmp_path / folder / "model.safetensors",
            tmp_path / straight["run"]["folder"] / "model.safetensors",
        )
    )
    assert any((repeated[name] != other[name]).any() for name in other), (
        "the order of messages changes nothing"
    )
