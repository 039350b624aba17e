"""Two hosts in network namespaces: they train together, and each tells what happened on the other."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from paceline.runtimes.live.secret import Secret

STAND_IN = Path(__file__).parents[1] / "live" / "stand_in.py"


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    """The run's secret; the hosts share a disk."""
    path = tmp_path / "secret"
    Secret.new().write(path)
    return path


def launch_on(hosts: tuple, behaviour: str, secret_file: Path) -> list["subprocess.Popen[str]"]:
    """Start one worker on each host."""
    plan = {"nodes": 2, "workers": 1, "address": hosts[0].address, "port": 29517, "silence": 3.0}
    plan["secret_file"] = str(secret_file)
    return [
        host.start(str(STAND_IN), "launch", json.dumps({**plan, "node_rank": rank}), behaviour)
        for rank, host in enumerate(hosts)
    ]


def until_ready(launcher: "subprocess.Popen[str]") -> tuple[int, int]:
    """The rank and process of the worker, once it has done some steps with the other one."""
    assert launcher.stdout is not None
    line = launcher.stdout.readline()
    match = re.match(r"ready (\d) (\d+) of 2 on node-[ab]", line)
    assert match, line
    return int(match[1]), int(match[2])


def test_a_kill_on_one_host_is_told_on_both_and_both_resume(
    two_hosts: tuple, tmp_path: Path, secret_file: Path
) -> None:
    """If this failed, hosts could not train together, or a survivor would hang, not know why or not go on."""
    train = [
        "--batch-size",
        "16",
        "-i",
        "14500",
        "--checkpoint-every",
        "20 steps",
        "--evaluate-every",
        "never",
    ]
    homes = [tmp_path / host.name for host in two_hosts]
    launchers = [
        host.start("-m", "paceline", "train", *place_of(two_hosts, rank, secret_file), *train, cwd=home)
        for rank, (host, home) in enumerate(zip(two_hosts, homes, strict=True))
    ]
    pid = worker_with_checkpoint(launchers[1], homes[1])
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    errors = [launcher.communicate(timeout=20)[1] for launcher in launchers]
    assert time.monotonic() - killed < 10
    assert [launcher.returncode for launcher in launchers] == [1, 1]
    resumed = []
    for rank, (host, error) in enumerate(zip(two_hosts, errors, strict=True)):
        what, safe, resume = error.splitlines()[-3:]
        assert re.match(
            r"paceline: rank 1 on node-b died at step \d+ \(killed by signal 9, SIGKILL\)", what
        ), error
        step = int(re.findall(r"Safe: checkpoint of step (\d+)", safe)[0])
        command = resume.removeprefix("Resume: paceline ").split()
        assert command[:2] == ["train", "--resume"]
        assert command[3:] == place_of(two_hosts, rank, secret_file)
        more = ["-i", str(step + 40)]
        resumed.append(host.start("-m", "paceline", *command, *more, cwd=homes[rank]))
    for launcher, home in zip(resumed, homes, strict=True):
        _, error = launcher.communicate(timeout=60)
        assert launcher.returncode == 0, error
        saved = max(int(path.name.removeprefix("step-")) for path in home.glob("runs/*/checkpoints/step-*"))
        assert saved == step + 40


def place_of(hosts: tuple, rank: int, secret_file: Path) -> list[str]:
    """The options that put a launcher on a host."""
    place = f"--nodes 2 --workers 1 --address {hosts[0].address} --port 29517 --node-rank {rank}"
    return [*place.split(), "--secret-file", str(secret_file)]


def worker_with_checkpoint(launcher: "subprocess.Popen[str]", home: Path) -> int:
    """The process of the only worker of a launcher, once it has saved twice."""
    deadline = time.monotonic() + 60
    while len(list(home.glob("runs/*/checkpoints/step-*/rank-1.safetensors"))) < 2:
        assert launcher.poll() is None, launcher.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (worker,) = psutil.Process(launcher.pid).children()
    return worker.pid


def test_a_cut_cable_ends_the_run_on_both_hosts(two_hosts: tuple, secret_file: Path) -> None:
    """If this failed, workers would wait for half an hour for packets that cannot come."""
    launchers = launch_on(two_hosts, "steps=1000000", secret_file)
    for launcher in launchers:
        until_ready(launcher)
    two_hosts[1].unplug()
    for launcher, lost in zip(launchers, ("1 (node-b)", "0 (node-a)"), strict=True):
        _, stderr = launcher.communicate(timeout=25)
        assert launcher.returncode == 1
        assert f"node rank {lost} has not answered for 3 s; the workers here were ended at step" in stderr


def test_a_host_that_comes_early_waits_with_a_word(two_hosts: tuple, secret_file: Path) -> None:
    """If this failed, the order in which hosts are started would matter, or waiting look like a hang."""
    plan = {"nodes": 2, "workers": 1, "address": two_hosts[0].address, "node_rank": 1, "wait": 2.5}
    plan["secret_file"] = str(secret_file)
    early = two_hosts[1].start(str(STAND_IN), "launch", json.dumps(plan), "steps=3")
    _, stderr = early.communicate(timeout=60)
    assert early.returncode == 1
    first, last = stderr.splitlines()
    assert first == "paceline: waiting for node rank 0 at 10.77.0.1, port 29500 (gives up after 2.5 s)"
    assert last.startswith("paceline: node rank 0 did not answer at 10.77.0.1, port 29500, within 2.5 s")
