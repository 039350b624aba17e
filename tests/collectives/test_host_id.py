"""Who is on the same host: one answer for schedules and for shared memory."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.shm.host import host_id, machine_id, sharing_id


def told_by(*before: str) -> str:
    """What a process says that is started by these words."""
    words = [
        *before,
        sys.executable,
        "-c",
        "from paceline.shm.host import host_id; print(host_id())",
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    if done.returncode:
        pytest.skip(f"{before} needs root and a system that makes namespaces: {done.stderr[-200:]}")
    return done.stdout.strip()


def test_a_host_name_does_not_part_what_no_network_lies_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers that share the host's network have names of their own."""
    before = host_id()
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert host_id() == before


def test_a_network_namespace_is_a_host_of_its_own() -> None:
    assert told_by() == host_id()
    assert told_by("unshare", "--net") != host_id()
    assert told_by("unshare", "--uts") == host_id()


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
