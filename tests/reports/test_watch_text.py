import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.cli import watch as command
from paceline.cli.main import main
from paceline.records.files import from_document
from paceline.records.folder import RunFolder
from paceline.records.spans import StepBreakdown
from paceline.reports.summary import MOST_WORKERS
from paceline.reports.watch import shown_ranks, watch_line, watch_text
from paceline.studies.watch import RankState, RunState, RunWatcher, find_waited_for

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def state() -> RunState:
    """The golden run as if it went on."""
    return replace(
        RunWatcher(RunFolder(GOLDEN / "served")).look(), summary=None, status="running", silence=0.5
    )


def test_a_page_says_how_far_how_fast_and_who_waits_for_whom(state):
    text = watch_text(state, "runs/served")
    assert text.startswith("runs/served: running, 1.03 s so far\nstep 60 of 60 (100 %), 41,959 samples/s")
    assert "rank 1 is waited for: it waits 2 % of its time, the other rank 48 %" in text
    assert "forward 18 %, backward 37 %" in text
    assert "server 0: version 65" in text
    assert "0.9528" in text
    assert "234 MB" in text
    assert "\n" not in watch_line(state)


@pytest.mark.parametrize(
    ("locked", "words"),
    [(True, "its processes live"), (False, "no process of this host uses it"), (None, "cannot be told")],
)
def test_silence_is_told_with_what_is_known_of_its_processes(state, locked, words):
    silent = replace(state, status="silent", silence=42.0, locked=locked)
    assert f"silent for 42 s; {words}" in watch_text(silent, "run").replace("whether its processes live ", "")
    assert watch_line(silent).startswith("silent for 42 s")


def test_of_many_ranks_the_fastest_the_slowest_and_those_that_matter_are_shown(state):
    ranks = tuple(
        RankState(
            rank=rank,
            step=100,
            seconds=1.0,
            samples_per_second=10.0,
            steps_per_second=1.0,
            last_steps=StepBreakdown(forward=1 + (rank * 7 % 64) / 100),
            waiting=0.0 if rank == 9 else 0.5 + rank / 1000,
        )
        for rank in range(64)
    )
    many = replace(state, ranks=ranks, waited_for=find_waited_for(ranks))
    remarks, left_out = shown_ranks(many)
    assert len(remarks) == MOST_WORKERS
    assert left_out == 64 - MOST_WORKERS
    assert remarks[9].endswith("waited for")
    assert {"fastest", "slowest"} <= {word for remark in remarks.values() for word in remark.split(", ")}
    assert 63 in remarks, "it waits longest"
    assert "56 more that wait less are left out" in watch_text(many, "run")


def test_once_prints_and_ends_also_as_a_document(capsys):
    import json

    assert main(["watch", str(GOLDEN / "served"), "--once"]) == 0
    assert "where a step went" in capsys.readouterr().out
    assert main(["watch", str(GOLDEN / "served"), "--once", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert document["status"] == "ended"
    assert [one["step"] for one in document["ranks"]] == [61, 59]
    assert from_document(document["last_steps"], StepBreakdown).total > 0
    assert document["rows"][-1]["accuracy"] == pytest.approx(0.9528, abs=1e-4)


def test_a_run_that_has_ended_is_shown_and_left(capsys):
    assert main(["watch", str(GOLDEN / "all-reduce")]) == 0
    assert "has ended" in capsys.readouterr().out


def test_a_damaged_summary_is_refused_by_its_name(tmp_path, capsys):
    """Else a run that ended long ago would be said to run."""
    run = shutil.copytree(GOLDEN / "served", tmp_path / "served")
    (run / "summary.json").write_text('{"a": 1}')
    assert main(["watch", str(run), "--once"]) == 2
    printed = capsys.readouterr()
    assert not printed.out
    assert f"{run}/summary.json is not the summary of a run" in printed.err


def test_ctrl_c_ends_quietly(state, monkeypatch, capsys):
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunWatcher, "look", lambda _: state)
    monkeypatch.setattr(command.time, "sleep", interrupt)
    assert main(["watch", str(GOLDEN / "served")]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{watch_line(state)}\n"
    assert "Traceback" not in shown.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "nowhere is not the folder of a run"),
        ([str(GOLDEN / "served"), "--json"], "--json needs --once"),
        ([str(GOLDEN / "served"), "--once", "--every", "2"], "--every 2 has no place with --once"),
        ([str(GOLDEN / "served"), "--every", "0"], "--every 0 is too short"),
        ([str(GOLDEN / "served"), "--every", "nan"], "--every nan is too short"),
    ],
)
def test_bad_input_is_one_sentence(words, sentence, capsys):
    assert main(["watch", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
