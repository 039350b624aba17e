"""``paceline report``: what it takes, what it refuses in one sentence, and the line that repeats a run."""

import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from convergence_studies import cell_result, study_of
from paceline.cli.main import main, make_app
from paceline.clusters.profile import FASTEST, LinkFit, Profile, write_profile
from paceline.commands.repeat import repeat_command
from paceline.jobs.spec import JobSpec
from paceline.records.files import json_text, to_document
from paceline.reports.calibrate import render_links
from paceline.reports.page.build import make_page
from paceline.reports.page.document import render_page
from paceline.reports.page.run import repeat_blocks
from paceline.runtimes.config import resolved
from paceline.runtimes.settings import Cadence
from paceline.studies.calibrate.link_fit import ContentionFit
from paceline.studies.convergence.folder import StudyFolder, read_convergence
from paceline.studies.convergence.result import summarize
from paceline.studies.predict import predict
from paceline.studies.predict.forecast import RunForecast
from paceline.studies.predict.request import PredictRequest
from paceline.studies.recorded import read_recorded

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def run(tmp_path):
    return Path(shutil.copytree(GOLDEN / "all-reduce", tmp_path / "run"))


def test_a_run_gets_a_page_in_its_folder(run, capsys):
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"report: {run / 'report.html'}\n"
    assert (run / "report.html").read_text().startswith("<!doctype html>")


def test_latest_is_the_run_that_was_used_last(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    run.rename(tmp_path / "runs" / "mine")
    assert main(["report", "latest"]) == 0
    assert capsys.readouterr().out == f"report: {Path('runs') / 'mine' / 'report.html'}\n"


def test_several_runs_make_one_page_where_it_is_asked_for(run, tmp_path):
    out = tmp_path / "both.html"
    assert main(["report", str(run), str(GOLDEN / "served"), "--out", str(out)]) == 0
    assert "2 runs compared" in out.read_text()
    assert not (GOLDEN / "served" / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "which run? name its folder"),
        (["nothere"], "there is no nothere"),
        (["empty"], "empty is nothing that can be reported"),
        (["list.json"], "list.json is nothing that can be reported"),
        (["run/prediction.json"], "which is on the run's page: name its folder, run"),
        (["unfinished"], "its run goes on, or was killed"),
        (["run", "p.json"], "p.json is a calibration profile, which has a page of its own"),
        (["run", "--out", "empty"], "empty is no file that can be replaced"),
        (["run", "--out", "nowhere/x.html"], "nowhere/x.html cannot be written"),
    ],
)
def test_wrong_input_is_one_sentence(words, told, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("list.json").write_text("[1]")
    Path("run/prediction.json").write_text(json_text(to_document(RunForecast(made="now"))))
    shutil.copytree(run, "unfinished")
    Path("unfinished/summary.json").unlink()
    write_profile(profile(), Path("p.json"))
    assert main(["report", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("paceline: ")
    assert told in said
    assert said.count("\n") == 1


def profile() -> Profile:
    links = (LinkFit(name="memory", bandwidth=4e9, latency=1e-5, spread=0.1, points=9),)
    return Profile(
        name="here", made="now", versions={"torch": "2"}, machine={"cores": 2}, device={}, links=links,
        contention=(1.0, 1.5), contention_short=(1.0, 2.0),
    )  # fmt: skip


def figures_of(path: Path):
    page = make_page([path], lambda _: "")
    return page, {figure.name: figure for figure in page.figures()}


def test_a_profile_has_a_page(tmp_path):
    write_profile(profile(), tmp_path / "p.json")
    page, figures = figures_of(tmp_path / "p.json")
    assert page.answer == (
        "here: with 2 workers on this host each computes 1.50 times as long as alone, 2.00 times where they "
        "synchronise after every step; memory carries 32 Gbit/s."
    )
    assert figures["links"].rows[0]["bandwidth"] == 3.2e10
    assert figures["links"].sentence.endswith("with 2 workers communicating at once.")
    assert [row["factor"] for row in figures["contention"].rows] == [1.0, 1.5, 1.0, 2.0]


def test_a_link_whose_fit_found_no_time_a_byte_has_no_bandwidth(tmp_path):
    """If this failed, a page and a calibration would show 1 TB/s as measured, and a chart of it and nothing else."""
    unknown = LinkFit(name="loopback", bandwidth=FASTEST, latency=3e-5, spread=0.1, points=9)
    write_profile(replace(profile(), links=(unknown, *profile().links)), tmp_path / "p.json")
    page, figures = figures_of(tmp_path / "p.json")
    said = "30 us a message, which is all that was found: too little time a byte to tell"
    assert page.answer.endswith(f"loopback: {said}.")
    assert [row["of"] for row in figures["links"].rows] == ["memory, 2 workers"]
    assert f"loopback, 2 workers: {said}." in render_page(page)
    fit = ContentionFit(workers=2, short=2.0, long=1.0, links=(unknown,))
    assert list(render_links(fit)) == [f"  loopback  {said}, typical error a factor of 1.11 (9 measurements)"]
    write_profile(replace(profile(), links=(unknown,)), tmp_path / "p.json")
    assert "links" not in figures_of(tmp_path / "p.json")[1]


def test_a_prediction_has_a_page(tmp_path):
    asked = PredictRequest(
        model="mlp", device="a100", network="25gbit", workers=(1, 2, 4), strategies=("all-reduce", "async")
    )
    found = predict(asked)
    (tmp_path / "p.json").write_text(json_text(to_document(found)))
    page, figures = figures_of(tmp_path / "p.json")
    rows = figures["speed-up"].rows
    assert [row["speed_up"] for row in rows if row["series"] == "async"] == [
        row.speed_up for row in found.series[1].rows
    ]
    assert all(row["low"] <= row["speed_up"] <= row["high"] for row in rows)
    parts = [
        row["ms"] for row in figures["step-0"].rows if row["of"] == "4 workers" and row["part"] != "hidden"
    ]
    assert sum(parts) == pytest.approx(1e3 * found.series[0].rows[-1].step)
    assert any(one.startswith("all-reduce: ") for one in page.findings)
    assert len(page.sections[2].blocks[0].rows) == 6


def test_a_study_of_convergence_has_a_page(tmp_path):
    study, folder = study_of("all-reduce", "async", seeds=2), StudyFolder(tmp_path / "study")
    folder.open(study)
    cells = [
        cell_result(strategy, seed, 0.5, 0.8 + seed / 20) for strategy in study.strategies for seed in (1, 2)
    ]
    for cell in cells:
        folder.keep(study, cell)
    result = summarize(study, "digits", cells)
    page, figures = figures_of(tmp_path / "study")
    rows = figures["accuracy-time"].rows
    for row in result.rows:
        shown = [
            (one["seconds"], one["accuracy"], one["low"], one["high"])
            for one in rows
            if one["series"] == str(row.pair)
        ]
        assert shown == [(one.seconds, one.accuracy, one.low, one.high) for one in row.curve]
    assert {*figures} == {"accuracy-time", "accuracy-bytes", "accuracy-samples"}
    assert len(page.sections[0].blocks[0].rows) == len(result.rows)
    assert (page.title, page.notes) == ("Convergence of digits mlp", ())
    folder.cell(study, cells[0].cell).unlink()
    told = ("1 of 4 runs are not done, or do not go together.",)
    assert figures_of(tmp_path / "study")[0].notes == told
    assert read_convergence(tmp_path / "study").left_out == told, "Python and plan read it as the page does"


CHANGES = {
    "as recorded": {},
    "other lengths": {"iterations": None, "epochs": 7, "target_accuracy": 0.9, "seed": 3, "keep": 1},
    "own batches": {"batch_sizes": (48, 16), "slow": {}, "evaluate": Cadence(0), "checkpoint": Cadence(1)},
    "a codec": {"codec": "top-k:ratio=0.25", "buffers": "rank0", "scale_lr": "linear"},
    "a schedule": {"collective": "ring", "strategy": "local-sgd:period=4", "slow": {0: 1.5, 1: 3.0}},
}


@pytest.mark.parametrize("name", ["all-reduce", "served"])
@pytest.mark.parametrize("changed", CHANGES)
def test_the_line_that_repeats_a_run_gives_its_settings(name, changed):
    config = read_recorded(GOLDEN / name).config
    settings = resolved(replace(config.settings, **CHANGES[changed]))
    words = shlex.split(repeat_command(replace(config, settings=settings)))
    assert words[:2] == ["paceline", "train"]
    _, bound, _ = make_app().parse_args(words[1:], exit_on_error=False, print_error=False)
    assert resolved(bound.arguments["options"].settings(settings.workers)) == settings


def test_a_simulated_run_is_repeated_where_a_line_can_say_its_cluster(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["simulate", "-np", "3", "-i", "4", "--no-gradients", "--strategy", "local-sgd:period=2"]
    assert main(words) == 0
    (folder,) = Path("runs").iterdir()
    config = read_recorded(folder).config
    line = shlex.split(repeat_command(config))
    assert line[:2] == ["paceline", "simulate"]
    assert main([*line[1:], "--runs", "again"]) == 0
    (again,) = Path("again").iterdir()
    assert read_recorded(again).config.identity == config.identity, "the same run, to the last bit"
    assert main(["report", str(folder)]) == 0
    assert "paceline report, simulated run" in (folder / "report.html").read_text()
    unknown = replace(config, machinery={"cluster": {"groups": []}})
    assert repeat_command(unknown) == ""


def test_commands_that_draw_nothing_do_not_import_altair():
    code = (
        "import sys; from paceline.cli.main import main; import paceline.cli.train, paceline.cli.report; "
        "main(['strategies']); sys.exit('altair' in sys.modules or 'vl_convert' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_the_page_of_a_script_claims_no_job_and_no_line_that_repeats_it(run):
    """If this failed, the page of a script's run would say that it trained the digits, and how to do that again."""
    recorded = read_recorded(run)
    settings = replace(recorded.config.settings, job=JobSpec(path="mine.py"))
    script = replace(recorded, config=replace(recorded.config, settings=settings))
    assert repeat_command(script.config) == ""
    said, table, _ = repeat_blocks(script, repeat_command)
    assert said.text.startswith("Start mine.py again as it was started")
    names = {name for name, _ in table.rows}
    assert "job path" in names
    assert not {"job data", "job model", "job optimizer"} & names
