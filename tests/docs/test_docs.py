"""What the docs show must work: the example strategy, the example clusters, the links."""

import re
from pathlib import Path
from typing import Any

import pytest

from command import run_json
from paceline.api.result import is_table

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


CLUSTERS = [path for path in sorted(ROOT.glob("examples/*.toml")) if "\nask = " not in path.read_text()]


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.stem)
def test_every_example_cluster_can_be_simulated(path, tmp_path):
    strategy = "async" if "start =" in path.read_text() else "all-reduce"  # who comes late needs a server
    document = run_json(
        *(
            "simulate",
            "--cluster",
            str(path),
            "--strategy",
            strategy,
            "--no-gradients",
            "-i",
            "20",
            "-b",
            "4",
        ),
        cwd=tmp_path,
    )
    assert document["summary"]["steps"] == 20
    assert document["summary"]["seconds"] > 0


def shown(page: str, words: str, language: str = "python") -> str:
    """The block of code on a page that has these words in it."""
    text = (ROOT / "docs" / page).read_text()
    blocks = re.findall(rf"```{language}\n(.*?)```", text, re.S)
    (source,) = [block for block in blocks if words in block]
    return source


def test_the_model_and_the_cluster_in_the_docs_are_predicted(tmp_path):
    (tmp_path / "tagger.py").write_text(shown("predict.md", "class Tagger"))
    (tmp_path / "lab.toml").write_text(shown("predict.md", "lab.toml", "toml"))
    words = ("predict", "tagger.py:build", "--cluster", "lab.toml")
    document = run_json(*words, cwd=tmp_path)
    assert [row["workers"] for row in document["series"][0]["rows"]] == [1, 2, 4, 8, 10]


def test_the_job_in_the_docs_learns(tmp_path):
    (tmp_path / "waves.py").write_text(shown("jobs.md", "class Waves"))
    document = run_json("simulate", "--job", "waves.py:build", "--epochs", "4", cwd=tmp_path)
    assert document["rows"][-1]["accuracy"] > 0.75


def test_the_job_with_dict_samples_in_the_docs_learns_and_is_predicted(tmp_path):
    (tmp_path / "reviews.py").write_text(shown("jobs.md", "class Reviews"))
    document = run_json("simulate", "--job", "reviews.py:build", "--epochs", "2", cwd=tmp_path)
    assert document["rows"][-1]["accuracy"] > 0.95
    words = ("predict", "--job", "reviews.py:build", "--device", "a100", "--workers", "1,2")
    rows = run_json(*words, cwd=tmp_path)["series"][0]["rows"]
    assert rows[1]["step"] > rows[0]["step"] > 0


def test_the_vision_job_in_the_docs_trains_alike_with_and_without_loader_processes(tmp_path):
    """Its crops are random: they would differ if a batch depended on the process that loads it."""
    (tmp_path / "photos.py").write_text(shown("jobs.md", "class Photos"))
    options = ("--job", "photos.py:build", "--epochs", "2")
    live = run_json("train", *options, cwd=tmp_path)
    virtual = run_json("simulate", *options, cwd=tmp_path)
    losses = [[row["train_loss"] for row in document["rows"]] for document in (live, virtual)]
    assert losses[0] == losses[1]
    assert losses[0][1] < losses[0][0]
    assert "test_loss" not in live["rows"][0]


def test_the_simulation_in_the_docs_runs(tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(shown("simulate.md", "paceline.simulate("), "simulate.md", "exec"), names)
    assert names["run"].value.summary.epochs == 2


def test_the_study_in_the_docs_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(shown("convergence.md", "bench_convergence("), "convergence.md", "exec"), names)
    assert capsys.readouterr().out.startswith("local-sgd:period=8 reaches ")
    rows = names["study"].rows
    assert {row["strategy"] for row in rows} == {"all-reduce", "local-sgd:period=8"}
    assert all(row["seconds_low"] <= row["seconds_median"] <= row["seconds_high"] for row in rows), "not flat"
    assert not any(is_table(value) for row in rows for value in row.values())


def test_pictures_are_small_and_shown():
    """If this failed, a reader would wait for a page, or see the frame of a picture that is not there."""
    text = (ROOT / "README.md").read_text()
    named = {
        ROOT / name
        for name in re.findall(r'(?:src|srcset)="([^"]+)"|\]\((docs/pictures/[^)]+)\)', text)
        for name in name
        if name
    }
    kept = set((ROOT / "docs" / "pictures").iterdir())
    assert kept == named
    assert all(file.stat().st_size <= 200_000 for file in kept)
