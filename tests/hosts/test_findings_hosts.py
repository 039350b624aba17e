"""A link between two hosts that is made narrow, or slow to answer, is named as what it is."""

import json
import subprocess
from pathlib import Path

import pytest

from paceline.runtimes.live.secret import Secret

NARROW = ("tbf", "rate", "200mbit", "burst", "64kb", "latency", "100ms")
FAR = ("netem", "delay", "4ms")


def shape(namespace: str, interface: str, discipline: tuple[str, ...]) -> None:
    words = ["tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", *discipline]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this machine shapes no links with {discipline[0]}: {error}")


@pytest.mark.parametrize(
    ("discipline", "hidden", "kind"), [(NARROW, 4096, "bandwidth"), (FAR, 16, "latency")]
)
def test_the_limit_of_a_shaped_link_is_named(
    two_hosts: tuple, tmp_path: Path, discipline: tuple[str, ...], hidden: int, kind: str
) -> None:
    """If this failed, people would buy bandwidth where latency is what costs them, or the other way round."""
    secret = tmp_path / "secret"
    Secret.new().write(secret)
    for host in two_hosts:
        shape(host.namespace, host.interface, discipline)
    place = f"--nodes 2 --workers 1 --address {two_hosts[0].address} --port 29519"
    words = ["-m", "paceline", "train", "--json", *place.split(), "-i", "24"]
    words += ["--model", f"cnn:hidden={hidden}", "--evaluate-every", "6 steps", "--checkpoint-every", "never"]
    launchers = [
        host.start(*words, "--node-rank", str(rank), "--secret-file", str(secret), cwd=tmp_path / host.name)
        for rank, host in enumerate(two_hosts)
    ]
    (out, error), _ = (launcher.communicate(timeout=60) for launcher in launchers)
    assert launchers[0].returncode == 0, error
    found = {one["kind"]: one for one in json.loads(out)["findings"]}
    assert kind in found, found
    assert "between 2 hosts" in found[kind]["sentence"]
    assert found[kind]["remedies"], "fewer exchanges help"
    (kept,) = (tmp_path / two_hosts[0].name / "runs").glob("*/findings.json")
    assert json.loads(kept.read_text())["findings"] == json.loads(out)["findings"]
