"""The engine's parts, each with a scripted group instead of processes."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_jobs import Partial
from torch import Tensor, nn

from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec
from paceline.records.folder import RunFolder
from paceline.records.spans import StepRecord, TimeLedger, Totals
from paceline.records.summary import Observer, Started
from paceline.runtimes.config import read_live, resolved, write_config
from paceline.runtimes.flat import CONTROL, Flat
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.request import LiveOptions, ProcessTask
from paceline.runtimes.live.run_store import check_equal
from paceline.runtimes.live.worker import recorder as recorder_module
from paceline.runtimes.live.worker import run as run_module
from paceline.runtimes.live.worker.overlap import Overlap, Slowdown
from paceline.runtimes.live.worker.recorder import StepRecorder
from paceline.runtimes.live.worker.records import gather_totals
from paceline.runtimes.live.worker.run import WorkerRun, seed_device
from paceline.runtimes.live.worker.start import run_worker
from paceline.runtimes.replica import stream_seed
from paceline.runtimes.session import Position, Save
from paceline.runtimes.settings import Cadence, Settings
from paceline.strategies.base import Worker
from paceline.strategies.effects import BucketedMean


class ScriptedGroup:
    """One of two workers; the other one's part is played from a script."""

    rank, workers, transport = 0, 2, "script"

    def __init__(self, shortest: list[float] | None = None, documents: list[Any] | None = None) -> None:
        self.sums: list[int] = []
        self.shortest, self.documents = shortest or [], documents or []
        self.comparisons = 0

    def sum(self, tensor: Tensor) -> None:
        self.sums.append(tensor.numel())

    def start_sum(self, tensor: Tensor, done: Callable[[], None]) -> Callable[[], None]:
        self.sums.append(tensor.numel())
        done()
        return lambda: None

    def traffic(self, tensor: Tensor) -> tuple[int, int]:
        return tensor.nbytes, tensor.nbytes

    def minimum(self, tensor: Tensor) -> None:
        self.comparisons += 1
        tensor[: len(self.shortest)] = torch.minimum(
            tensor[: len(self.shortest)], torch.tensor(self.shortest)
        )

    def exchange(self, document: Any) -> list[Any]:
        return [document, *self.documents]


class Written(list[StepRecord]):
    """Takes what is recorded in place of a file."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed: list[int] = []

    def flush(self) -> None:
        self.flushed.append(len(self))


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(recorder_module, "perf_counter", made)
    return made


def test_time_in_an_exchange_beyond_the_shortest_is_waiting(clock: Clock) -> None:
    written = Written()
    recorder = StepRecorder(ScriptedGroup(shortest=[0.5, 2.0]), written, TimeLedger(), begun=10.0)
    for length in (2.0, 1.0):
        clock.time += 3.0
        recorder.mark("forward")
        clock.time += length
        recorder.exchanged(sent=7, received=8)
        recorder.close(step=1)
    assert written == [], "not settled yet"
    recorder.settle()
    assert [(s.kind, s.start, s.length) for s in written[0].spans] == [
        ("forward", 10.0, 3.0),
        ("wait", 13.0, 1.5),
        ("communicate", 14.5, 0.5),
        ("other", 15.0, 0.0),
    ]
    assert [s.kind for s in written[1].spans] == ["forward", "communicate", "other"], (
        "the last to arrive did not wait"
    )
    assert (written[0].sent, written[0].received) == (7, 8)


def test_what_is_pending_when_a_run_fails_is_written_as_communication(clock: Clock) -> None:
    written = Written()
    recorder = StepRecorder(ScriptedGroup(), written, TimeLedger())
    clock.time += 1.0
    recorder.exchanged(1, 1)
    recorder.give_up(step=4)
    assert [(record.step, record.spans[0].kind) for record in written] == [(4, "communicate")]


def test_many_exchanges_are_settled_without_a_meeting(clock: Clock) -> None:
    written = Written()
    recorder = StepRecorder(ScriptedGroup(), written, TimeLedger())
    for step in range(recorder_module.FIRST_SETTLE + recorder_module.SETTLE_AFTER + 1):
        recorder.exchanged(1, 1)
        recorder.close(step)
    assert len(written) >= recorder_module.SETTLE_AFTER, "a killed worker would lose all of its records"


def test_slow_exchanges_are_settled_about_once_a_second_and_replicas_compared_no_more_often(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this failed, those who follow a run with long steps would see nothing of it for minutes."""
    hashed: list[int] = []
    monkeypatch.setattr(recorder_module, "parameter_hash", lambda _: hashed.append(1) or 1)
    written = Written()
    me = Worker(0, 2, torch.ones(4), torch.zeros(4), torch.zeros(0))
    recorder = StepRecorder(ScriptedGroup(), written, TimeLedger(), replica=me)
    late = []
    for step in range(2 * recorder_module.SETTLE_AFTER):
        clock.time += 0.25
        recorder.exchanged(1, 1)
        recorder.close(step)
        late.append(step + 1 - len(written))
    assert max(late[recorder_module.FIRST_SETTLE + 1 :]) * 0.25 <= 1.25
    assert len(hashed) == 2, "each reads all parameters"


def test_a_long_way_without_exchanges_keeps_no_records(clock: Clock) -> None:
    """If this failed, memory would grow for as long as a local round is, and a killed worker lose all of it."""
    written, group = Written(), ScriptedGroup()
    recorder = StepRecorder(group, written, TimeLedger())
    for step in range(1, 3 * recorder_module.LONG):
        recorder.pace(step - 1)
        clock.time += 1.0
        recorder.mark("apply")
        if step == recorder_module.LONG:
            recorder.exchanged(1, 1)
        recorder.close(step)
    assert len(written) == 3 * recorder_module.LONG - 1
    assert written.flushed == [recorder_module.LONG], "what is settled is on the disk"
    assert group.comparisons == 1, "between two exchanges workers do not wait for each other"


def test_short_rounds_are_not_settled_one_by_one(clock: Clock) -> None:
    group = ScriptedGroup()
    recorder = StepRecorder(group, Written(), TimeLedger())
    for step in range(1, recorder_module.LONG):
        recorder.pace(step)
        if step % 16 == 0:
            recorder.exchanged(1, 1)
        recorder.close(step)
    assert group.comparisons == 1, "the first few, by which they know how short the rounds are"


def test_a_step_that_was_not_applied_is_not_kept_by_a_run_that_resumes(clock: Clock) -> None:
    """If this failed, its samples would be counted twice after a resume from the step before it."""
    written = Written()
    recorder = StepRecorder(ScriptedGroup(), written, TimeLedger())
    recorder.mark("forward")
    recorder.count(8)
    recorder.give_up(step=20)
    assert [(record.step, record.samples) for record in written] == [(21, 8)]


def overlap_of(model: nn.Module, mean: BucketedMean) -> tuple[Overlap, ScriptedGroup, Any]:
    flat, group = Flat(model.parameters()), ScriptedGroup()
    return Overlap(flat, group, Slowdown(1.0), mean), group, flat


def test_buckets_go_out_in_the_order_of_the_plan_and_the_control_elements_with_the_last() -> None:
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
    overlap, group, flat = overlap_of(model, BucketedMean(first_bucket=1, bucket=1))
    overlap.begin()
    model(torch.ones(2, 12)).sum().backward()
    assert group.sums == [4, 64, 16], "all but the last start while backward runs"
    overlap.finish()
    assert group.sums == [4, 64, 16, CONTROL + 192]
    assert sum(group.sums) == flat.grad_storage.numel()


def test_a_parameter_that_backward_does_not_reach_holds_nobody_up() -> None:
    model = Partial()
    overlap, group, flat = overlap_of(model, BucketedMean(first_bucket=1, bucket=1))
    for _ in range(2):
        group.sums.clear()
        overlap.begin()
        model(torch.ones(2, 12)).sum().backward()
        assert group.sums == [4, 64], "the unused layer comes next, and its bucket is not full"
        overlap.finish()
        assert sum(group.sums) == flat.grad_storage.numel()


def test_one_bucket_needs_no_hook() -> None:
    model = nn.Linear(3, 2)
    overlap, group, _ = overlap_of(model, BucketedMean())
    assert all(parameter._post_accumulate_grad_hooks is None for parameter in model.parameters())
    overlap.begin()
    overlap.finish()
    assert group.sums == [CONTROL + 8]


def test_workers_that_were_started_for_something_else_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this failed, they would misunderstand each other's messages."""
    monkeypatch.setattr(ProcessTask, "resumed", None)
    mine, other = Settings(job=JobSpec(), epochs=1), Settings(job=JobSpec(), epochs=1, seed=7)
    run, elsewhere = RunFolder(Path("runs/one")), RunFolder(Path("/data/runs/one"))
    alike(mine, mine, "", run, elsewhere)
    alike(mine, replace(mine, job=JobSpec(data_dir="/elsewhere")))
    with pytest.raises(UsageError, match=r"rank 1 .*: seed is \d there"):
        alike(mine, other)
    with pytest.raises(UsageError, match=r"rank 1 .*: the job's optimizer is .*lr=1"):
        alike(mine, replace(mine, job=JobSpec(optimizer="sgd:lr=1")))
    with pytest.raises(UsageError, match=r"rank 1 .*: the run's name is "):
        alike(mine, mine, "mine")
    for theirs in (run, RunFolder(Path("runs/two"))):
        with pytest.raises(UsageError, match=r"rank 1 .*: the run to resume is "):
            alike(mine, mine, "", None if theirs is run else run, theirs)


def alike(
    mine: Settings,
    theirs: Settings,
    name: str = "",
    resume: RunFolder | None = None,
    their_resume: RunFolder | None = None,
) -> None:
    """Check against another worker's settings."""
    tasks = (
        ProcessTask(
            settings=settings,
            options=LiveOptions(),
            info=ProcessInfo(),
            runs=Path("runs"),
            heartbeat=None,
            stop_requested=lambda: False,
            name=name,
            resume=folder,
        )
        for settings, name, folder in ((mine, name, resume), (theirs, "", their_resume))
    )
    check_equal([task.asked() for task in tasks])


def test_settings_come_back_from_the_folder(tmp_path) -> None:
    settings = Settings(job=JobSpec(model="mlp"), iterations=7, batch_sizes=(3, 4), slow={1: 2.5})
    write_config(RunFolder(tmp_path), settings, "live", {})
    assert read_live(RunFolder(tmp_path)).settings == resolved(settings)
    with pytest.raises(UsageError, match="not the folder of a run"):
        read_live(RunFolder(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (Settings(job=JobSpec(), epochs=1, batch_sizes=(8, 8)), "2 workers and 1"),
        (
            Settings(
                job=JobSpec(), epochs=1, batch_sizes=(8,), strategy="local-sgd:period=1s", buffers="rank0"
            ),
            "the average of the buffers",
        ),
        (Settings(job=JobSpec(path="engine_jobs:halves"), epochs=1, batch_sizes=(8,)), "float16"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_written(
    tmp_path, settings: Settings, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        run_worker(
            ProcessTask(
                settings=settings,
                options=LiveOptions(),
                info=ProcessInfo(),
                runs=tmp_path,
                heartbeat=None,
                stop_requested=lambda: False,
            ),
            Observer(),
        )
    assert list(tmp_path.iterdir()) == []


class Witness(Observer):
    """Keeps what is told at the start, and the folder."""

    def started(self, run: Started) -> None:
        self.run = run
        self.saved = sorted(path.name for path in self.folder.checkpoints.glob("step-*"))

    def show(self, run: Path) -> None:
        self.folder = RunFolder(run)

    def beat(self, step: int) -> None:
        pass

    def enter(self, phase: str) -> None:
        pass


def run_alone(tmp_path: Path, iterations: int, resume: RunFolder | None = None) -> Witness:
    witness = Witness()
    settings = Settings(
        job=JobSpec(path="engine_jobs:dropout"),
        iterations=iterations,
        batch_sizes=(8,),
        checkpoint=Cadence(2, "steps"),
    )
    run_worker(
        ProcessTask(
            settings=settings,
            options=LiveOptions(threads=1),
            info=ProcessInfo(),
            runs=tmp_path,
            heartbeat=witness,
            stop_requested=lambda: False,
            resume=resume,
        ),
        witness,
    )
    return witness


def files_of(folder: RunFolder) -> dict[Path, bytes]:
    """All that a run has left; who last held the lock is no part of it."""
    files = (path for path in folder.path.rglob("*") if path.is_file() and path != folder.lock(0))
    return {path: path.read_bytes() for path in files}


def test_a_refused_resume_changes_nothing(tmp_path: Path) -> None:
    """If this failed, the settings of a run would be lost by asking for too little."""
    folder = run_alone(tmp_path, 6).folder
    before = files_of(folder)
    with pytest.raises(UsageError, match=r"is at step 6, and these settings end at step 4; ask for more"):
        run_alone(tmp_path, 4, folder)
    with pytest.raises(UsageError, match="is at step 6, and these settings end at step 6; ask for more"):
        run_alone(tmp_path, 6, folder)
    assert files_of(folder) == before


def test_what_was_saved_after_the_step_that_a_run_resumes_from_is_removed(tmp_path: Path) -> None:
    """If this failed, a later crash could pair one worker's file of this run with another's of the abandoned one."""
    folder = run_alone(tmp_path, 6).folder
    folder.checkpoint(6, 0).write_bytes(b"damaged")
    resumed = run_alone(tmp_path, 8, folder)
    assert (resumed.run.first_step, resumed.saved) == (4, ["step-00000002", "step-00000004"])


def test_a_resumed_run_says_how_long_it_has_taken_so_far(tmp_path: Path) -> None:
    """If this failed, the rates shown after a resume would count the time before it."""
    first = run_alone(tmp_path, 6)
    took = json.loads(first.folder.summary.read_text())["seconds"]
    assert first.run.seconds == 0
    assert run_alone(tmp_path, 9, first.folder).run.seconds == pytest.approx(took, abs=0.05)


def test_gpu_streams_of_neighbouring_seeds_have_nothing_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this failed, a run of another seed or number of workers could draw the same numbers again."""
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed", seeds.append)
    for seed, rank in ((1, 0), (1, 1), (2, 0)):
        seed_device(torch.device("cuda", 0), seed, rank)
        seed_device(torch.device("cpu"), seed, rank)
    assert seeds == [stream_seed(1, 0), stream_seed(1, 1), stream_seed(2, 0)]
    assert min(abs(one - other) for one, other in pairwise(sorted(seeds))) > 10**6


@pytest.mark.parametrize(
    "options", [{"backend": "carrier-pigeon"}, {"backend": "nccl"}, {"timeout": 0.0}, {"threads": 0}]
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        LiveOptions(**options)


def test_a_worker_that_has_saved_waits_for_the_others_and_does_not_stand_still(clock: Clock) -> None:
    """If this failed, the rank that waits would be ended in place of the one that hangs in its checkpoint."""
    phases: list[str] = []

    class Waiting(ScriptedGroup):
        alone, members = False, (0, 1)

        def minimum(self, tensor: Tensor) -> None:
            phases.append(f"{phases[-1]}: waits")

        def barrier(self) -> None:
            self.minimum(torch.zeros(1))

        def save_shards(self, step: int) -> None:
            pass

    run = object.__new__(WorkerRun)
    run.comm, run.me, run.position = Waiting(), SimpleNamespace(rank=0, clock=1), Position()  # type: ignore[assignment]
    run.records = SimpleNamespace(commit=lambda *_: phases.append(f"{phases[-1]}: commits"))  # type: ignore[assignment]
    run._write_checkpoint = lambda: phases.append(f"{phases[-1]}: saves")  # type: ignore[method-assign]
    run.heartbeat = SimpleNamespace(enter=phases.append)  # type: ignore[assignment]
    run.recorder = StepRecorder(ScriptedGroup(), Written(), TimeLedger())
    run._save(Save())
    assert [said for said in phases if ":" in said] == [
        "checkpoint: saves",
        "exchange: waits",
        "checkpoint: commits",
    ]


def test_ranks_of_a_host_count_from_the_same_moment(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this failed, what ranks do at once would be drawn apart, or by another host's clock."""
    monkeypatch.setattr(run_module, "perf_counter", clock)
    run = object.__new__(WorkerRun)
    run.comm = ScriptedGroup(documents=[[3, 99.5], [1, 7.0]])  # type: ignore[assignment]
    run.comm.rank = 4  # type: ignore[misc]
    run.records = SimpleNamespace(local=(3, 4))  # type: ignore[assignment]
    run._agree_on_start()
    assert run._started == 99.5


def test_totals_stand_at_the_place_of_their_rank(tmp_path: Path) -> None:
    """If this failed, a worker that joined as rank 3 after a rank was refused would be told of as rank 2."""
    told = [{"rank": rank, "totals": asdict(Totals(steps=rank + 1)), "load": None} for rank in (0, 1, 3)]
    comm = SimpleNamespace(exchange=lambda _: told, rank=0, workers=2)
    totals, _ = gather_totals(comm, RunFolder(tmp_path), Totals(), None)  # type: ignore[arg-type]
    assert [one.steps for one in totals] == [1, 2, 0, 4]
