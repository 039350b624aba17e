"""Two real workers train with every codec once; the tests look at what they left."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import codec_trio
import engine_jobs
import pytest
import torch
from codec_pair import BUCKETS, DIFFERENCES, GRADIENTS, LATE, OVER_GLOO, REBUCKETED, RESUMED, SETTINGS
from test_resharding import TRAIN

from command import run_json, run_paceline
from paceline.clusters.description import read_cluster
from paceline.codecs import build_codec
from paceline.codecs.exchanges import AllGather, Reduction, Sum, run_programs
from paceline.collectives.traffic import plan_buckets, ring_bytes
from paceline.costs.stated import stated_costs
from paceline.records.events import read_events
from paceline.records.folder import RunFolder
from paceline.records.spans import StepRecord
from paceline.runtimes.compression import REFERENCE, Compressor, layout_of
from paceline.runtimes.flat import CONTROL
from paceline.runtimes.prepare import prepare
from paceline.runtimes.settings import Cadence, Settings
from paceline.runtimes.virtual.recording import SimulationRecorder
from paceline.runtimes.virtual.simulate import simulate
from paceline.runtimes.virtual.simulation import Simulation
from paceline.strategies import build_strategy
from paceline.strategies.base import Worker
from run_folders import checkpoints_of


@pytest.fixture(scope="module")
def out(run_ranks: Callable[..., Path]) -> Path:
    return run_ranks("codec_pair.py")


def run_of(out: Path, name: str) -> RunFolder:
    (path,) = (out / name).iterdir()
    return RunFolder(path)


def saved(out: Path, name: str, rank: int, step: int) -> dict:
    return checkpoints_of(run_of(out, name)).load(step, rank)


def params(out: Path, name: str, rank: int = 0, step: int = 12) -> torch.Tensor:
    return saved(out, name, rank, step)["replica"]["params"]


def losses(out: Path, name: str) -> list[float]:
    lines = run_of(out, name).metrics.read_text().splitlines()
    return [json.loads(line)["test_loss"] for line in lines]


@pytest.mark.parametrize("name", [*GRADIENTS, *DIFFERENCES])
def test_replicas_are_equal_to_the_last_bit_and_learn(out: Path, name: str) -> None:
    assert torch.equal(params(out, name, 0), params(out, name, 1)), "step 12 ends a round of 4"
    first, last = losses(out, name)
    assert last < first


@pytest.mark.parametrize("name", OVER_GLOO)
def test_sockets_change_nothing_but_the_way(out: Path, name: str) -> None:
    assert torch.equal(params(out, name), params(out, f"{name}-gloo"))


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_is_the_run_that_was_never_stopped(out: Path, name: str) -> None:
    for rank in range(2):
        resumed, unstopped = saved(out, f"{name}-resumed", rank, 12), saved(out, name, rank, 12)
        assert torch.equal(resumed["replica"]["params"], unstopped["replica"]["params"])
        assert resumed["state"].keys() == unstopped["state"].keys()
        for key, tensor in unstopped["state"].items():
            assert torch.equal(resumed["state"][key], tensor), key


@pytest.mark.parametrize("name", REBUCKETED)
def test_other_buckets_go_on_with_the_same_memory(out: Path, name: str) -> None:
    for rank in range(2):
        before, after = (saved(out, f"{name}-resumed", rank, step)["state"] for step in (12, 18))
        assert {key: one.shape for key, one in before.items()} == {
            key: one.shape for key, one in after.items()
        }
    assert losses(out, f"{name}-resumed")[-1] < losses(out, f"{name}-resumed")[0]


def test_what_a_message_leaves_out_is_kept(out: Path) -> None:
    for name in ("top-k", "dgc", "powersgd", "sign", "half", "local-int8"):
        first, second = (saved(out, name, rank, 12)["state"]["codec.memory"] for rank in range(2))
        assert first.any(), name
        assert not torch.equal(first, second), "each worker has its own"
    assert "codec.memory" not in saved(out, "int8", 0, 12)["state"]


def test_all_elements_are_the_whole_gradient(out: Path) -> None:
    torch.testing.assert_close(params(out, "everything"), params(out, "identity"), rtol=1e-5, atol=1e-6)
    assert not saved(out, "identity", 0, 12)["state"]


def facts(out: Path, name: str, rank: int = 0) -> dict:
    return json.loads((out / f"{name}-{rank}.json").read_text())


def test_a_codec_without_use_is_told(out: Path) -> None:
    told = "codec top-k:ratio=1 was not used: strategy "
    assert any(note.startswith(told) for note in facts(out, "own-none")["told"])
    assert not any(note.startswith(told) for note in facts(out, "own-mean")["told"])


def test_a_worker_without_samples_sends_what_it_has_kept(out: Path) -> None:
    assert torch.equal(params(out, "leftover", 0, 9), params(out, "leftover", 1, 9))
    before = saved(out, "leftover-before", 0, 8)["state"]["codec.memory"]
    after = saved(out, "leftover", 0, 9)["state"]["codec.memory"]
    sent = before != after
    # An even share of the mean, though its share of the samples is 0; each bucket sends its largest tenth.
    assert torch.equal(after, before.where(~sent, 0.0))
    assert sent.sum() == pytest.approx(0.1 * before.numel(), abs=2)
    assert before[sent].abs().mean() > 2 * before[~sent].abs().mean()


def counted(program: Reduction, sent: list[int]) -> Iterator:
    """Add the bytes that one of two ranks sends."""
    answer = None
    while True:
        try:
            asked = program.send(answer)
        except StopIteration:
            return
        match asked:
            case Sum(tensor):
                sent.append(ring_bytes(tensor.nbytes, 2))
            case AllGather(vector):
                sent.append(vector.nbytes)
            case _:
                sent.append(asked.vectors[0].nbytes)
        answer = yield asked


def pair_of(codec: str) -> list[tuple[Worker, Compressor]]:
    layout, made = layout_of(engine_jobs.plain().model()), []
    for rank in range(2):
        vectors = (torch.randn(layout.elements) for _ in range(2))
        me = Worker(rank, 2, *vectors, buffers=torch.zeros(0))
        made.append((me, Compressor(build_codec(codec), me, layout, 1)))
        made[-1][1].take_reference()
    return made


def test_random_k_sends_other_elements_in_each_round() -> None:
    pair, sent = pair_of("random-k:ratio=0.2"), []
    reference = pair[0][0].state[REFERENCE]
    for _ in range(3):
        before = reference.clone()
        for me, _ in pair:
            me.params.add_(1.0)
        run_programs([compressor.reduce_params(0.5) for _, compressor in pair])
        sent.append((reference != before).nonzero())
    assert len(sent[0]) == len(sent[1]) == round(0.2 * reference.numel())
    assert not torch.equal(sent[0], sent[1])
    assert not torch.equal(sent[1], sent[2])


@pytest.mark.parametrize("name", [name for name in GRADIENTS if name != "threshold"])
def test_bytes_recorded_are_those_that_the_programs_yield(out: Path, name: str) -> None:
    pair = pair_of(GRADIENTS[name])
    sizes = [parameter.numel() for parameter in engine_jobs.plain().model().parameters()]
    strategy = build_strategy(BUCKETS)
    expected = []
    for step in range(12):
        sent = [ring_bytes(CONTROL * 4, 2)]
        for bucket in plan_buckets(sizes, 4, int(strategy.first_bucket), int(strategy.bucket)):
            programs = []
            for me, compressor in pair:
                me.clock = step
                programs.append(compressor.reduce_gradient(bucket.start, bucket.stop))
            run_programs([counted(programs[0], sent), programs[1]])
        expected.append(sum(sent))
    for rank in range(2):
        steps = [record for record in read_events(run_of(out, name).events(rank)) if record.is_step]
        assert [record.sent for record in steps] == [record.received for record in steps] == expected


@pytest.mark.parametrize("name", DIFFERENCES)
def test_bytes_of_differences_are_those_that_the_programs_yield(out: Path, name: str) -> None:
    pair, sent = pair_of(DIFFERENCES[name]), [ring_bytes(CONTROL * 4, 2)]
    first, second = (compressor.reduce_params(0.5) for _, compressor in pair)
    run_programs([counted(first, sent), second])
    steps = [record.sent for record in read_events(run_of(out, name).events(0)) if record.is_step]
    assert steps == [0, 0, 0, sum(sent)] * 3


class KeptSteps(SimulationRecorder):
    detailed = True

    def __init__(self) -> None:
        self.traffic = defaultdict(list)

    def recorded(self, rank: int, record: StepRecord) -> None:
        if record.is_step:
            self.traffic[rank].append((record.sent, record.received))


def simulated(settings: Settings, *, gradients: bool) -> tuple[Simulation, KeptSteps]:
    """The same settings in virtual time."""
    torch.set_num_threads(1)
    chosen = settings if gradients else replace(settings, evaluate=Cadence(0))
    cluster = read_cluster(
        f"hosts={settings.workers},bandwidth=1 Gbit/s,latency=50 us,forward=1 ms,backward=2 ms"
    )
    costs = stated_costs(cluster, chosen.batch_sizes, {})
    kept = KeptSteps()
    simulation = Simulation(prepare(chosen), cluster, costs, gradients=gradients, recorder=kept)
    simulate(simulation)
    return simulation, kept


IN_BOTH = [
    *GRADIENTS,
    *DIFFERENCES,
    *LATE,
    "post-sign",
    "local-threshold",
    "own-mean",
    "own-sum",
    "leftover",
    "wide",
]


@pytest.mark.parametrize("name", IN_BOTH)
def test_virtual_time_ends_with_the_same_bits_and_sends_the_same_bytes(out: Path, name: str) -> None:
    run, kept = simulated(SETTINGS[name], gradients=True)
    _, timed = simulated(SETTINGS[name], gradients=False)
    for rank in range(2):
        live = saved(out, name, rank, run.prepared.settings.iterations)
        assert torch.equal(run.workers[rank].me.params, live["replica"]["params"])
        for key, tensor in live["state"].items():
            assert torch.equal(run.workers[rank].me.state[key], tensor), key
        steps = [record for record in read_events(run_of(out, name).events(rank)) if record.is_step]
        traffic = [(record.sent, record.received) for record in steps]
        assert kept.traffic[rank] == traffic
        if "threshold" not in name:  # only data tell how much it sends
            assert timed.traffic[rank] == traffic


@pytest.fixture(scope="module")
def trio(run_ranks: Callable[..., Path]) -> Path:
    return run_ranks("codec_trio.py", 3)


@pytest.mark.parametrize("backend", codec_trio.BACKENDS)
@pytest.mark.parametrize("name", codec_trio.SETTINGS)
def test_three_workers_end_with_the_bits_of_virtual_time(trio: Path, name: str, backend: str) -> None:
    """Chunks are summed by a rank each: if this failed, a chunk would go to another rank than it is for."""
    run, kept = simulated(codec_trio.SETTINGS[name], gradients=True)
    for rank, worker in enumerate(run.workers):
        live = saved(trio, f"{name}-{backend}", rank, 6)
        assert torch.equal(worker.me.params, live["replica"]["params"])
        assert live["state"].keys() == worker.me.state.keys()
        for key, tensor in live["state"].items():
            assert torch.equal(worker.me.state[key], tensor), key
        steps = read_events(run_of(trio, f"{name}-{backend}").events(rank))
        assert kept.traffic[rank] == [(step.sent, step.received) for step in steps if step.is_step]


@pytest.mark.parametrize("op", ["mean", "sum"])
def test_a_strategy_that_reduces_gradients_itself_sends_messages(out: Path, op: str) -> None:
    assert torch.equal(params(out, f"own-{op}", 0), params(out, f"own-{op}", 1))
    torch.testing.assert_close(params(out, f"own-{op}"), params(out, "identity"), rtol=1e-5, atol=1e-6)
    sent = [ring_bytes(CONTROL * 4, 2)] if op == "mean" else []
    first, second = (compressor.reduce_whole_gradient() for _, compressor in pair_of("top-k:ratio=1"))
    run_programs([counted(first, sent), second])
    steps = [record.sent for record in read_events(run_of(out, f"own-{op}").events(0)) if record.is_step]
    assert steps == [sum(sent)] * 12


def test_bytes_recorded_are_the_bytes_on_the_sockets(out: Path) -> None:
    for name in ("wide", "wide-top-k"):
        found = facts(out, name)
        assert found["acknowledged"] == pytest.approx(found["totals"][0]["sent"], rel=0.02), name


def test_messages_travel_behind_a_slow_backward(out: Path) -> None:
    assert facts(out, "wide")["totals"][1]["typical"]["hidden"] > 0


def test_rounds_of_seconds_agree_on_what_is_sent(out: Path) -> None:
    """If this failed, workers with different clocks would draw different indices, and add up other elements."""
    (last,) = run_of(out, "seconds").checkpoints.glob("step-*")
    first, second = (saved(out, "seconds", rank, int(last.name[5:]))["state"] for rank in range(2))
    assert first["codec.rounds"] == second["codec.rounds"] > 1
    assert torch.equal(first["codec.reference"], second["codec.reference"])


@pytest.mark.parametrize("backend", ["shm", "gloo"])
@pytest.mark.parametrize("name", ["int8", "late-int8"])
def test_a_worker_that_is_left_notices(out: Path, name: str, backend: str) -> None:
    told = [facts(out, f"left-{name}-{backend}", rank) for rank in range(2)]
    assert told[0]["error"] == "scripted failure at step 5"
    assert "rank 0 has left" in told[1]["error"] or "peer" in told[1]["error"]
    assert told[1]["step"] <= 8, "an average that was started after step 6 is waited for after step 8"


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_a_gradient_that_is_not_finite_ends_the_run_in_a_sentence(tmp_path: Path, backend: str) -> None:
    here = Path(__file__).parent
    done = run_paceline(
        *("train", "--job", f"{here / 'engine_jobs.py'}:not_finite", "--backend", backend, "-b", "8"),
        *("--codec", "top-k", "--strategy", "all-reduce:first_bucket=4,bucket=4", "-i", "30"),
        cwd=tmp_path,
        check=1,
    )
    assert "1 of 3 elements of the update of scale are nan on rank " in done.stderr
    assert " in step " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        ("3", ("--codec", "dgc:ratio=0.1", "--optimizer", "sgd:momentum=0")),
        ("1", ("--codec", "int8:memory=error", "--strategy", "local-sgd:period=4")),
    ],
)
def test_the_mean_of_what_was_kept_goes_on_with_other_workers(
    tmp_path: Path, workers: str, options: tuple[str, ...]
) -> None:
    first = tmp_path / run_json(*TRAIN, *options, "-i", "20", cwd=tmp_path)["run"]["folder"]
    before = [checkpoints_of(RunFolder(first)).load(20, rank)["state"] for rank in range(2)]
    told = run_paceline("reshard", str(first), "--workers", workers, "--runs", "new", cwd=tmp_path).stderr
    assert f"with {workers} worker" in told
    (made,) = (tmp_path / "new").iterdir()
    for rank in range(int(workers)):
        after = checkpoints_of(RunFolder(made)).load(20, rank)["state"]
        assert after.keys() == before[0].keys()
        for key, tensor in after.items():
            mean = sum(state[key] for state in before) / 2
            torch.testing.assert_close(tensor, mean.to(tensor.dtype), msg=key)
    assert after.get("codec.rounds", torch.tensor([5])) == 5
    run_json("train", "--resume", str(made), "--workers", workers, "-i", "40", cwd=tmp_path)
    rows = [json.loads(line)["test_loss"] for line in (made / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    assert max(rows[2:]) < rows[0]


def test_a_resumed_run_keeps_its_codec(tmp_path: Path) -> None:
    document = run_json(*TRAIN, "--codec", "int8", "-i", "10", cwd=tmp_path)
    assert document["run"]["codec"] == "int8 without error memory"
    folder = document["run"]["folder"]
    told = run_paceline(
        "train", "--resume", folder, "--codec", "sign", "-i", "20", cwd=tmp_path, check=2
    ).stderr
    assert "the codec cannot change when a run resumes: this run has int8 and you gave sign;" in told
    again = run_json("train", "--resume", folder, "--codec", "int8:bits=8", "-i", "20", cwd=tmp_path)
    assert again["summary"]["steps"] == 20
