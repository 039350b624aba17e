"""A calibration on a machine that also does something else."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from paceline.cli.main import main
from paceline.clusters.profile import DISTURBED, Profile
from paceline.errors import RunFailed
from paceline.records.load import HostLoad, LoadMeter
from paceline.studies.calibrate.device import QuietMachine
from paceline.studies.predict.compute import profile_words

LOAD = HostLoad(host="here", cores=2, wanted=1, others=0.0)


class Stated:
    """A meter that reads what it is told, one reading after the other; then nothing."""

    seconds = 1.0

    def __init__(self, *others: float) -> None:
        self._others = iter(others)

    def restart(self) -> None: ...

    def load(self) -> HostLoad:
        return replace(LOAD, others=next(self._others, 0.0))


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.studies.calibrate.device.PATIENCE", 5.0)
    monkeypatch.setattr("paceline.studies.calibrate.device.WINDOW", 0.0)


def machine(*others: float, busy: bool = False) -> tuple[QuietMachine, list[str]]:
    said: list[str] = []
    return QuietMachine(cast("LoadMeter", Stated(*others)), said.append, busy=busy), said


def test_it_waits_until_nothing_else_computes_and_says_so() -> None:
    found, said = machine(0.9, 0.9, 0.0)
    assert found.lost == 2.0
    assert len(said) == 1
    assert "other processes use 0.9 of 2 cores on here" in said[0]


def test_what_was_disturbed_is_measured_again() -> None:
    """If this failed, one burst of another program would be fitted as if the machine were slow."""
    found, _ = machine(0.0, 0.0, 1.0, 0.5, 0.0, 0.0)
    calls: Iterator[int] = iter(range(9))
    assert found.measure(lambda: next(calls)) == 0
    assert found.measure(lambda: next(calls)) == 2
    assert found.lost == 2.0
    assert not found.disturbance


def test_it_gives_up_and_names_the_amount() -> None:
    with pytest.raises(
        RunFailed,
        match=r"other processes use 1.4 of 2 cores on here, and did so for 6 s: .*allow a busy machine",
    ):
        machine(*[1.4] * 9)


def test_the_command_names_the_option_that_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LoadMeter, "load", lambda _: replace(LOAD, others=1.4))
    monkeypatch.setattr(LoadMeter, "seconds", 9.0)
    assert main(["calibrate", "device", "--out", str(tmp_path / "here.json")]) == 1
    error = capsys.readouterr().err
    assert error.endswith("calibrate again, or add --busy, which measures anyway and marks the profile\n")


def test_a_busy_machine_that_is_accepted_is_not_waited_for_and_told() -> None:
    found, said = machine(0.7, busy=True)
    found.measure(lambda: None)
    found.measure(lambda: None)
    assert not said
    assert found.disturbance.startswith("Other processes used 0.7 of 2 cores on here during the measurement")


def test_a_profile_of_a_busy_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If this failed, predictions would be a third too slow, and nobody would know why."""
    monkeypatch.setattr(LoadMeter, "load", lambda self: replace(LOAD, others=0.9))
    monkeypatch.setattr("paceline.studies.calibrate.device.PATIENCE", 0.0)
    assert main(["calibrate", "device", "--seconds", "2", "--out", str(tmp_path / "here.json")]) == 1
    assert "other processes use 0.9 of 2 cores on here" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_predictions_by_a_marked_profile_say_so() -> None:
    machine = {"threads": 2, DISTURBED: "Other processes used 0.9 of 2 cores."}
    profile = Profile(name="here", made="now", versions={}, machine=machine, device={})
    assert profile_words(profile).endswith(
        "measured now, 2 threads per worker. Other processes used 0.9 of 2 cores"
    )
