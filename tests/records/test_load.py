"""How much other processes compute on this host, and how many cores a job may use."""

import os
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from command import hog
from paceline.records.load import HostLoad, LoadMeter, _quota, disturbance, usable_cores

IDLE = HostLoad(host="here", cores=2, wanted=2, others=0.0)


def test_a_process_of_the_job_is_no_disturbance_and_any_other_is() -> None:
    """If this failed, a calibration beside a busy process would pass, or a run would complain of its own workers."""
    with hog() as pid:
        own = LoadMeter()
        others = LoadMeter([2**22 + 1])  # no such process: whatever computes is somebody else
        time.sleep(1.0)
        ours, seen = own.load(), others.load()
        used = sum(psutil.Process(pid).cpu_times()[:2]) / own.seconds
    assert seen.others - ours.others > 0.6 * used > 0  # on a loaded machine it gets less than its core


def test_what_a_child_used_counts_after_its_end() -> None:
    """If this failed, a worker that has died would count as another program's load."""
    meter = LoadMeter()
    with hog():
        time.sleep(0.6)
        while_alive = meter.load().others
    assert meter.load().others <= while_alive + 0.3


@pytest.mark.parametrize(
    ("load", "disturbed"),
    [
        (IDLE, False),
        (replace(IDLE, others=0.1), False),
        (replace(IDLE, others=0.2), True),
        (replace(IDLE, cores=64, others=1.0), False),
        (replace(IDLE, cores=64, others=4.0), True),
        (replace(IDLE, cores=64, wanted=64, others=1.0), True),
    ],
)
def test_what_counts_as_a_disturbance(load: HostLoad, disturbed: bool) -> None:
    assert load.disturbed is disturbed
    assert bool(disturbance([IDLE, load])) is disturbed


def test_a_disturbance_is_told_with_its_amount_and_what_it_does() -> None:
    told = (
        "Other processes used 0.9 of 2 cores on here during the run: times {} longer than on an idle machine."
    )
    assert disturbance([replace(IDLE, others=0.9)]) == told.format("are")
    assert disturbance([replace(IDLE, wanted=1, others=0.9)]) == told.format("may be")


def test_a_quota_counts_as_cores(tmp_path: Path) -> None:
    """If this failed, a container with two cores of 64 would be told that it has 64."""
    own = tmp_path / "own"
    own.write_text("0::/pod/box\n")
    (tmp_path / "pod" / "box").mkdir(parents=True)
    (tmp_path / "pod" / "box" / "cpu.max").write_text("max 100000\n")
    assert _quota(tmp_path, own) == float("inf")
    (tmp_path / "pod" / "cpu.max").write_text("150000 100000\n")
    assert _quota(tmp_path, own) == 1.5
    assert _quota(tmp_path, tmp_path / "none") == float("inf")
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
