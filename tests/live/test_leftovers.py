"""What is left behind when a launcher, a server or everybody is killed: nothing, and a way to go on."""

import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from faults import Faulty, run_printed

from paceline.records.folder import RunFolder
from paceline.runtimes.live.launch_folder import LaunchFolder, sweep
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.server.run import invitation

Start = Callable[..., Faulty]
SSP = ("--strategy", "ssp:staleness=3")


def launches(folder: Path) -> list[Path]:
    return [*folder.glob("paceline-*"), *folder.glob(".paceline-*")]


def test_a_killed_launcher_leaves_no_folder_and_a_command_that_works(start: Start) -> None:
    """If this failed, kill -9 of the launcher would leave a secret in /tmp and nobody would say what is safe."""
    run = start("-i", "200")
    run.until_saved()
    workers = [run.worker(rank) for rank in (0, 1)]
    (launch,) = launches(run.cwd)
    assert (launch / "secret").stat().st_mode & 0o077 == 0
    run.process.kill()
    run.process.wait()
    deadline = time.monotonic() + 20
    while any(psutil.pid_exists(pid) for pid in workers) or launches(run.cwd):
        assert time.monotonic() < deadline, "a worker or a folder was left behind"
        time.sleep(0.05)
    assert len(re.findall("^Resume: ", run.text, re.MULTILINE)) == 1, run.text
    run.hurry()
    assert "resumed at step" in run_printed(run.cwd, run.text, "Resume")


def test_the_users_secret_is_copied_nowhere_and_one_of_our_own_goes_with_the_run(start: Start) -> None:
    """If this failed, a killed server would leave the secret in a folder that people share."""
    mine = "a secret of the user, of some length"
    home = Path(tempfile.mkdtemp())
    (home / "secret").write_text(mine)
    (home / "secret").chmod(0o600)
    try:
        run = start(*SSP, "-i", "100000", "--secret-file", str(home / "secret"))
        run.until_saved()
        assert json.loads(run.folder.join.read_text())["secret"] == str(home / "secret")
        os.kill(run.server(), signal.SIGKILL)
        assert run.ended() == 1
        holders = [
            file for file in run.cwd.rglob("*") if file.is_file() and mine.encode() in file.read_bytes()
        ]
        assert holders == []
        assert launches(run.cwd) == []
    finally:
        shutil.rmtree(home)


def test_a_secret_that_a_killed_server_has_left_is_gone_when_the_run_goes_on(tmp_path: Path) -> None:
    """If this failed, it would stay in the run folder for ever; and one that is in no file could not be joined with."""
    folder = RunFolder(tmp_path)
    folder.join_secret.write_text("of a server that was killed")
    with invitation(folder, "tcp://127.0.0.1:1", Secret(b"a secret of the run"), tmp_path / "mine"):
        assert not folder.join_secret.exists()
        assert json.loads(folder.join.read_text())["secret"] == str(tmp_path / "mine")
    with invitation(folder, "tcp://127.0.0.1:1", Secret(b"a secret of the run"), None):
        assert folder.join_secret.read_text() == "a secret of the run\n"
        assert folder.join_secret.stat().st_mode & 0o077 == 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_nobody_uses_is_swept_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this failed, secrets of killed launchers would stay for ever, or a live run would lose its folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    child = os.fork()
    if child == 0:
        LaunchFolder.make()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (dead,) = launches(tmp_path)
    somebody_elses = tmp_path / "paceline-notes"
    somebody_elses.mkdir()
    used = LaunchFolder.make()
    assert not dead.exists()
    worker = LaunchFolder(used.path)
    sweep(tmp_path)
    worker.remove_if_last()
    assert used.path.exists(), "the launcher still uses it"
    assert used.path.stat().st_mode & 0o077 == 0
    assert somebody_elses.exists()
    used.remove()
    assert launches(tmp_path) == [somebody_elses]
