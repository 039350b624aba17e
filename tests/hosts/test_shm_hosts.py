"""A group over two hosts: shared memory inside each, Gloo between; the results do not depend on who is where."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ports import free_ports

SCRIPTS = Path(__file__).parents[1] / "shm"


def run(hosts: tuple[Any, Any], out: Path, ranks: tuple[str, str], size: int) -> dict[int, dict[str, Any]]:
    port, started = free_ports(1)[0], []
    path = os.pathsep.join([str(SCRIPTS), str(SCRIPTS.parent), os.environ.get("PYTHONPATH", "")])
    for host, mine in zip(hosts, ranks, strict=True):
        folder = out / host.name
        folder.mkdir()
        settings = {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": host.interface}
        words = [str(folder), mine, str(size), hosts[0].address, str(port)]
        started.append(host.start(str(SCRIPTS / "shm_hosts.py"), *words, **settings))
    for process in started:
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors[-3000:]
    found = {}
    for host, mine in zip(hosts, ranks, strict=True):
        results = json.loads((out / host.name / "facts.json").read_text())["ranks"]
        found.update(zip(map(int, mine.split(",")), results, strict=True))
    return found


@pytest.mark.parametrize(("ranks", "size"), [(("0,1", "2"), 3), (("0,2", "1,3"), 4)])
def test_two_hosts_make_one_group(
    two_hosts: tuple[Any, Any], tmp_path: Path, ranks: tuple[str, str], size: int
) -> None:
    found = run(two_hosts, tmp_path, ranks, size)
    survivors = [found[rank].get("value", found[rank]) for rank in range(size - 1)]
    assert [result["failed"] for result in survivors] == [{}] * (size - 1)
    assert not any(result["left"] for result in survivors)
    first = survivors[0]["texts"]
    assert all(result["texts"] == first for result in survivors), "ranks must hear the same on every host"
    assert first["last only"].startswith(
        "the ranks do not ask for the same: rank 0 called all_reduce(10 x float32"
    )
    assert "nothing was said" not in first.values()
    alone = len(ranks[1]) == 1  # then nobody saw it die
    for result in survivors:
        text, seconds = result["lost"]
        assert seconds < 5, f"it took {seconds} s to say: {text}"
        assert text.startswith("another host is lost, of those with ranks 2 (" if alone else "rank 3 died")
