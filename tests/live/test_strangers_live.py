"""A live run under attack by another user of its host: it goes on, and the strangers are no more than a number."""

import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest
from faults import JOB, TRAIN, searched

from command import local_rank, run_python, start_python

STRANGER = str(Path(__file__).with_name("stranger.py"))
STEPS = ("-i", "1000000", "--checkpoint-every", "10 steps")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="to become another user needs root")


@contextmanager
def training(tmp_path: Path, *words: str, first=lambda: None) -> Iterator["subprocess.Popen[str]"]:
    """A run that has taken a few steps, and takes its time for the rest."""
    (tmp_path / "mine.py").write_text(JOB)
    (tmp_path / "slow").touch()
    env = {"NO_COLOR": "1", "FAULTS": str(tmp_path), "PYTHONPATH": searched(tmp_path)}
    command = ["-m", "paceline", *TRAIN, *STEPS, *words]
    with start_python(*command, cwd=tmp_path, env=env, first=first) as launcher:
        try:
            until(lambda: saved_step(tmp_path) > 0, launcher)
            yield launcher
        finally:
            if launcher.poll() is None:
                for child in psutil.Process(launcher.pid).children(recursive=True):
                    child.kill()
                launcher.kill()


def saved_step(tmp_path: Path) -> int:
    """The newest step that rank 0 has saved."""
    saved = tmp_path.glob("runs/*/checkpoints/step-*/rank-0.safetensors")
    return max((int(path.parent.name.removeprefix("step-")) for path in saved), default=0)


def until(condition, launcher: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + 100
    while not condition():
        assert launcher.poll() is None, launcher.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


def doors(launcher: "subprocess.Popen[str]", servers: int) -> list[int]:
    """The ports of the store and of the servers, which come last among the launcher's children."""
    process = psutil.Process(launcher.pid)
    children = sorted(process.children(), key=lambda child: local_rank(child.pid))
    keepers = [process, *children[len(children) - servers :]]
    return [
        connection.laddr.port
        for keeper in keepers
        for connection in keeper.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]


def goes_on(launcher: "subprocess.Popen[str]", tmp_path: Path) -> None:
    before = saved_step(tmp_path)
    until(lambda: saved_step(tmp_path) > before, launcher)


def stopped(launcher: "subprocess.Popen[str]") -> tuple[str, str]:
    """What was printed, once the run has been stopped by its user."""
    launcher.send_signal(signal.SIGINT)
    printed = launcher.communicate(timeout=60)
    assert launcher.returncode == 130, printed
    return printed


def refused(text: str) -> int:
    """How many connections the store has refused, as the user is told."""
    (number,) = re.findall(r"^paceline: refused: ([\d,]+) connections without the run's secret$", text, re.M)
    return int(number.replace(",", ""))


def besieged(launcher: "subprocess.Popen[str]", tmp_path: Path, ports: list[int]) -> None:
    """Let somebody try everything; the run must go on, and not grow."""
    before = psutil.Process(launcher.pid).memory_info().rss
    run_python(STRANGER, "knock", "127.0.0.1", *map(str, ports))
    goes_on(launcher, tmp_path)
    assert psutil.Process(launcher.pid).memory_info().rss < before + 64 * 2**20


def nothing_has_changed(tmp_path: Path, text: str) -> None:
    assert "stranger was here" not in text
    assert len(list(tmp_path.glob("runs/*"))) == 1
    assert not Path("/stranger").exists()


def test_another_user_has_no_effect_but_a_count(tmp_path: Path) -> None:
    """If this failed, any user of the host could end a run, write its text, fill its memory or place its files."""
    with training(tmp_path) as launcher:
        ports = doors(launcher, servers=0)
        assert len(ports) == 1
        besieged(launcher, tmp_path, ports)
        out, error = stopped(launcher)
    assert refused(error) >= 5
    nothing_has_changed(tmp_path, out + error)


def test_a_run_with_servers_survives_more_strangers_than_it_has_descriptors(tmp_path: Path) -> None:
    """If this failed, whoever opens a thousand connections would end a run with servers."""
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (1024, 1024))
    with training(tmp_path, "--strategy", "ssp", "--workers", "1", first=limit) as launcher:
        ports = doors(launcher, servers=1)
        assert len(ports) == 2
        besieged(launcher, tmp_path, ports)
        with start_python(STRANGER, "hold", "127.0.0.1", *map(str, ports)) as stranger:
            assert stranger.stdout is not None
            assert stranger.stdout.readline() == "held 3000\n"
            descriptors = [psutil.Process(pid).num_fds() for pid in keepers(launcher)]
            goes_on(launcher, tmp_path)
            stranger.kill()
        goes_on(launcher, tmp_path)
        out, error = stopped(launcher)
    assert max(descriptors) < 400, "connections that have not proven themselves are bounded"
    assert refused(error) >= 1505
    (at_server,) = re.findall(r"refused at the socket: .*stranger ([\d,]+)", out)
    assert int(at_server.replace(",", "")) >= 1504, "the server counts them as well"
    nothing_has_changed(tmp_path, out + error)


def keepers(launcher: "subprocess.Popen[str]") -> list[int]:
    return [launcher.pid, *(child.pid for child in psutil.Process(launcher.pid).children())]
