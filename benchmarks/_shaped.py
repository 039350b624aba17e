"""Training runs on one machine: its workers share memory, talk over the loopback, or stand in namespaces of their own.

Namespaces need root; every cable between them is shaped in both directions by tc's token bucket.
"""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from collectives_predicted import hosts, ip, namespace

PACELINE = (sys.executable, "-m", "paceline")
LONGEST = 240
"""Seconds that a run may take."""


def run_here(words: Sequence[str], workers: int, runs: Path, backend: str = "shm") -> Path:
    """The folder of a run on this host that has ended well."""
    command = [*PACELINE, "train", *words, "--workers", str(workers), "--threads", "1", *_kept(runs)]
    if backend != "shm":
        command += ["--backend", backend]
    out = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, timeout=LONGEST
    )
    return _folder(out.stdout.decode())


def run_apart(words: Sequence[str], workers: int, runs: Path, rate: str, served: bool) -> Path:
    """The folder of a run with each worker, and the server where there is one, in a namespace of its own."""
    secret = write_secret(runs)
    command = [*PACELINE, "train", *words, "--threads", "1", *_kept(runs), "--secret-file", str(secret)]
    if served:
        command += ["--servers", "1"]
    # The first process is the server where there is one; all meet at the first worker.
    said = spread(command, workers + served, rate, meet_at=1 if served else 0)
    return _folder(next(text for text in said if text.strip()))


def write_secret(folder: Path) -> Path:
    """What processes on several hosts need to find each other."""
    path = folder / "secret"
    path.touch(mode=0o600)
    path.write_text(os.urandom(32).hex())
    return path


def spread(command: Sequence[str], count: int, rate: str, meet_at: int = 0) -> list[str]:
    """Run one command in so many namespaces, as a launcher would start it; what each printed."""
    with hosts(count, rate) as names:
        return spread_over(names, command, meet_at)


def spread_over(names: Sequence[str], command: Sequence[str], meet_at: int = 0) -> list[str]:
    """The same in namespaces that are there."""
    crew = [_start(name, number, len(names), command, meet_at) for number, name in enumerate(names)]
    try:
        said = [one.communicate(timeout=LONGEST)[0] for one in crew]
    finally:
        for one in crew:
            if one.poll() is None:
                one.send_signal(signal.SIGTERM)
                one.wait()
    codes = [one.returncode for one in crew]
    assert not any(codes), f"exit codes {codes}"
    return said


@contextmanager
def far_hosts(delay: float) -> Iterator[list[str]]:
    """Two namespaces between which every packet is under way for so many seconds, with addresses as others have."""
    names = [f"paceline-bench-{os.getpid()}-{letter}" for letter in "ab"]
    ends = [f"{name},eth0,10.79.0.{number}/24" for number, name in enumerate(names, start=1)]
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(namespace(name))
            ip("-n", name, "link", "set", "lo", "up")
        relay = Path(__file__).with_name("_delay_link.py")
        words = [sys.executable, "-S", str(relay), str(delay), *ends]
        link = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        stack.callback(link.kill)
        assert link.stdout is not None
        assert link.stdout.readline() == "ready\n"
        yield names


def _start(
    host: str, number: int, count: int, command: Sequence[str], meet_at: int
) -> "subprocess.Popen[str]":
    """Processes in different network namespaces share no memory, as on different hosts."""
    inside = 'hostname "host-$RANK"; exec "$@"'
    place: Mapping[str, object] = {
        "RANK": number,
        "WORLD_SIZE": count,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 1,
        "GROUP_RANK": number,
        "GROUP_WORLD_SIZE": count,
        "MASTER_ADDR": f"10.79.0.{meet_at + 1}",
        "MASTER_PORT": 29500,
        "OMP_NUM_THREADS": 1,
        "GLOO_SOCKET_IFNAME": "eth0",
    }
    outside = ["ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c", inside, "sh"]
    return subprocess.Popen(
        [*outside, *command],
        env={**os.environ, **{name: str(value) for name, value in place.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _kept(runs: Path) -> list[str]:
    return ["--runs", str(runs), "--name", uuid.uuid4().hex[:8], "--json"]


def _folder(said: str) -> Path:
    return Path(json.loads(said)["run"]["folder"])
