"""A link between two hosts that is made narrow, or slow to answer, is named as what it is."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from paceline.runtimes.live.secret import Secret

RELAY = Path(__file__).parents[2] / "benchmarks" / "_delay_link.py"
DELAY = 0.005
"""Seconds that a packet is under way; a message and its answer take twice as long."""


@contextmanager
def narrow(hosts: tuple) -> Iterator[None]:
    """200 Mbit/s each way."""
    for host in hosts:
        words = ["tc", "-n", host.namespace, "qdisc", "add", "dev", host.interface, "root", "tbf"]
        subprocess.run([*words, "rate", "200mbit", "burst", "64kb", "latency", "100ms"], check=True)
    yield


@contextmanager
def far(hosts: tuple) -> Iterator[None]:
    """A link that delivers everything late takes the place of the cable."""
    subprocess.run(["ip", "-n", hosts[0].namespace, "link", "del", hosts[0].interface], check=True)
    ends = [f"{host.namespace},{host.interface},{host.address}/24" for host in hosts]
    words = [sys.executable, "-S", str(RELAY), str(DELAY), *ends]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as relay:
        try:
            assert relay.stdout is not None
            assert relay.stdout.readline() == "ready\n"
            yield
        finally:
            relay.kill()


@pytest.mark.parametrize(
    ("shaped", "hidden", "kind", "limit"),
    [
        (narrow, 4096, "bandwidth", "the bandwidth is the limit, not the latency"),
        (far, 16, "latency", "latency is the limit"),
    ],
)
def test_the_limit_of_a_shaped_link_is_named(
    two_hosts: tuple,
    tmp_path: Path,
    shaped: Callable[[tuple], AbstractContextManager[None]],
    hidden: int,
    kind: str,
    limit: str,
) -> None:
    """If this failed, people would buy bandwidth where latency is what costs them, or the other way round."""
    secret = tmp_path / "secret"
    Secret.new().write(secret)
    place = f"--nodes 2 --workers 1 --address {two_hosts[0].address} --port 29519"
    words = ["-m", "paceline", "train", "--json", *place.split(), "-i", "24"]
    words += ["--model", f"cnn:hidden={hidden}", "--evaluate-every", "6 steps", "--checkpoint-every", "never"]
    with shaped(two_hosts):
        launchers = [
            host.start(
                *words, "--node-rank", str(rank), "--secret-file", str(secret), cwd=tmp_path / host.name
            )
            for rank, host in enumerate(two_hosts)
        ]
        (out, error), _ = (launcher.communicate(timeout=60) for launcher in launchers)
    assert launchers[0].returncode == 0, error
    found = {one["kind"]: one for one in json.loads(out)["findings"]}
    assert kind in found, found
    assert "between 2 hosts" in found[kind]["sentence"]
    assert limit in found[kind]["sentence"]
    assert found[kind]["remedies"], "fewer exchanges help"
    assert all(one["gain"] > 1.1 for one in found[kind]["remedies"]), "what is named is predicted to help"
    (kept,) = (tmp_path / two_hosts[0].name / "runs").glob("*/findings.json")
    assert json.loads(kept.read_text())["findings"] == json.loads(out)["findings"]
