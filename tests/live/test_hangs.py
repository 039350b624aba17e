"""Processes that hang: who it is and where is told in seconds, and the launcher ends, with the right exit code."""

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable

from faults import Faulty, run_printed

Start = Callable[..., Faulty]
SSP = ("--strategy", "ssp:staleness=3")


def test_a_stopped_worker_is_named_goes_on_when_let_and_is_ended_when_not(start: Start) -> None:
    """If this failed, SIGSTOP of one worker would hang all of them for minutes, without a word."""
    run = start("-i", "200", "--hang-timeout", "2")
    run.until_saved()
    os.kill(run.worker(1), signal.SIGSTOP)
    run.until_said(r"rank 1 on \S+ \(process \d+\) has been stopped by a signal since [\d:]+, step \d+")
    command = re.findall(r"'(kill -CONT \d+)' lets it go on; ended in \d s unless it goes on", run.text)
    subprocess.run(shlex.split(command[0]), check=True)
    run.until_said(r"rank 1 on \S+ goes on again after [\d.]+ m?s")
    os.kill(run.worker(1), signal.SIGSTOP)
    stopped = time.monotonic()
    assert run.ended() == 1
    assert time.monotonic() - stopped < 10
    told = (
        r"paceline: rank 1 on \S+ had been stopped by a signal since [\d:]+ "
        r"and was ended after 2[.\d]* s, at step \d+; "
    )
    assert re.search(told, run.text), run.text


def test_a_worker_that_sleeps_in_forward_is_the_cause_with_its_line(start: Start) -> None:
    """If this failed, the healthy rank would be named, after five minutes."""
    run = start("-i", "100000", "--hang-timeout", "2")
    run.until_saved()
    (run.cwd / "hang-1").touch()
    asked = time.monotonic()
    assert run.ended() == 1
    assert time.monotonic() - asked < 12
    notice = (
        r"paceline: rank 1 on \S+ has made no progress since [\d:]+ \(step \d+, forward; its steps took [\d.]+ ms "
        r"until then\); ended in \d s unless it goes on\n  \S+mine.py:\d+ in loss\n"
    )
    assert re.search(notice, run.text), run.text
    assert "rank 0 on" not in run.text
    cause = (
        r"\npaceline: rank 1 on \S+ had made no progress in forward since [\d:]+ and was ended after 2[.\d]* s, "
        r"at step \d+ \(mine.py:\d+ in loss\); the others stopped after [\d.]+ m?s\.\nSafe: checkpoint of step"
    )
    assert re.search(cause, run.text), run.text


def test_a_worker_of_a_server_that_is_stopped_does_not_keep_the_launcher(start: Start) -> None:
    """If this failed, the summary would be written and the command would never end."""
    run = start(*SSP, "-i", "200", "--hang-timeout", "2")
    run.until_saved()
    os.kill(run.worker(1), signal.SIGSTOP)
    run.until_said(r"rank 1 on \S+ had been stopped by a signal .*; the run goes on with the others\.")
    run.hurry()
    assert run.ended() == 0, run.text
    assert run.folder.summary.exists()


def test_a_server_that_is_stopped_ends_the_run_with_the_command_that_resumes_it(start: Start) -> None:
    """If this failed, workers and launcher would wait for ever for a server that does not answer."""
    run = start(*SSP, "-i", "200", "--hang-timeout", "2")
    run.until_saved()
    server = run.server()
    os.kill(server, signal.SIGSTOP)
    stopped = time.monotonic()
    assert run.ended() == 1
    assert time.monotonic() - stopped < 12
    assert re.search(r"server 0 on \S+ had been stopped by a signal since [\d:]+ and was ended", run.text), (
        run.text
    )
    run.hurry()
    assert "resumed at step" in run_printed(run.cwd, run.text, "Resume")
