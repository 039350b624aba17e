"""Servers and their workers: a death is told at once, silence is a setting, and who is given up hears how to return."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults import Faulty, printed, run_printed
from ports import free_ports

Start = Callable[..., Faulty]
SSP = ("--strategy", "ssp:staleness=3")


def entries(run: Faulty) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.folder.server_events(0).read_text().splitlines()]


def test_a_killed_worker_is_gone_at_the_servers_within_a_second(start: Start) -> None:
    """If this failed, the others would stand at their bound until its silence tells."""
    run = start(*SSP, "-i", "200")
    run.until_saved()
    os.kill(run.worker(1), signal.SIGKILL)
    run.until_said(r"rank 1 on \S+ died at step \d+")
    run.hurry()
    assert run.ended() == 0, run.text
    (left,) = [entry for entry in entries(run) if entry.get("kind") == "Left" and entry.get("how") == "died"]
    last = max(entry["at"] for entry in entries(run) if entry.get("worker") == 1 and entry is not left)
    assert left["worker"] == 1
    assert left["at"] - last < 1.0


def test_a_worker_that_holds_the_gil_stays_unless_the_setting_is_small(start: Start) -> None:
    """If this failed, a job with a long call into C would lose its worker; or --silence would mean nothing."""
    patient = start(*SSP, "-i", "150", HELD="6500000", home="patient")
    strict = start(*SSP, "-i", "100000", "--silence", "2", HELD="5000000", home="strict")
    for run in (patient, strict):
        run.until_saved()
        (run.cwd / "gil-1").touch()
    strict.until_said(
        r"rank 1 on \S+ is given up: it was silent for [2-4][.\d]* s, and --silence 2 allows less"
    )
    strict.until_said(
        r"rank 1 on \S+ was given up by the servers at step \d+: .*; the run goes on with the others\."
    )
    # The run that goes on can be joined by the command that was printed.
    assert printed(strict.text, "Join")[:2] == ["train", "--join"]
    strict.process.send_signal(signal.SIGINT)
    assert strict.ended() == 130, strict.text
    assert patient.ended() == 0, patient.text
    assert "given up" not in patient.text


def two_nodes(start: Start, *options: str) -> list[Faulty]:
    """The same command on two hosts, which are one here."""
    (port,) = free_ports(1)
    place = ("-n", "2", "-np", "1", "-a", "127.0.0.1", "-p", str(port))
    return [start(*options, *place, "-nr", str(rank), home=f"node-{rank}") for rank in (0, 1)]


def test_after_ctrl_c_every_host_is_told_the_command_that_resumes_it_there(start: Start) -> None:
    """If this failed, both hosts would be told to train alone."""
    nodes = two_nodes(start, "-i", "200")
    nodes[0].until_saved()
    nodes[1].process.send_signal(signal.SIGINT)
    assert [node.ended() for node in nodes] == [130, 130]
    commands = [printed(node.text, "Resume") for node in nodes]
    assert [command[command.index("-nr") + 1] for command in commands] == ["0", "1"]
    from concurrent.futures import ThreadPoolExecutor

    for node in nodes:
        node.hurry()
    with ThreadPoolExecutor(2) as threads:
        told = list(threads.map(lambda node: run_printed(node.cwd, node.text, "Resume"), nodes))
    assert "resumed at step" in told[0]
