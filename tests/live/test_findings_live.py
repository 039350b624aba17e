"""Real runs with a known ailment are told what ails them, and a comparison with a healthy one agrees."""

import json
import re
from pathlib import Path

import pytest

from command import run_json, run_paceline

JOBS = f"{Path(__file__).parent / 'sleepy_jobs.py'}"
RUN = ("--job", f"{JOBS}:steady", "--batch-size", "4", "-i", "24", "--checkpoint-every", "never")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``healthy`` and ``slow`` below it: the same run, but for a rank that is slowed down."""
    home = tmp_path_factory.mktemp("runs")
    for name, more in (("healthy", ()), ("slow", ("--slow", "1=2.5"))):
        run_json("train", *RUN, *more, "--runs", name, cwd=home)
    return home


def folder(runs: Path, name: str) -> str:
    (found,) = (runs / name).iterdir()
    return str(found)


def test_a_slowed_rank_is_named_at_the_end_of_its_run(runs: Path) -> None:
    kept = json.loads((Path(folder(runs, "slow")) / "findings.json").read_text())["findings"]
    slow = next(one for one in kept if one["kind"] == "slow-rank")
    told = re.search(r"waiting for rank 1, which computes ([\d.]+)x as long", slow["sentence"])
    assert told, slow
    assert 1.7 < float(told[1]) < 3.0
    assert slow["remedies"]
    assert all(one["gain"] > 1.1 for one in slow["remedies"]), "what is named is predicted to help"
    assert "slow-rank" not in (Path(folder(runs, "healthy")) / "findings.json").read_text()


def test_a_record_says_what_remedies_depend_on(runs: Path) -> None:
    """Else loaders would be offered to a run that has some, or --workers where another launcher decides."""
    healthy = Path(folder(runs, "healthy"))
    workers = json.loads((healthy / "env.json").read_text())["workers"]
    assert {worker["launcher"] for worker in workers} == {"paceline"}
    assert json.loads((healthy / "summary.json").read_text())["loader_workers"] == 0


def test_a_comparison_names_the_slowed_rank_and_fails_where_it_is_asked_to(runs: Path) -> None:
    both = [folder(runs, "healthy"), folder(runs, "slow")]
    done = run_paceline("compare", *both, "--max-slowdown", "5%", cwd=runs, check=3)
    assert "slower per step" in done.stdout
    assert "is a slow rank: rank 1 computes" in " ".join(done.stdout.split())
    assert "slower per sample than" in done.stderr
    assert done.stderr.count("\n") == 1
    document = run_json("compare", *both, cwd=runs)
    assert document["differences"][0]["cause"] == "a slow rank"
    assert document["findings"][0]["kind"] == "slow-rank"
    run_paceline("compare", *reversed(both), "--max-slowdown", "5%", cwd=runs)


def test_a_starved_loader_is_named_at_the_end_of_its_run(tmp_path: Path) -> None:
    done = run_paceline("train", "--job", f"{JOBS}:starved", "-i", "20", "--batch-size", "8", cwd=tmp_path)
    text = " ".join(done.stdout.split())
    assert "of each step is spent on getting its batch" in text
    assert "Predicted to help: loader_workers=" in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "paceline: nowhere does not exist: name a run folder"),
        (["--max-slowdown", "lots", "nowhere"], "'lots' is not a share"),
        ([], "there is nothing to be compared"),
    ],
)
def test_wrong_words_are_refused_in_a_sentence(tmp_path: Path, words: list[str], sentence: str) -> None:
    done = run_paceline("compare", *words, cwd=tmp_path, check=2)
    assert sentence in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


def test_a_damaged_record_is_refused_in_a_sentence(runs: Path, tmp_path: Path) -> None:
    whole, copy = Path(folder(runs, "healthy")), tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "summary.json"):
        (copy / name).write_bytes((whole / name).read_bytes())
    (copy / "summary.json").write_text("{")
    done = run_paceline("compare", str(whole), str(copy), cwd=tmp_path, check=2)
    assert "summary.json is not a JSON document" in done.stderr
