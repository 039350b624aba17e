"""Whether findings are true: runs with a known ailment, and what each is told to try, tried.

Two workers train with a rank that is slowed down, from a slow disk, over a link of 100 Mbit/s, and over one that takes
5 ms each way. Each run must be told its ailment by name. Then it is repeated with each remedy that it was told, in turn
with the run as it was, and its samples a second are compared with those of the run. Exit code 3 where an ailment is not
named, where a remedy makes a run slower, or where the predicted gains are too far off. Needs root for the links.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

from _shaped import PACELINE, far_hosts, spread_over, write_secret
from collectives_predicted import hosts
from paceline.records.folder import RunFolder
from paceline.records.summary import read_summary

HELPS = 1.05
"""Times as fast that a run must be, at least, with what it was told to try."""
CLOSE = 1.25
"""The factor that predicted gains may be off, in the median."""
OPTIONS = ("--threads", "1", "--checkpoint-every", "never", "--evaluate-every", "8 steps", "--json")
IMAGES = ("--data", "synthetic:shape=1x28x28,train=2048,test=64")

Hosts = Callable[[], AbstractContextManager[list[str]]]


@dataclass(frozen=True)
class Ailment:
    kind: str
    """As the finding must have it."""
    words: tuple[str, ...]
    hosts: Hosts | None = None
    """Where its two workers are; None: on this host."""


AILMENTS = {
    "a slow rank": Ailment("slow-rank", (*IMAGES, "--slow", "1=2.5", "-i", "192")),
    "a starved loader": Ailment(
        "data", ("--job", f"{Path(__file__).with_name('_starved.py')}:build", "-i", "96")
    ),
    "100 Mbit/s": Ailment(
        "bandwidth", (*IMAGES, "--model", "cnn:hidden=512", "-i", "64"), lambda: hosts(2, "100mbit")
    ),
    "5 ms each way": Ailment("latency", ("--model", "cnn:hidden=16", "-i", "160"), lambda: far_hosts(0.005)),
}


@dataclass(frozen=True)
class Outcome:
    """One run: samples a second in steps, and its findings."""

    rate: float
    findings: list[dict[str, Any]]


def run(ailment: Ailment, home: Path, change: Sequence[tuple[str, str]] = ()) -> Outcome:
    """Train as the ailment has it, with these settings changed."""
    changed = dict(change)
    environment = {"LOADERS": changed.pop("loader_workers", "0")}
    workers, nodes = changed.pop("workers", "2"), changed.pop("nodes", "2")
    more = [word for name, value in changed.items() for word in (f"--{name.replace('_', '-')}", value)]
    runs = home / "runs"
    command = [*PACELINE, "train", *ailment.words, *OPTIONS, *more, "--runs", str(runs)]
    if ailment.hosts is None or nodes == "1":
        said = here([*command, "--workers", workers], environment)
    else:
        with ailment.hosts() as names:
            command += ["--secret-file", str(write_secret(home))]
            said = next(text for text in spread_over(names, command) if text.strip())
    document = json.loads(said)
    totals = read_summary(RunFolder(Path(document["run"]["folder"]))).totals
    steady = [(one.samples - one.warm_up_samples, one.in_steps.total) for one in totals if one.steps]
    return Outcome(sum(samples / seconds for samples, seconds in steady), document["findings"])


def here(command: Sequence[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        sys.exit(f"'{' '.join(command)}' ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


@dataclass(frozen=True)
class Tried:
    ailment: str
    finding: str
    change: str
    predicted: float
    measured: list[float]

    @property
    def gain(self) -> float:
        return median(self.measured)


def examine(name: str, ailment: Ailment, home: Path, repeats: int) -> tuple[bool, list[Tried]]:
    """Whether the ailment was named, and what came of each remedy."""
    first = run(ailment, home)
    named = any(one["kind"] == ailment.kind for one in first.findings)
    print(f"{name}: {' '.join(one['sentence'] for one in first.findings)}", file=sys.stderr)
    remedies = [(one["kind"], remedy) for one in first.findings for remedy in one["remedies"]]
    gains: list[list[float]] = [[] for _ in remedies]
    for _ in range(repeats):
        as_it_was = run(ailment, home).rate
        for (_, remedy), found in zip(remedies, gains, strict=True):
            found.append(
                run(ailment, home, [(key, value) for key, value in remedy["change"]]).rate / as_it_was
            )
    return named, [
        Tried(name, kind, ", ".join(" ".join(pair) for pair in remedy["change"]), remedy["gain"], found)
        for (kind, remedy), found in zip(remedies, gains, strict=True)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=2, help="of the run and of each remedy, in turn")
    parser.add_argument("--only", choices=AILMENTS, help="one ailment")
    options = parser.parse_args()
    missed, tried = [], list[Tried]()
    for name, ailment in AILMENTS.items():
        if options.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
                named, outcome = examine(name, ailment, Path(folder), options.repeats)
            missed += [] if named else [f"{name} is not named"]
            missed += [] if outcome else [f"nothing is predicted to help against {name}"]
            tried += outcome
    print("| ailment | finding | remedy | predicted | measured (low to high) |\n|---|---|---|---|---|")
    for one in tried:
        spread = f"{min(one.measured):.2f} to {max(one.measured):.2f}"
        print(
            f"| {one.ailment} | {one.finding} | {one.change} | {one.predicted:.2f} | {one.gain:.2f} ({spread}) |"
        )
        if one.gain < HELPS:
            missed.append(f"{one.change} does not help against {one.ailment}")
    off = exp(median(abs(log(one.gain / one.predicted)) for one in tried)) if tried else float("inf")
    print(
        f"\npredicted gains: off by a factor of {off:.2f} in the median over {len(tried)} (limit {CLOSE:g})"
    )
    if off > CLOSE:
        missed.append("predicted gains")
    print(f"missed: {', '.join(missed) or 'none'}")
    return 3 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
