"""The table of equalities that every strategy runs through. Adding a strategy is adding a row to SPECS.

Both sides are run as a user runs them, and compared by the model that counts (``model.safetensors``). Live workers are
forks here, because new interpreters take seconds: tests/live and tests/served compare real ones with virtual ones.
"""

from dataclasses import dataclass, field
from functools import cache

import pytest
import torch

from command import run_json
from paceline.records.tensors import read_tensors
from paceline.strategies import STRATEGIES

SPECS = (
    "all-reduce",
    "all-reduce:bucket=20000,first-bucket=4000",
    "local-sgd:period=1",
    "local-sgd:period=5",
    "diloco:period=6,overlap=3,fragments=2",
    "post-local:switch=10,period=5",
    "ps",
    "sma:learners=1",
)
# A period of one step is all-reduce in virtual time, where more is compared; live, one period is enough.
LIVE = (
    *(spec for spec in SPECS if spec not in ("local-sgd:period=1", "sma:learners=1")),
    "sma:learners=2,compute=together",
    "fedavg:clients=12,sample=4,alpha=0.3,uneven=0.5,momentum=0.5,proximal=0.1,dropout=0.3",
)
SYNCHRONOUS = (
    "all-reduce",
    "all-reduce:bucket=20000,first-bucket=4000",
    "local-sgd:period=1",
    "ps",
    "ssp:staleness=0",
)
"""Strategies whose workers hold the same model after every step."""

SIMULATED = (
    "easgd:learners=1",
    "ssp:staleness=0",
    "ssp:staleness=3",
    "async",
    "async:damped=true,scaled=false",
    "fedavg:epochs=2",  # a client's optimizer begins anew with each round, so this is one round
)
"""More settings, whose rows are run in virtual time only."""

AVERAGED = (
    "diloco:period=5,outer_lr=1,outer_momentum=0",
    "local-sgd:period=6,overlap=3,fragments=2",
    "local-sgd:period=2,growth=1.5,longest=9",
    "local-sgd:comm=20%",
)
"""Local SGD with settings that change nothing for a single worker."""

PLAIN_SGD = ("--optimizer", "sgd:lr=0.05,momentum=0")


@dataclass(frozen=True)
class Outcome:
    """What a run ended with."""

    model: dict = field(hash=False)
    document: dict = field(hash=False)

    @property
    def rows(self) -> list[dict]:
        """The evaluations, without the time, which differs between runs."""
        return [
            {key: value for key, value in row.items() if key != "seconds"} for row in self.document["rows"]
        ]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run a command once, whoever asks for it."""

    @cache
    def once(command: str, *arguments: str) -> Outcome:
        folder = tmp_path_factory.mktemp("run")
        document = run_json(command, *arguments, "--runs", "runs", cwd=folder)
        model = read_tensors(folder / document["run"]["folder"] / "model.safetensors")
        return Outcome(model, document)

    return once


def same(one: Outcome, other: Outcome) -> bool:
    return one.model.keys() == other.model.keys() and all(
        torch.equal(one.model[name], other.model[name]) for name in one.model
    )


def close(one: Outcome, other: Outcome, tolerance: float = 1e-6) -> bool:
    return one.model.keys() == other.model.keys() and all(
        torch.allclose(one.model[name], other.model[name], rtol=0, atol=tolerance) for name in one.model
    )


def test_every_strategy_has_a_row():
    assert {spec.partition(":")[0] for spec in (*SPECS, *SIMULATED)} == set(STRATEGIES)


# A round that is shorter than a step ends with it; a longer one may end after the last date.
# The outer optimizer of DiLoCo goes on where a single worker has gone; only its average does not.
PLAIN = [spec for spec in (*SPECS, *SIMULATED, *AVERAGED) if not spec.startswith("diloco:period=6")]


@pytest.mark.parametrize("spec", [*PLAIN, "local-sgd:period=1us"])
def test_one_worker_is_plain_training(spec, run, plain):
    alone = run("simulate", "--strategy", spec, "--workers", "1", "--batch-size", "64", "--epochs", "2")
    for name, value in plain.items():
        assert torch.allclose(alone.model[name], value, rtol=0, atol=1e-6), name


@pytest.mark.parametrize("spec", ["all-reduce", "local-sgd:period=5", "async"])
def test_one_live_worker_is_plain_training(spec, run, plain):
    alone = run(
        "train", "--strategy", spec, "--workers", "1", "--batch-size", "64", "--epochs", "2", "--threads", "1"
    )
    for name, value in plain.items():
        assert torch.allclose(alone.model[name], value, rtol=0, atol=1e-6), name


def test_local_sgd_that_averages_every_step_is_all_reduce(run):
    options = ("--workers", "4", "--batch-size", "16", "--epochs", "2", *PLAIN_SGD)
    every_step = run("simulate", "--strategy", "local-sgd:period=1", *options)
    assert close(every_step, run("simulate", "--strategy", "all-reduce", *options), 1e-6)


def test_post_local_is_all_reduce_up_to_its_switch(run):
    options = ("--workers", "3", "--batch-size", "16", "--iterations", "20")
    first = run("simulate", "--strategy", "post-local:switch=20", *options)
    assert same(first, run("simulate", "--strategy", "all-reduce", *options))


@pytest.mark.parametrize(
    ("spec", "like"),
    [
        ("local-sgd:period=5,outer=nesterov,outer_lr=1,outer_momentum=0", "local-sgd:period=5"),
        ("local-sgd:period=5,growth=2,longest=5", "local-sgd:period=5"),
        ("local-sgd:period=1,fragments=1,outer=nesterov,outer_lr=1,outer_momentum=0", "all-reduce"),
    ],
)
def test_settings_that_turn_themselves_off(spec, like, run):
    options = ("--workers", "3", "--batch-size", "24,16,8", "--iterations", "20", *PLAIN_SGD)
    assert close(run("simulate", "--strategy", spec, *options), run("simulate", "--strategy", like, *options))


@pytest.mark.parametrize("optimizer", ["sgd:lr=0.05,momentum=0.9", "adam:lr=0.002"])
@pytest.mark.parametrize("servers", ["1", "3"])
def test_a_synchronous_server_is_all_reduce_whatever_the_optimizer(servers, optimizer, run):
    options = ("--workers", "3", "--batch-size", "24,16,8", "--iterations", "15", "--optimizer", optimizer)
    served = run("simulate", "--strategy", "ps", "--servers", servers, *options)
    assert close(served, run("simulate", *options), 2e-5)


def test_the_bound_is_the_dial_between_synchronous_and_asynchronous(run):
    options = ("--workers", "3", "--batch-size", "16", "--iterations", "15", "--slow", "1=2.5")
    synchronous, asynchronous = (run("simulate", "--strategy", name, *options) for name in ("ps", "async"))
    assert same(run("simulate", "--strategy", "ssp:staleness=0", *options), synchronous)
    assert same(run("simulate", "--strategy", "ssp:staleness=100000", *options), asynchronous)
    assert not same(synchronous, asynchronous)


@pytest.fixture(scope="module")
def plain() -> dict[str, torch.Tensor]:
    """A training loop such as anybody writes, with torch's own parts."""
    from paceline.jobs.build import build_job
    from paceline.jobs.sharding import Shards
    from paceline.jobs.spec import JobSpec

    job = build_job(JobSpec())
    torch.manual_seed(1)
    model = job.model()
    optimizer = job.optimizer(model.parameters())
    shards = Shards(samples=len(job.train), batch_sizes=(64,), seed=1)
    for step in range(2 * shards.steps_per_epoch):
        inputs, targets = job.train.take(shards.indices(0, step))
        optimizer.zero_grad()
        job.loss(model(inputs), targets).backward()
        optimizer.step()
    return {name: value.detach() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("spec", SYNCHRONOUS)
def test_workers_that_share_a_batch_are_one_worker_with_the_whole(spec, run):
    four = run(
        "simulate", "--strategy", spec, "--workers", "4", "--batch-size", "16", "--epochs", "2", *PLAIN_SGD
    )
    one = run("simulate", "--workers", "1", "--batch-size", "64", "--epochs", "2", *PLAIN_SGD)
    assert close(four, one, 2e-6)


@pytest.mark.parametrize("spec", SYNCHRONOUS)
def test_uneven_shares_of_a_batch_are_one_worker_with_the_whole(spec, run):
    uneven = run(
        "simulate",
        "--strategy",
        spec,
        "--workers",
        "3",
        "--batch-size",
        "40,16,8",
        "--epochs",
        "2",
        *PLAIN_SGD,
    )
    one = run("simulate", "--workers", "1", "--batch-size", "64", "--epochs", "2", *PLAIN_SGD)
    assert close(uneven, one, 2e-6)


@pytest.mark.parametrize("spec", ["sma", "easgd:period=3"])
def test_learners_are_the_same_wherever_they_are(spec, run):
    """Two workers of two learners are one of four, also where an epoch ends unevenly."""
    options = ("--model", "mlp", "--batch-size", "16", "--epochs", "2")
    name, _, settings = spec.partition(":")
    two, four = (
        run(
            "simulate",
            "--strategy",
            f"{name}:learners={many},{settings}".rstrip(","),
            "--workers",
            workers,
            *options,
        )
        for many, workers in ((2, "2"), (4, "1"))
    )
    assert close(two, four, 2e-6)


# With local SGD each worker clips its own gradient, before the average.
@pytest.mark.parametrize("spec", [spec for spec in SYNCHRONOUS if not spec.startswith("local-sgd")])
def test_accumulated_and_clipped_workers_are_one_worker_with_the_whole(spec, run):
    """Two workers with two mini-batches of 16 each; the norm is that of the mean over all 64 samples."""
    options = ("--epochs", "2", "--clip-norm", "0.5", *PLAIN_SGD)
    parts = ("--workers", "2", "--batch-size", "16", "--accumulate", "2")
    one = run("simulate", "--workers", "1", "--batch-size", "64", *options)
    assert close(run("simulate", "--strategy", spec, *parts, *options), one, 2e-6)
    assert not close(
        run("simulate", "--workers", "1", "--batch-size", "64", "--epochs", "2", *PLAIN_SGD), one
    )


def test_a_large_batch_on_one_machine_is_the_distributed_one(run):
    """4 mini-batches of 8 in turn are one batch of 32, and are 4 workers of batch 8."""
    options = ("--epochs", "1", *PLAIN_SGD)
    accumulated = run("simulate", "--workers", "1", "--batch-size", "8", "--accumulate", "4", *options)
    assert close(accumulated, run("simulate", "--workers", "1", "--batch-size", "32", *options), 2e-6)
    assert close(accumulated, run("simulate", "--workers", "4", "--batch-size", "8", *options), 2e-6)


SCALED = ("--scale-lr", "linear", "--schedule", "cosine:epochs=2,warmup=1")
BY_HAND = ("--schedule", "cosine:epochs=2,warmup=1,warmup_from=0.25")


@pytest.mark.parametrize("spec", ["all-reduce", "local-sgd:period=5", "ps", "async"])
def test_a_scaled_rate_is_the_rate_times_the_batch_whatever_the_strategy(spec, run):
    """Two workers with two mini-batches each: k = 4, and warm-up begins at a quarter, the rate of one mini-batch."""
    options = ("--strategy", spec, "--accumulate", "2", "--batch-size", "16", "--epochs", "1")
    scaled = run("simulate", *options, *SCALED, "--lr", "0.02")
    assert close(scaled, run("simulate", *options, *BY_HAND, "--lr", "0.08"), 1e-6)
    assert scaled.document["run"]["learning_rate"] == "0.02 x 4 for a batch of 64 (linear)"
    assert not close(scaled, run("simulate", *options, *BY_HAND, "--lr", "0.02"), 1e-3)


@pytest.mark.parametrize("spec", ["all-reduce", "ps"])
def test_live_is_virtual_with_a_recipe_and_smoothed_labels(spec, run):
    """And so are the gradient noise scales in their rows, where there are any: after 8 measurements, 64 steps."""
    options = ("--strategy", spec, "--model", "mlp", "--label-smoothing", "0.1", "--epochs", "3")
    options += ("--recipe", "large-batch")
    live, virtual = run("train", *options), run("simulate", *options)
    assert same(live, virtual)
    assert live.rows == virtual.rows
    measured = "noise_scale" in live.rows[-1]
    assert measured == (spec == "all-reduce"), "workers of servers have gradients of one batch size"


@pytest.mark.parametrize("spec", ["all-reduce:bucket=20000,first-bucket=4000", "ps"])
def test_live_is_virtual_with_accumulation_clipping_and_bf16(spec, run):
    options = (
        "--strategy",
        spec,
        "--epochs",
        "1",
        "--accumulate",
        "2",
        "--clip-norm",
        "0.5",
        "--precision",
        "bf16",
    )
    live, virtual = run("train", *options), run("simulate", *options)
    assert same(live, virtual)
    assert live.rows == virtual.rows
    sent = [[total["sent"] for total in one.document["summary"]["totals"]] for one in (live, virtual)]
    assert sent[0] == sent[1], "gradients travel once a step"


@pytest.mark.parametrize("spec", LIVE)
def test_live_is_virtual_to_the_last_bit(spec, run):
    live = run("train", "--strategy", spec, "--epochs", "2")
    virtual = run("simulate", "--strategy", spec, "--epochs", "2")
    assert same(live, virtual)
    assert live.rows == virtual.rows


@pytest.mark.parametrize("spec", LIVE)
def test_bytes_predicted_are_bytes_counted(spec, run):
    """The wire itself is compared with what is counted in tests/live."""
    live = run("train", "--strategy", spec, "--epochs", "2")
    virtual = run("simulate", "--strategy", spec, "--epochs", "2")
    for one, other in zip(
        live.document["summary"]["totals"], virtual.document["summary"]["totals"], strict=True
    ):
        assert (one["sent"], one["received"]) == (other["sent"], other["received"])


@pytest.mark.parametrize("spec", ["local-sgd:period=5"])
def test_three_live_workers_are_three_virtual_ones(spec, run):
    arguments = ("--strategy", spec, "--workers", "3", "--batch-size", "24,16,8", "--iterations", "40")
    assert close(run("train", *arguments), run("simulate", *arguments), 1e-5)


# A run with servers: tests/served, where it resumes after the death of one.
# Epoch 1 ends after step 23, and an average that was started after step 21 is taken over after step 24.
@pytest.mark.parametrize(
    "spec",
    [
        "all-reduce",
        "local-sgd:period=5",
        "diloco:period=6,overlap=3,fragments=2",
        "fedavg:clients=6,momentum=0.5",
        "sma:learners=2,compute=in-turn,period=2",
    ],
)
def test_a_resumed_run_is_the_run_that_never_stopped(spec, run, tmp_path):
    through = run("simulate", "--strategy", spec, "--epochs", "2")  # which a live one equals to the last bit
    first = run_json("train", "--strategy", spec, "--epochs", "1", cwd=tmp_path)
    folder: str = first["run"]["folder"]
    document = run_json("train", "--resume", folder, "--epochs", "2", cwd=tmp_path)
    resumed = Outcome(read_tensors(tmp_path / folder / "model.safetensors"), document)
    assert same(resumed, through)
    assert resumed.rows == through.rows[1:]
    assert document["run"]["first_step"] == (12 if "learners=2" in spec else 23)


def test_a_simulation_repeats_its_record_byte_for_byte(tmp_path):
    arguments = (
        "simulate",
        "--workers",
        "3",
        "--strategy",
        "local-sgd:period=0.05s",
        "--slow",
        "1=2.5",
        "--epochs",
        "2",
    )
    folders = [tmp_path / run_json(*arguments, cwd=tmp_path)["run"]["folder"] for _ in range(2)]
    one, other = ({path.relative_to(f): path for path in f.rglob("*") if path.is_file()} for f in folders)
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].read_bytes() == other[name].read_bytes(), name
    assert len([name for name in one if name.suffix == ".jsonl"]) == 4
