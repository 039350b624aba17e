"""Every worked case is a file under examples/, and its answer comes out of the command."""

import json
import re
from pathlib import Path

import pytest

from paceline.cli.main import main
from paceline.reports.scenarios import RENDERERS
from paceline.studies.scenarios.scenario import ASKS

EXAMPLES = Path(__file__).parents[2] / "examples"
PAGE = EXAMPLES.parent / "docs" / "scenarios.md"


def ask(capsys, name: str, both: bool = True) -> tuple[str, dict]:
    """What the command prints for an example, in words and as a document; or only the answer of the document."""
    path = EXAMPLES / f"{name}.toml"
    assert main(["simulate", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["answer"] in PAGE.read_text(), "the page shows what the command prints"
    if not both:
        return document["answer"], document["result"]
    assert main(["simulate", str(path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith(document["answer"]), "the answer comes first"
    assert f"({document['about']})" in text, "then the file's own line of explanation"
    return text, document["result"]


def test_a_master_and_six_workers_need_84_rounds(capsys):
    text, result = ask(capsys, "master-six-workers")
    assert text.startswith(
        "595.5 s for 500 batches: 83 rounds of 6 workers take 7.09 s each and 1 round of 2 "
    )
    assert [(one["count"], one["workers"]) for one in result["rounds"]] == [(83, 6), (1, 2)]
    assert [one["seconds"] for one in result["rounds"]] == pytest.approx([7.09, 7.03], abs=1e-4)
    assert result["seconds"] == pytest.approx(595.5, abs=1e-3)


def test_communication_and_aggregation_exceed_computation_from_67_workers(capsys):
    text, result = ask(capsys, "master-many-workers", both=False)
    assert text.startswith("From 67 workers on")
    assert "with 66 it is 3.99 s" in text
    rest = {one["workers"]: one["rest"] for one in result["tried"]}
    assert rest == pytest.approx({m: 3 + 0.015 * m for m in rest}, abs=1e-4), "each is a run of its own"


def test_a_federated_round_of_eight_devices(capsys):
    text, result = ask(capsys, "federated-eight-devices")
    assert text.startswith("32,014 s for one round of 8 workers, 8,000 batches per worker")
    assert result["seconds"] == pytest.approx(32_014, abs=1e-3)


def test_four_asynchronous_cores_each_once(capsys):
    text, result = ask(capsys, "async-each-core-once")
    assert text.startswith("3 updates within 0.6 s, all computed on the first parameters: staleness 0, 1, 2,")
    assert "2 of 3 are stale and core-4 does not finish" in text
    assert "at most 4 eta Delta" in text
    assert result["staleness"] == [0, 1, 2]
    assert result["distance"] == 4


def test_four_asynchronous_cores_for_the_whole_horizon(capsys):
    text, result = ask(capsys, "async-whole-horizon")
    assert text.startswith("5 updates within 0.6 s: staleness 0, 1, 2, 2, 2,")
    assert "first parameters" not in text
    assert "sequential SGD, which makes 3 updates" in text
    assert result["distance"] == 6


def test_four_synchronous_cores(capsys):
    text, result = ask(capsys, "sync-four-cores")
    assert text.startswith("1.05 s for one round of 4 workers")
    assert result["seconds"] == pytest.approx(1.05)


def test_a_ring_of_four_ends_with_the_column_maxima(capsys):
    text, result = ask(capsys, "ring-max")
    assert text.startswith("4 processes take 3 share-reduce rounds, then 3 share-only rounds")
    (stage,) = result["stages"]
    columns = zip(*stage["start"]["cells"], strict=True)
    assert result["result"] == [max(value for (value,) in column) for column in columns]
    assert [step["phase"] for step in stage["steps"]] == ["share-reduce"] * 3 + ["share-only"] * 3


def test_peak_throughput(capsys):
    text, result = ask(capsys, "peak-throughput")
    assert all(words in text for words in ("121 images/s", "1,164 images/s", "477 images/s"))
    assert [one["seconds"] for one in result["models"]] == pytest.approx([8.3e-3, 0.86e-3, 2.10e-3], rel=2e-3)


def test_the_least_an_all_reduce_moves(capsys):
    text, result = ask(capsys, "all-reduce-lower-bound")
    assert result["bound"] == -(-2 * 3 * 11_173_962 // 4) * 4
    assert result["use"] == pytest.approx(result["bound"] / 0.07)
    assert "at least 67,043,772 B" in text
    assert "76.6 % of the link" in text


def test_the_scaling_table_of_resnet18(capsys):
    text, result = ask(capsys, "resnet18-cifar10-table")
    points = {(one["workers"], one["batch"]): one for one in result["points"]}
    ups = [round(points[n, b]["speed_up"], 3) for n in (2, 4) for b in (32, 128, 512)]
    assert ups == pytest.approx([0.634, 0.94, 1.17, 0.522, 1.03, 1.90], abs=6e-3)
    for up in ("0.634", "0.940", "1.17", "0.522", "1.03", "1.90"):
        assert re.search(rf"\s{re.escape(up)}\s", text)
    one = points[2, 32]
    assert (one["compute"], one["communicate"]) == pytest.approx((19.27 / 2, 30.38 - 19.27 / 2))
    assert one["use"] == pytest.approx(11_173_962 * 4 * 782 / one["communicate"])


def test_paleos_table_for_inception_v3(capsys):
    text, result = ask(capsys, "inception-v3-paleo", both=False)
    assert text.startswith("Paleo's model: fastest with 8 workers by butterfly")
    printed = (
        (314.762, 676.009, 0.932, 991.704, 0, 0, 0),
        (157.629, 338.499, 0.932, 497.060, 210.972, 210.972, 105.486),
        (79.062, 169.745, 0.932, 249.738, 632.915, 421.943, 210.972),
        (39.778, 85.367, 0.932, 126.077, 1476.802, 632.915, 316.457),
    )
    for place, expected in enumerate(printed):
        rows = [series["rows"][place]["breakdown"] for series in result["series"]]
        parts = [rows[0][part] for part in ("forward", "backward", "apply")]
        times = [*parts, sum(parts), *(row["communicate"] for row in rows)]
        assert [1e3 * one for one in times] == pytest.approx(expected, rel=1e-3)


def test_a_prediction_with_every_word_in_the_file(capsys, tmp_path):
    text = 'ask = "predict"\n[predict]\nmodel = "cnn"\ndevice = "t4"\nworkers = [1, 4]\nstrategies = ["ps"]\n'
    (tmp_path / "s.toml").write_text(text)
    assert main(["simulate", str(tmp_path / "s.toml"), "--json"]) == 0
    series = json.loads(capsys.readouterr().out)["result"]["series"]
    assert [(one["strategy"], [row["workers"] for row in one["rows"]]) for one in series] == [("ps", [1, 4])]


def test_every_example_that_asks_is_tested_here():
    asking = {path.stem for path in EXAMPLES.glob("*.toml") if "\nask = " in path.read_text()}
    here = set(re.findall(r'ask\(capsys, "([^"]+)"', Path(__file__).read_text()))
    assert asking - here == set()


def test_every_question_has_words_for_its_answer():
    assert set(ASKS) <= set(RENDERERS)


RUN = 'cluster = "hosts=2,forward=1 s,backward=1 s"\nask = "run"\n[run]\nbatch = 8\n'


def answer(capsys, tmp_path: Path, text: str, *options: str) -> tuple[int, str]:
    path = tmp_path / "case.toml"
    path.write_text(text)
    code = main(["simulate", str(path), *options])
    out, err = capsys.readouterr()
    return code, err or out


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("name = 'a'\n[[hosts]]", ["does not say what is asked", "as its cluster"]),
        ("ask = 'rum'", ["unknown question 'rum'", "did you mean 'run'"]),
        (RUN, ["epochs is missing", "horizon"]),
        (RUN + "epochs = 1", ["samples is missing", "epochs are passes"]),
        (RUN + "iterations = 1\nbatches = 2", ["iterations", "already says it", "leave one"]),
        (RUN + "iterations = 0", ["iterations = 0", "1 or more"]),
        (RUN + "iterations = 1\nsamples = 9", ["samples = 9", "leave them out"]),
        (RUN + "iterations = 1\nmodel = '5 ms'", ["model", "'5 ms' is not a size", "25 MiB"]),
        (RUN + "iterations = 1\nmodell = '5 MB'", ["run.modell", "did you mean 'run.model'"]),
        (RUN + "rounds = 2", ["rounds and local-epochs go together"]),
        (RUN + "batches = 3", ["3 batches", "evenly among 2 workers", "choose ps"]),
        (RUN + "iterations = 2000000", ["too many", "1,000,000"]),
        (RUN + "horizon = '1 s'", ["horizon", "choose ps"]),
        (RUN + "iterations = 1" + "0" * 400, ["run.iterations is too large"]),
        ("ask = 'explain'\n[explain]\nschedule = 'ring'\nworkers = 1000000000", ["workers is too large"]),
        (RUN + "iterations = 1\n[[hosts]]", ["'hosts'"]),
        ("ask = 'run'\n[run]\nstrategy = 'ps'\n[[hosts]]", ["run.batch is missing", "batch = 32"]),
        ("ask = 'explain'", ["explain.schedule is missing", 'schedule = "ring"']),
        ("ask = 'lower-bound'\n[all-reduce]\nitems = 4\nprocesses = 2\ntime = '0 s'", ["more than 0 s"]),
        ("ask = 'peak'\n[device]\nname = 'k80'\npeak = '2 GB'", ["'2 GB'", "TFLOP/s"]),
        ("ask = 'peak'\n[device]\nname = 'k4O'\n[[models]]\nname = 'a'", ["unknown device", "'k40'"]),
        ("ask = 'scaling'\nsamples = 5", ["parameters is missing"]),
    ],
)
def test_what_is_wrong_with_a_file_is_told_in_a_sentence(capsys, tmp_path, text, parts):
    code, said = answer(capsys, tmp_path, text)
    assert code == 2
    assert all(part in said for part in ["case.toml", *parts]), said


@pytest.mark.parametrize(
    "options",
    [("--strategy", "ps"), ("--workers", "3"), ("--no-gradients",), ("--name", "x"), ("--replay", "r")],
)
def test_an_option_that_the_file_already_says_is_refused_by_name(capsys, tmp_path, options):
    code, said = answer(capsys, tmp_path, RUN + "iterations = 1", *options)
    assert code == 2
    assert options[0] in said
    assert "says all that is run" in said


def test_a_scenario_is_no_cluster(capsys):
    assert main(["simulate", "--cluster", str(EXAMPLES / "master-six-workers.toml")]) == 2
    assert "is a scenario, no cluster" in capsys.readouterr().err


def test_workers_without_a_server_are_told_by_where_their_time_went(capsys, tmp_path):
    """2 s a step, 1 s to reduce 125 MB over 1 Gbit/s, and as long to send the first parameters."""
    code, said = answer(capsys, tmp_path, RUN + "iterations = 2\nmodel = '125 MB'")
    assert code == 0
    assert re.match(r"7(\.00\d)? s for 2 steps of each of 2 workers", said), said
    assert re.search(r"computing +4 s\n", said)


def test_fewer_batches_than_workers_leave_some_without_work(capsys, tmp_path):
    case = RUN.replace("hosts=2", "hosts=3") + "strategy = 'ps'\nbatches = 2"
    code, said = answer(capsys, tmp_path, case)
    assert code == 0
    assert "one round of 2 workers, 2 batches in all" in said
