"""Where memory is short or cannot be shared, a sentence says so and everything works without."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crew import run_script

from paceline.shm import host

OWN = ("unshare", "-m", "setpriv", "--bounding-set", "-sys_ptrace")


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if os.geteuid() != 0 or subprocess.run([*OWN, "true"], capture_output=True).returncode:
        pytest.skip("a mount namespace needs root and a system that makes one")
    return run_script("shm_room.py", tmp_path_factory.mktemp("room"), before=OWN)


def heard(facts: dict[str, Any], scene: str) -> list[str]:
    return [text for result in facts[scene] for text in result["value"]["heard"]]


@pytest.mark.parametrize("scene", ["tiny", "tiny of three", "hidden", "invisible", "elsewhere"])
def test_without_shared_memory_gloo_gives_the_same_results(facts: dict[str, Any], scene: str) -> None:
    assert [result.get("value", result)["found"] for result in facts[scene]] == [{}] * len(facts[scene])


def test_one_sentence_says_what_is_wrong(facts: dict[str, Any]) -> None:
    (text,) = heard(facts, "tiny")
    assert text == (
        "UserWarning: sharing memory needs 8.4 MB and 0 MB are free; "
        "free some, or raise the container's limit; the ranks talk through Gloo instead"
    )
    (text,) = heard(facts, "elsewhere")
    assert text.startswith("UserWarning: shared memory needs Linux 5.3 or later on x86-64; the ranks talk")


def test_ranks_that_may_not_look_into_each_other_all_talk_through_gloo(facts: dict[str, Any]) -> None:
    """Rank 0 could map its own memory: if it went on alone, the others would wait for it."""
    (text,) = heard(facts, "hidden")
    assert text == (
        "UserWarning: this system does not let a rank open the memory of another through /proc "
        "(Permission denied); the ranks talk through Gloo instead"
    )
    (text,) = heard(facts, "invisible")
    assert text == (
        "UserWarning: this system hides the processes of other ranks in /proc; the ranks talk through Gloo instead"
    )


def test_memory_is_shared_without_dev_shm(facts: dict[str, Any]) -> None:
    """Docker gives a container 64 MB of it; no name in it can be left behind."""
    assert [result["value"]["found"] for result in facts["nowhere"]] == [[2], [2]]
    assert heard(facts, "nowhere") == []


def test_a_tensor_too_big_to_share_is_an_ordinary_one_and_sums_stay_right(facts: dict[str, Any]) -> None:
    for result in facts["crowded"]:
        assert result["value"]["found"] == [6.0, 6.0, 6.0]
    (text,) = heard(facts, "crowded")
    assert "sharing memory needs 40.0 MB and 20 MB are free" in text
    assert text.endswith("sums go through slots instead")


def test_a_run_notes_it_once_and_shows_what_it_really_talks_over(facts: dict[str, Any]) -> None:
    for scene, transport, says in (
        ("live", "gloo", "the ranks talk through Gloo instead"),
        ("live, crowded", "shm", "sums go through slots instead"),
    ):
        first, second = (result["value"]["found"] for result in facts[scene])
        assert [first["transport"], second["transport"]] == [transport, transport]
        (note,) = first["notes"]
        assert note.endswith(says)
        assert second["notes"] == heard(facts, scene) == []


@pytest.fixture
def limited() -> Iterator[Path]:
    """A cgroup with 300 MB for those who are put into it."""
    for folder, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = folder / f"paceline-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text("300000000")
        except OSError:
            if group.exists():
                group.rmdir()
            continue
        yield group
        group.rmdir()
        return
    pytest.skip("a cgroup needs root and a memory controller")


def test_a_cgroups_limit_is_kept_to(limited: Path) -> None:
    """Beyond it the kernel ends the process that asks, and nobody hears why."""
    code = """if True:
        import pathlib, sys
        from paceline.shm import segment
        pathlib.Path(sys.argv[1], "cgroup.procs").write_text("0")
        segment.create("fits", 50_000_000)
        try:
            segment.create("does not", 400_000_000)
        except segment.SharedMemoryUnavailable as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", code, str(limited)], capture_output=True, text=True)
    assert done.returncode == 0, f"ended by {-done.returncode}: {done.stderr[-1000:]}"
    assert done.stdout.startswith("sharing memory needs 400.0 MB and 2")


@pytest.mark.parametrize("version", [1, 2])
def test_what_is_free_is_the_least_of_all_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    limit, used = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes")
        if version == 1
        else ("memory.max", "memory.current")
    )
    prefix = "total_" if version == 1 else ""
    root = tmp_path / "memory" if version == 1 else tmp_path
    for path, most, taken, cached in (
        ("", "max", 0, 0),
        ("pod", "1000", 700, 100),
        ("pod/one", "900", 300, 0),
    ):
        group = root / path
        group.mkdir(parents=True, exist_ok=True)
        (group / limit).write_text(f"{most}\n")
        (group / used).write_text(f"{taken}\n")
        (group / "memory.stat").write_text(f"{prefix}inactive_file {cached}\n{prefix}active_file 30\n")
    told = tmp_path / "told"
    told.write_text("5:memory:/pod/one\n4:cpu:/\n" if version == 1 else "0::/pod/one\n")
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable: 5 kB\n")
    monkeypatch.setattr(host, "CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(host, "CGROUPS", told)
    monkeypatch.setattr(host, "MEMINFO", meminfo)
    assert host.free_memory() == 1000 - (700 - 100 - 30), "cached files are given up on demand"
    told.write_text("0::/elsewhere\n5:memory:/elsewhere/deeper\n")
    (root / limit).write_text("800")
    assert host.free_memory() == 830, "in a container its own cgroup looks like the root"
    told.write_text("")
    assert host.free_memory() == 5 * 1024
    meminfo.unlink()
    told.unlink()
    assert host.free_memory() > 2**60, "where nothing is told, nothing is refused"
