"""A server and a worker on two hosts: a cable that is cut is noticed at both ends, in seconds."""

import time
from pathlib import Path
from typing import Any

ENDS = str(Path(__file__).with_name("served_ends.py"))


def test_a_cut_cable_is_noticed_at_both_ends(two_hosts: tuple[Any, Any]) -> None:
    """TCP itself would wait for a quarter of an hour before it gave a silent peer up."""
    one, other = two_hosts
    server = one.start(ENDS, "serve", one.address)
    assert server.stdout is not None
    endpoint = server.stdout.readline().strip()
    assert endpoint.startswith(f"tcp://{one.address}:")
    worker = other.start(ENDS, "work", endpoint)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "served\n"
    time.sleep(1.5)
    other.unplug()
    began = time.monotonic()
    assert server.stdout.readline() == "silent\n"
    assert time.monotonic() - began < 6
    assert worker.stdout.readline() == f"server 0 at {endpoint} is lost: connection closed by peer\n"
    assert time.monotonic() - began < 9
