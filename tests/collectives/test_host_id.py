"""Who is on the same host: one answer for schedules and for shared memory."""

import ctypes
import os
import socket
from functools import partial
from pathlib import Path

import pytest

from command import run_python
from paceline.shm.host import host_id, machine_id, sharing_id

CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000
"""As sched.h has them; Python has names for them from 3.12 on."""


def told_in(folder: Path, namespace: int) -> str:
    """What a process says that has a namespace of its own, or none."""
    (folder / "tell.py").write_text("from paceline.shm.host import host_id\nprint(host_id())\n")
    done = run_python(str(folder / "tell.py"), first=partial(unshare, namespace), seconds=60)
    if "PermissionError" in done.stderr:
        pytest.skip(f"namespaces need root and a system that makes them: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def unshare(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(namespace):
        raise PermissionError(ctypes.get_errno(), f"unshare({namespace:#x})")


def test_a_host_name_does_not_part_what_no_network_lies_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers that share the host's network have names of their own."""
    before = host_id()
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert host_id() == before


def test_a_network_namespace_is_a_host_of_its_own(tmp_path: Path) -> None:
    assert told_in(tmp_path, 0) == host_id()
    assert told_in(tmp_path, CLONE_NEWNET) not in ("", host_id())
    assert told_in(tmp_path, CLONE_NEWUTS) == host_id()


def test_without_proc_the_host_name_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(Path, "stat", missing)
    name = socket.gethostname()
    assert (machine_id(), host_id()) == (name, f"{name}/{name}")


def test_whoever_shares_memory_is_on_one_host_and_under_one_user(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = sharing_id()
    assert mine.startswith(host_id())
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert sharing_id() != mine
    monkeypatch.setattr("paceline.shm.host.supported", lambda: False)
    assert sharing_id() == host_id()
