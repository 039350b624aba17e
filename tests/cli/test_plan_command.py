"""``paceline plan`` as a user runs it: the answer, the commands that follow, refusals."""

import json
import shlex

import pytest

from paceline.cli.main import main, make_app
from paceline.cli.train import WhereOptions
from paceline.commands.plan import convergence_words, train_words
from paceline.jobs.spec import JobSpec
from paceline.studies.plan import PlanRequest, make_plan, parse_offer
from refusals import check_refused

CPU = "plan --data digits --model mlp --epochs 30 --hardware xeon-6248:price=0.1,threads=2,most=4"
MLP = "plan mlp:hidden=2000 --input 1x28x28 --classes 10 --samples 10000000"
GPUS = "--hardware v100:price=1,network=10gbit,per_host=2,most=8 --codec identity --strategy all-reduce"


def understood(words: list[str]) -> dict:
    """What the command line makes of a command, as it is called; a refusal fails the test."""
    _, bound, _ = make_app().parse_args(words, exit_on_error=False, print_error=False)
    return dict(bound.arguments)


def test_the_answer_comes_first_then_the_table_the_chart_and_the_command(tmp_path, capsys):
    chart, out = tmp_path / "plan.svg", tmp_path / "plan.json"
    words = [*shlex.split(f"{MLP} {GPUS}"), "--deadline", "1 h", "--chart", str(chart), "--out", str(out)]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "meets the deadline of 60.0 min and costs least of the " in lines[0]
    assert any(line.startswith("time by cost") for line in lines)
    command = next(line.strip() for line in lines if line.startswith("  paceline train"))
    assert understood(shlex.split(command)[1:])["options"].job == "my_job.py:build"
    assert chart.read_text().startswith("<svg")
    document = json.loads(out.read_text())
    assert (document["schema"], document["kind"], document["met"]) == (1, "plan", True)
    assert document["best"][0]["cost"] == min(one["cost"] for one in document["candidates"])


def test_what_cannot_be_met_exits_with_3(capsys):
    assert main([*shlex.split(f"{MLP} {GPUS}"), "--budget", "0.0001", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["met"] is False


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_the_commands_are_understood_and_say_what_was_planned(workers):
    offers = tuple(map(parse_offer, ("a100:price=1,network=10gbit,per_host=2,most=8",)))
    request = PlanRequest(
        job=JobSpec(data="mnist", data_dir="there", model="mlp", optimizer="adam"),
        samples=60_000,
        epochs=3,
        strategies=("ps", "local-sgd:period=4"),
        codecs=("int8", "powersgd:rank=2"),
        workers=(workers,),
        batch_sizes=(32,),
        precision="bf16",
        offers=offers,
    )
    # The data is not here: the same plan of a model, with the job's words.
    by_model = {"job": None, "model": "mlp", "shape": (1, 28, 28), "classes": 10}
    plan = make_plan(PlanRequest(**(vars(request) | by_model)))
    for one in plan.candidates:
        bound = understood(train_words(one, request))
        options, where = bound["options"], bound["where"]
        assert isinstance(where, WhereOptions)
        assert (where.nodes or 1) * where.workers == workers
        assert (where.nodes or 1) == -(-workers // 2)
        assert (options.strategy, options.codec or "identity") == (one.strategy, one.codec)
        assert (options.data, options.data_dir, options.optimizer) == ("mnist", "there", "adam")
        assert (options.precision, where.device, options.epochs) == ("bf16", "cuda", 3)
        assert options.settings(workers).workers == workers
        assert (where.address is None) == (workers <= 2)
    bound = understood(convergence_words(plan, request))
    assert bound["options"].strategies[0] == "all-reduce"
    assert {one.strategy for one in plan.best} <= {*bound["options"].strategies}
    assert {one.codec for one in plan.best} <= {*bound["options"].codecs}


def test_a_job_on_cpus_is_planned_with_its_own_samples(capsys):
    assert main([*shlex.split(CPU), "--strategy", "all-reduce", "--codec", "identity", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["samples"] == 30 * 1437
    train = next(iter(document["commands"].values()))
    assert "--model mlp" in train
    assert "--threads 2" in train
    assert "--device" not in train


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("plan", "which model?"),
        ("plan resnet50", "what hardware can be had?"),
        ("plan resnet50 --hardware a100:price=1", "how much is trained?"),
        ("plan resnet50 --hardware a100:price=1 --epochs 3", "give samples"),
        (f"{MLP} --hardware a100:price=1 --deadline soon", "--deadline: 'soon' is not a time"),
        (f"{MLP} --hardware a100:price=1 --deadline 0s", "deadline 0 is out of range"),
        (f"{MLP} --hardware a100:price=1 --budget -1", "budget -1 is out of range"),
        (f"{MLP} --hardware a100:price=1 --workers many", "is no count"),
        (f"{MLP} --hardware a100:price=1 --batch-size 32,many", "write whole numbers"),
        (f"{MLP} --hardware a100:price=1 --batch-size 32,32", "each once"),
        (f"{MLP} --hardware a100:price=1 --hardware a100:price=2", "is offered twice"),
        (f"{MLP} --hardware a100:price=1 --strategy spp", "did you mean 'ssp'?"),
        (f"{MLP} --hardware a100:price=1 --codec in8", "did you mean 'int8'?"),
        (f"{MLP} --hardware a100:price=1 --chart here.png", "ends in .svg"),
        (f"{MLP} --hardware a100:price=1 --job my.py:build", "both say what is trained"),
        (f"{MLP} --hardware a100:price=1 --convergence nowhere", "is not the folder of a study"),
        (f"{MLP} --hardware a100:price=1 --target-accuracy 0.9", "give --convergence"),
        (f"{MLP} --hardware a100:prce=2", "unknown key 'prce'; did you mean 'price'?"),
        (f"{MLP} --hardware missing.json:price=1", "missing.json"),
        (f"{MLP} --offers missing.toml", "cannot read the file of offers"),
        (f"{MLP} --hardware a100:price=1 --servers 99", "servers 99 is out of range"),
        (f"{MLP} --hardware a100:price=1 --epochs 0", "epochs 0 is out of range: it must be 1 or more"),
        (
            f"{MLP} {GPUS} --servers 4",
            "4 servers do not go with strategy all-reduce; leave them out, or choose one with servers",
        ),
    ],
)
def test_a_mistake_is_one_sentence(command, says, tmp_path, monkeypatch, capsys):
    check_refused(command, says, tmp_path, monkeypatch, capsys)


def test_help_names_the_options(capsys):
    assert main(["plan", "--help"]) == 0
    assert "--hardware" in capsys.readouterr().out
