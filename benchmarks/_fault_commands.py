"""The commands of a scenario: the one that starts its run on a host, and what every launch of it needs there."""

import subprocess
import sys
from collections.abc import Sequence
from functools import cache

from _fault_hosts import Host
from _fault_scenarios import HANG, SILENCE, Scenario

SECRET = "secret"
"""The file above the hosts that all of them have."""


@cache
def offered() -> str:
    """The help of ``paceline train`` without its frame: which options there are."""
    command = [sys.executable, "-m", "paceline", "train", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return " ".join(text.replace("│", " ").split())


def place_words(scenario: Scenario, host: Host) -> list[str]:
    """What a launcher is told about its place, whether a run is new or goes on."""
    if scenario.hosts == 1:
        return []
    words = ["-n", str(scenario.hosts), "-np", str(scenario.workers), "-a", "10.78.0.1", "-p", "29500"]
    words += ["-nr", str(host.number)]
    only_with_servers = "What only the processes of a run with servers know" in offered()
    needs_secret = scenario.servers or not only_with_servers
    return [*words, "--secret-file", str(host.home.parent / SECRET)] if needs_secret else words


def patience_words(words: Sequence[str]) -> list[str]:
    """How soon silence and hanging are acted on, where that can be said and is not yet."""
    values = {"--hang-timeout": HANG, "--silence": SILENCE}
    missing = {name: value for name, value in values.items() if name in offered() and name not in words}
    return [word for name, value in missing.items() for word in (name, str(value))]


def fresh_words(scenario: Scenario, host: Host) -> list[str]:
    """The command that starts the run."""
    words = ["train", "--strategy", scenario.strategy, "--model", scenario.model, "-i", str(scenario.steps)]
    words += ["--checkpoint-every", f"{scenario.every} steps", "--evaluate-every", "100 steps"]
    if scenario.servers:
        words += ["--servers", str(scenario.servers)]
    if scenario.hosts == 1:
        words += ["--workers", str(scenario.workers)]
    return [*words, *place_words(scenario, host), *patience_words(words)]
