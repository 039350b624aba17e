"""``paceline bench convergence`` as a user runs it: a small grid, an interruption, refusals."""

import contextlib
import io
import json
import signal
import time
from pathlib import Path

import pytest

from command import start_python
from paceline.cli.main import main

SMALL = ["bench", "convergence", "--model", "mlp", "--workers", "2", "-b", "16", "-i", "6", "--seeds", "2"]
TWO = ["--strategy", "all-reduce", "--strategy", "local-sgd:period=2"]


def run(*words: str, code: int = 0) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*SMALL, *words]) == code
    return out.getvalue()


def test_the_answer_comes_first_and_the_chart_lies_in_the_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    out = run(*TWO, "--codec", "identity", "--codec", "int8")
    lines = out.splitlines()
    assert " first: " in lines[0]
    assert lines[2].startswith("digits-mlp, 2 workers, 6 iterations, 2 seeds; ")
    (folder,) = (tmp_path / "convergence").iterdir()
    assert lines[-1] == f"chart: {folder.relative_to(tmp_path)}/convergence.svg"
    assert (folder / "convergence.svg").read_text().startswith("<svg")
    assert len(list((folder / "cells").iterdir())) == 8
    assert "no step times were given" in capsys.readouterr().err
    before = {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()}
    assert run(*TWO, "--codec", "identity", "--codec", "int8") == out
    assert {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()} == before


def test_json_is_one_document_and_a_target_is_read_off_without_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = json.loads(run(*TWO, "--out", "mine", "--chart", "there.svg", "--json"))
    assert (found["schema"], found["folder"], found["chart"]) == (1, "mine", "there.svg")
    assert Path("there.svg").exists()
    assert {(row["strategy"], row["runs"]) for row in found["rows"]} == {
        ("all-reduce", 2),
        ("local-sgd:period=2", 2),
    }
    monkeypatch.setattr("paceline.studies.convergence.run.CellPool._start", pytest.fail)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["bench", "convergence", "--resume", "mine", "--target-accuracy", "1", "--json"])
    assert code == 3, "nothing reaches it"
    again = json.loads(out.getvalue())
    assert (again["target"], again["target_given"]) == (1.0, True)
    assert again["answer"].startswith("Nothing reaches 100 %")


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(tmp_path):
    words = [*SMALL[:-1], "40", *TWO, "--processes", "1", "--out", "mine"]
    with start_python("-m", "paceline", *words, cwd=tmp_path) as process:
        cells = tmp_path / "mine" / "cells"
        end = time.monotonic() + 60
        while not list(cells.glob("[!.]*.json")) and time.monotonic() < end and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert out == ""
    kept = len(list(cells.glob("[!.]*.json")))
    assert kept >= 1
    assert err.splitlines()[-1] == (
        f"interrupted: {kept} of 80 runs are done and kept in mine; go on with "
        "'paceline bench convergence --resume mine'"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--strategy spp", "unknown strategy 'spp'; did you mean"),
        ("--codec in8", "unknown codec 'in8'; did you mean"),
        ("--seeds 0", "--seeds 0 is out of range: 1 to 1,000"),
        ("--processes 0", "--processes 0 is too small"),
        ("--target-accuracy 97", "--target-accuracy 97 must lie between 0 and 1"),
        ("--chart c.png", "--chart c.png: name a file that ends in .svg"),
        ("--evaluate-every never", "a study without evaluations compares nothing"),
        ("--keep 2", "unknown option '--keep'"),
        ("--resume nowhere", "nowhere is not the folder of a study"),
        ("--resume nowhere --strategy ps", "so --strategy has no place"),
        ("--resume nowhere --workers 2", "so --workers has no place"),
        ("--resume nowhere --out there", "so --out has no place"),
        ("--strategy local-sgd --codec dgc", "codec 'dgc' adds momentum"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "convergence", *words.split()]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert len([line for line in err.splitlines() if line.startswith("paceline: ")]) == 1
    assert list(tmp_path.iterdir()) == []
