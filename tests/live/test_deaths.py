"""Servers and their workers: deaths are reported at once, silence is a setting, a removed worker can rejoin."""

import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from faults import PATIENCE, Faulty, printed, run_printed, start_printed

from command import start_python
from paceline.runtimes.live.failures import complete_steps
from paceline.runtimes.live.heartbeat import read_progress
from paceline.runtimes.live.launcher.supervisor import notify_death
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.server.server_socket import ServerSocket
from paceline.runtimes.live.wire.messages import Goodbye
from ports import free_ports

Start = Callable[..., Faulty]
SSP = ("--strategy", "ssp:staleness=3", "--checkpoint-every", "50 steps")


def entries(run: Faulty) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.folder.server_events(0).read_text().splitlines()]


def comes_back(run: Faulty, cwd: Path, text: str) -> None:
    """Join by the command that was printed, and end with the run."""
    with start_printed(cwd, text, "Join") as newcomer:
        try:
            assert newcomer.stdout is not None
            assert "joined" in newcomer.stdout.readline(), newcomer.stdout.read()
            run.hurry()
            assert run.ended() == 0, run.text
            assert newcomer.wait(PATIENCE) == 0, newcomer.stdout.read()
        finally:
            newcomer.kill()


def test_silence_is_a_setting_and_a_death_is_told_at_once(start: Start) -> None:
    """If this failed, a job with a long call into C would lose its worker, or a dead one would be waited for."""
    patient = start(*SSP, "-i", "600", HELD="6000000", home="patient")
    strict = start(*SSP, "-i", "600", "--silence", "2", HELD="4500000", home="strict")
    for run in (patient, strict):
        run.until_saved()
        (run.cwd / "gil-1").touch()
    strict.until_said(
        r"rank 1 on \S+ was removed: it was silent for [2-4][.\d]* s, longer than the 2 s allowed"
    )
    strict.until_said(
        r"rank 1 on \S+ was removed by the servers at step \d+: .*; the run goes on with the others\."
    )
    comes_back(strict, strict.cwd, strict.text)
    (launch,) = patient.cwd.glob("paceline-*")
    worker = ProcessInfo(rank=1, workers=2, launch=launch)
    held = read_progress(worker).step
    patient.until(lambda: read_progress(worker).step > held + 3, "going on after the call")
    assert "was removed" not in patient.text
    os.kill(patient.worker(1), signal.SIGKILL)
    patient.until_said(r"rank 1 on \S+ died at step \d+")
    patient.hurry()
    assert patient.ended() == 0, patient.text
    (left,) = [one for one in entries(patient) if one.get("kind") == "Leave" and one.get("how") == "died"]
    last = max(one["at"] for one in entries(patient) if one.get("worker") == 1 and one is not left)
    assert left["worker"] == 1
    assert left["at"] - last < 1.0, "the others stand at their bound for as long"


def two_nodes(start: Start, tmp_path: Path, *options: str) -> list[Faulty]:
    """The same command on two hosts, which are one here."""
    (port,) = free_ports(1)
    secret = tmp_path / "secret"
    secret.write_text("a secret of both hosts")
    secret.chmod(0o600)
    place = ("-n", "2", "-np", "1", "-a", "127.0.0.1", "-p", str(port), "--secret-file", str(secret))
    return [start(*options, *place, "-nr", str(rank), home=f"node-{rank}") for rank in (0, 1)]


def test_what_happens_on_one_host_is_told_on_both_and_both_resume_after_ctrl_c(
    start: Start, tmp_path: Path
) -> None:
    """If this failed, a host would not know for whom it waits, or be told to train alone."""
    nodes = two_nodes(start, tmp_path, "-i", "250")
    nodes[0].until_saved()
    os.kill(nodes[0].worker(1), signal.SIGSTOP)
    for node in nodes:
        node.until_said(r"rank 1 on \S+ \(process \d+\) has been stopped by a signal")
    os.kill(nodes[0].worker(1), signal.SIGCONT)
    for node in nodes:
        node.until_said(r"rank 1 on \S+ goes on again after")
    nodes[1].process.send_signal(signal.SIGINT)
    assert [node.ended() for node in nodes] == [130, 130]
    commands = [printed(node.text, "Resume") for node in nodes]
    assert [command[command.index("--node-rank") + 1] for command in commands] == ["0", "1"]
    for node in nodes:
        node.hurry()
    with ThreadPoolExecutor(2) as threads:
        told = list(threads.map(lambda node: run_printed(node.cwd, node.text, "Resume"), nodes))
    assert "resumed at step" in told[0]


def test_a_host_that_was_given_up_is_told_how_to_join_the_run_that_goes_on(
    start: Start, tmp_path: Path
) -> None:
    """If this failed, it would be told to resume a run that is under way."""
    nodes = two_nodes(start, tmp_path, *SSP, "-i", "600", "--silence", "4")
    nodes[0].until_saved()
    worker = nodes[0].worker(1)
    os.kill(worker, signal.SIGSTOP)
    nodes[0].until_said(r"rank 1 on \S+ was removed")
    os.kill(worker, signal.SIGCONT)
    assert nodes[1].ended() == 1
    assert "the run goes on without it.\nJoin: paceline train --join 127.0.0.1:" in nodes[1].text, nodes[
        1
    ].text
    assert "Resume" not in nodes[1].text
    comes_back(nodes[0], nodes[1].cwd, nodes[1].text)


def test_a_death_that_is_told_just_before_the_launcher_ends_is_heard() -> None:
    """If this failed, the servers would wait for the last worker of a host until its silence tells."""
    secret = Secret(b"a secret of the tests")
    with ServerSocket(secret, "127.0.0.1", torch.empty(1), 0, 1) as server:
        notify_death(secret, Goodbye(1, 7, "died"), server.endpoint)
        parcel = server.receive(5)
        assert parcel is not None, "the notice was dropped"
        assert parcel.message == Goodbye(1, 7, "died")


def test_a_host_that_has_only_servers_makes_its_run_folder(tmp_path: Path) -> None:
    """If this failed, a launcher that puts one process on each host could not run a parameter server."""
    (port,) = free_ports(1)
    secret = tmp_path / "secret"
    secret.write_text("a secret of both hosts")
    secret.chmod(0o600)
    words = ("train", "--strategy", "async", "--servers", "1", "-i", "4", "--secret-file", str(secret))
    shared = {"WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NO_COLOR": "1"}
    hosts = [
        start_python(
            *("-m", "paceline", *words, "--checkpoint-every", "2 steps", "--runs", f"runs-{rank}"),
            cwd=tmp_path,
            env={**shared, "RANK": rank, "GROUP_RANK": rank},
        )
        for rank in ("0", "1")
    ]
    try:
        told = [host.communicate(timeout=PATIENCE) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [0, 0], told
    (serving,), (working,) = ((tmp_path / f"runs-{rank}").iterdir() for rank in (0, 1))
    assert serving.name == working.name
    assert complete_steps(serving).complete[0] == 4, "its server's checkpoint is all that a run resumes from"
