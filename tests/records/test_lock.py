import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.errors import RunFailed, UsageError
from paceline.records.folder import RunFolder, RunLock

HOLD = """
import sys
from pathlib import Path
from paceline.records.folder import RunFolder
from paceline.records.folder import RunLock
lock = RunLock.{how}(RunFolder(Path(sys.argv[1])), 0)
print("held", flush=True)
sys.stdin.read()
"""


def holder(path: Path, how: str) -> "subprocess.Popen[str]":
    """Another process with a share in the lock, until its input is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(how=how), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_lives_as_long_as_any_process_of_its_run(tmp_path):
    """If this failed, a run could be resumed while workers of it are left."""
    folder = RunFolder(tmp_path)
    owner = holder(tmp_path, "own")
    worker = holder(tmp_path, "share")
    with pytest.raises(UsageError, match=f"is in use: process {owner.pid} on "):
        RunLock.own(folder, 0)
    RunLock.own(folder, 1).close()
    owner.kill()
    owner.communicate()
    with pytest.raises(UsageError, match="is in use"):
        RunLock.own(folder, 0)
    worker.communicate("")
    with RunLock.own(folder, 0) as lock:
        lock.check()


def test_a_folder_that_is_only_read_need_not_be_writable(tmp_path, monkeypatch):
    """If this failed, nobody could go on from a run that another user, or a read-only disk, keeps."""
    folder, opened = RunFolder(tmp_path), os.open

    def read_only(path, flags, *more):
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(path, flags, *more)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(UsageError, match="cannot be opened"):
        RunLock.own(folder, 0)
    RunLock.own(folder, 0, only_read=True).close()
    monkeypatch.undo()
    owner = holder(tmp_path, "own")
    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(UsageError, match=f"is in use: process {owner.pid} on "):
        RunLock.own(folder, 0, only_read=True)
    monkeypatch.undo()
    owner.communicate("")


@pytest.mark.parametrize(
    "written", [b"", b"{}", b"\xff", b'{"pid":1,"host":"\\u001b[2J","since":"","command":""}']
)
def test_whatever_a_lock_says_of_its_holder_a_refusal_is_one_plain_sentence(written, tmp_path):
    folder = RunFolder(tmp_path)
    with RunLock.own(folder, 0):
        folder.lock(0).write_bytes(written)
        with pytest.raises(UsageError) as refused:
            RunLock.own(folder, 0)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("again", [False, True])
def test_a_folder_that_was_deleted_or_replaced_is_noticed(again, tmp_path):
    """If this failed, a run would go on writing into files that have no name any more, and end with 0."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    with RunLock.own(folder, 0) as lock:
        lock.check()
        shutil.copytree(folder.path, tmp_path / "other")
        shutil.rmtree(folder.path)
        if again:
            (tmp_path / "other").rename(folder.path)
        with pytest.raises(RunFailed, match="was deleted or replaced"):
            lock.check()
