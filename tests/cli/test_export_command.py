import gzip
import json
import shutil
from pathlib import Path

import pytest

from paceline.cli.main import main

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return shutil.copytree(GOLDEN / "served", tmp_path / "runs" / "served")


def test_tables_and_trace_go_into_the_run_folder_and_their_paths_are_printed(run, capsys):
    assert main(["export", str(run), "--to", "csv"]) == 0
    assert f"{run}/csv/steps.csv  128 rows\n" in capsys.readouterr().out
    assert main(["export", str(run), "--to", "trace"]) == 0
    assert capsys.readouterr().out == f"{run}/trace.json.gz\n"
    assert json.loads(gzip.decompress((run / "trace.json.gz").read_bytes()))["traceEvents"]


def test_the_latest_run_is_found(run, tmp_path, capsys):
    assert (
        main(["export", "latest", "--runs", str(run.parent), "--to", "csv", "--out", str(tmp_path / "o")])
        == 0
    )
    assert (tmp_path / "o" / "totals.csv").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere", "--to", "csv"], "nowhere is not the folder of a run: there is no such folder"),
        (["{run}", "--to", "xml"], "xml"),
        (["{run}", "--to", "csv", "--out", "{run}/config.json"], "give --out another folder"),
        (
            ["{run}", "--to", "csv", "--out", "/proc/x"],
            "cannot write to /proc/x: No such file or directory; give",
        ),
        (["latest", "--runs", "{run}", "--to", "csv"], "holds no run of 'paceline train'"),
    ],
)
def test_what_cannot_be_exported_is_refused_with_a_sentence(run, words, sentence, capsys):
    assert main(["export", *(word.replace("{run}", str(run)) for word in words)]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.startswith("paceline: ")
    assert error.count("\n") == 1


def test_a_second_set_of_event_files_is_refused(run, capsys):
    assert main(["export", str(run), "--to", "tensorboard"]) == 0
    assert main(["export", str(run), "--to", "tensorboard"]) == 2
    assert "every point twice" in capsys.readouterr().err


def test_a_run_that_has_not_ended_has_tables_but_no_event_files_of_tensorboard(run, capsys):
    (run / "summary.json").unlink()
    assert main(["export", str(run), "--to", "csv"]) == 0
    assert not (run / "csv" / "totals.csv").exists()
    assert main(["export", str(run), "--to", "tensorboard"]) == 2
    assert "holds no summary.json" in capsys.readouterr().err
