"""This machine, calibrated with several workers: contention, links inside it, and shaped ones between its namespaces.

As a command it is one worker of such a calibration: ``_machine.py 1.9`` where workers in namespaces of one machine
compute 1.9 times as long together.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from _shaped import run_here, spread, write_secret
from paceline import __version__
from paceline.clusters.cluster import Cluster, Host, Link
from paceline.clusters.profile import LinkFit, Profile
from paceline.records.folder import RunFolder
from paceline.studies.calibrate.links import calibrate_messages
from paceline.studies.predict.deployment import ClusterLayout

USUAL = 0.004
"""Seconds of a step of the networks that links are calibrated with."""
LAUNCHES = 4
"""Of a calibration inside the machine; from one to the next its parts lie elsewhere in memory and on the cores."""


def calibrate(
    counts: Collection[int], served: Collection[int], networks: Collection[tuple[str, int]]
) -> Profile:
    """Contention and the links inside with each of these counts, messages with a server, and each (rate, hosts)."""
    here = {count: _here(count) for count in sorted(counts)}
    every = range(2, max(counts) + 1)
    profile = Profile(
        name="here",
        made=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        versions={"paceline": __version__, "torch": str(torch.__version__)},
        machine={},
        device={},
        links=tuple(link for found in here.values() for link in found["links"]),
        contention=(1.0, *(here[count]["long"] if count in here else 1.0 for count in every)),
        contention_short=(1.0, *(here[count]["short"] if count in here else 1.0 for count in every)),
    )
    links: list[LinkFit] = []
    for rate, count in sorted(networks):
        links += _apart(rate, count, profile.contention_between(USUAL)[count - 1])
    return replace(profile, links=(*profile.links, *links, *_messages(profile, sorted(served))))


def _here(count: int) -> dict[str, Any]:
    """Shared memory, the loopback and contention, each the middle of several launches."""
    print(f"calibrating with {count} workers", file=sys.stderr)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(count)]
    command = [sys.executable, *launcher, __file__, "1"]
    found = []
    for _ in range(LAUNCHES):
        out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
        found.append(json.loads(out.stdout))
    return {
        "short": statistics.median(one["short"] for one in found),
        "long": statistics.median(one["long"] for one in found),
        "links": _middle([[LinkFit(**link) for link in one["links"]] for one in found]),
    }


def _middle(launches: Sequence[Sequence[LinkFit]]) -> list[LinkFit]:
    """Of each link, the middle of what the launches found."""
    return [
        replace(
            fits[0],
            latency=statistics.median(fit.latency for fit in fits),
            bandwidth=1 / statistics.median(1 / fit.bandwidth for fit in fits),
            points=sum(fit.points for fit in fits),
        )
        for fits in zip(*launches, strict=True)
    ]


def _apart(rate: str, count: int, beside: float) -> list[LinkFit]:
    """A link's own name begins with its rate, as there are several."""
    print(f"calibrating {count} namespaces at {rate}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        secret = write_secret(Path(folder))
        said = spread([sys.executable, __file__, str(beside), str(secret)], count, rate)
    found = json.loads(next(text for text in said if text.strip()))
    return [replace(LinkFit(**link), name=f"{rate} {link['name']}") for link in found["links"]]


def _messages(profile: Profile, counts: Sequence[int]) -> list[LinkFit]:
    if not counts:
        return []
    print("calibrating messages with a server", file=sys.stderr)
    with tempfile.TemporaryDirectory() as runs:
        return calibrate_messages(profile, counts, partial(_train, Path(runs)), busy=True)


def _train(runs: Path, settings: Mapping[str, str]) -> RunFolder:
    given = {name: value for name, value in settings.items() if name not in ("workers", "threads")}
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    return RunFolder(run_here(words, int(settings["workers"]), runs))


def in_namespaces(profile: Profile, rate: str) -> ClusterLayout:
    """Workers in namespaces of one machine, each behind its shaped cable; a server has one of its own.

    They share the machine's cores, though not its memory.
    """

    def layout(workers: int, served: bool, apart: float) -> Cluster:
        fit = profile.link(f"{rate} {'wire' if served else 'network'}", workers)
        assert fit is not None, f"{rate} was not calibrated"
        link = Link(bandwidth=fit.bandwidth, latency=fit.latency)
        hosts = [Host(name=f"host-{number}", link=link) for number in range(workers)]
        server = [Host(name="server", link=link, workers=0, servers=1)] if served else []
        return Cluster.of((*hosts, *server), contention=profile.contention_between(apart))

    return layout


def probe(beside: float, secret: Path | None = None) -> None:
    """One worker of a calibration, as a launcher starts it."""
    from paceline.runtimes.live.process_info import ProcessInfo
    from paceline.studies.calibrate.links import calibrate_links

    info = ProcessInfo.from_environment()
    assert info is not None
    found = calibrate_links(replace(info, secret_file=secret), beside=beside, rounds=3)
    assert found is not None, "nothing asks it to stop"
    if info.rank == 0:
        print(json.dumps(asdict(found)))


if __name__ == "__main__":
    probe(float(sys.argv[1]), *map(Path, sys.argv[2:]))
