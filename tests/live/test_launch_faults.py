"""Real workers that fail or are interrupted: what the user is told, how soon, and that nobody stays."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from stand_in import forked

from command import PIPES, start_python
from paceline.errors import RunFailed, UsageError
from paceline.runtimes.live.launcher.forking import ForkServer
from paceline.runtimes.live.launcher.launch import launch
from paceline.runtimes.live.launcher.processes import LaunchPlan
from run_folders import saved_run

STAND_IN = Path(__file__).with_name("stand_in.py")
Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a launcher with two workers; whatever is left of it when a test ends is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(behaviour: str) -> "subprocess.Popen[str]":
        words = (str(STAND_IN), "launch", json.dumps({"workers": 2}), behaviour)
        started.append(start_python(*words, env={"TMPDIR": str(tmp_path)}, start_new_session=True, **PIPES))
        return started[-1]

    yield begin
    for launcher in started:
        if launcher.poll() is None:
            for child in psutil.Process(launcher.pid).children():
                child.kill()
            launcher.kill()
        launcher.communicate()


def launch_forks(behaviour: str, plan: LaunchPlan) -> int:
    """Launch stand-ins from this process, as forks of it."""
    with ForkServer(forked, lambda: None) as forks:
        return launch(command_of(behaviour), plan, start=forks.start)


def command_of(behaviour: str) -> list[str]:
    """The command of one stand-in."""
    return [sys.executable, str(STAND_IN), "work", behaviour]


def until_ready(launcher: "subprocess.Popen[str]") -> dict[int, int]:
    """Wait until both workers have finished some steps; rank to process."""
    pids: dict[int, int] = {}
    assert launcher.stdout is not None
    while len(pids) < 2:
        line = launcher.stdout.readline()
        assert line, "the launcher ended before its workers were ready"
        if match := re.match(r"ready (\d) (\d+) of 2", line):
            pids[int(match[1])] = int(match[2])
    return pids


def wait_until_gone(pids: dict[int, int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(psutil.pid_exists(pid) for pid in pids.values()):
        assert time.monotonic() < deadline, "a worker was left behind"
        time.sleep(0.05)


def test_a_killed_worker_ends_the_run_and_is_named_with_what_is_safe(start: Start, tmp_path: Path) -> None:
    """If this failed, users would see a hang, or a torch traceback in place of the cause."""
    saved_run(tmp_path, 4)
    launcher = start(f"run={tmp_path}")
    pids = until_ready(launcher)
    os.kill(pids[1], signal.SIGKILL)
    killed = time.monotonic()
    _, stderr = launcher.communicate(timeout=15)
    assert time.monotonic() - killed < 10
    assert launcher.returncode == 1
    what, safe, resume = stderr.splitlines()
    assert re.fullmatch(
        r"paceline: rank 1 on \S+ died at step \d+ \(killed by signal 9, SIGKILL\); "
        r"the others stopped after [\d.]+ (us|ms|s)\.",
        what,
    )
    assert int(re.findall(r"step (\d+)", what)[0]) >= 5
    assert re.fullmatch(r"Safe: checkpoint of step 4, .* old\.", safe)
    assert resume == f"Resume: paceline train --resume {tmp_path}"
    wait_until_gone(pids, 1)


def test_an_exception_is_told_with_the_users_line_and_its_traceback_kept(tmp_path: Path) -> None:
    """If this failed, the peer's "connection closed" would hide the user's own error."""
    saved_run(tmp_path, 4).checkpoint(4, 1).unlink()
    with pytest.raises(RunFailed) as failed:
        launch_forks(f"raise=1@7,run={tmp_path}", LaunchPlan(workers=2))
    what, where, safe = str(failed.value).splitlines()
    told = r"rank 1 on \S+ failed at step 7: ValueError: a bad label, 11 \(stand_in.py:\d+ in train\); the others"
    assert re.match(told, what)
    assert where == f"Traceback: {tmp_path}/failure-rank-1.txt"
    assert "raise ValueError" in (tmp_path / "failure-rank-1.txt").read_text()
    assert safe == "Safe: no checkpoint yet; start again with the same command when the error is repaired."


def test_a_resumed_run_that_fails_at_once_still_has_what_was_safe(tmp_path: Path) -> None:
    """If this failed, its user would be told that nothing is saved, and start anew."""
    saved_run(tmp_path, 4)
    with pytest.raises(
        RunFailed, match=r"Safe: checkpoint of step 4, [\s\S]*\nResume: paceline train --resume "
    ):
        launch_forks("raise=1@1", LaunchPlan(workers=2, resume=tmp_path))


def test_a_mistake_that_only_a_worker_finds_is_the_users_to_fix(capfd: pytest.CaptureFixture[str]) -> None:
    """If this failed, scripts could not tell bad usage from a failed run, or the sentence would come twice."""
    handlers = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(UsageError, match=r"^'spp' is no strategy; choose another$"):
        launch(command_of("mistake=0@6"), LaunchPlan(workers=2))
    assert capfd.readouterr().err == ""
    assert [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_ctrl_c_lets_the_workers_stop_in_agreement(start: Start) -> None:
    """If this failed, Ctrl-C would lose the last checkpoint or leave workers running."""
    launcher = start("steps=1000000")
    pids = until_ready(launcher)
    launcher.send_signal(signal.SIGINT)
    stdout, stderr = launcher.communicate(timeout=15)
    assert launcher.returncode == 130
    assert sorted(stdout.splitlines()) == ["interrupted 0", "interrupted 1"]
    assert stderr == ""
    wait_until_gone(pids, 1)


def test_a_second_ctrl_c_ends_workers_that_cannot_stop(start: Start) -> None:
    """If this failed, a stuck worker would make Ctrl-C useless."""
    launcher = start("stuck=1@5")
    pids = until_ready(launcher)
    launcher.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert launcher.poll() is None
    launcher.send_signal(signal.SIGINT)
    _, stderr = launcher.communicate(timeout=30)
    assert launcher.returncode == 130
    assert stderr == "paceline: interrupted before the workers could save.\n"
    wait_until_gone(pids, 1)


def test_workers_do_not_outlive_a_launcher_that_is_killed(start: Start) -> None:
    """If this failed, kill -9 of the launcher would leave workers that train on unseen."""
    launcher = start("steps=1000000")
    pids = until_ready(launcher)
    launcher.kill()
    wait_until_gone(pids, 5)
