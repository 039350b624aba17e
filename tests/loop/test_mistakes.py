"""What a loop cannot do is refused in a sentence, and nobody waits for ever."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import paceline
from command import run_python
from loop.pairs import start_ranks
from paceline.errors import UsageError
from paceline.loop.process import ScriptProcess, check_script, script_settings
from paceline.loop.sharding import shard

MISTAKES = str(Path(__file__).parent / "mistakes.py")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "uneven",
            "rank 0 is at the end of its script after step 5, and rank 1 goes on with step 6; all workers must take "
            "equally many steps: divide the data by worker.shard(loader), or put the loop in 'with worker.join():'",
        ),
        (
            "apart",
            "rank 0 is at the end of its script after step 5, and rank 1 ",
        ),
        (
            "own",
            "rank 0 is at the end of its script after step 5, and rank 1 goes on with step 6; all workers must take",
        ),
        (
            "nothing",
            "rank 0 is at the end of its script after step 0, and rank 1 goes on with step 1; all workers must take",
        ),
        (
            "alone",
            "rank 0 is at central_model() after step 5, and rank 1 goes on with step 6; all workers must get there",
        ),
        (
            "rates",
            "the learning rate after join() is 0.059049 on rank 0 and 0.0531441 on rank 1: a scheduler was",
        ),
        ("inside", "central_model() inside of join()"),
    ],
)
def test_workers_whose_loops_do_not_fit_together_end_with_a_sentence(
    name: str, sentence: str, tmp_path: Path
) -> None:
    done = start_ranks(MISTAKES, name, cwd=tmp_path, seconds=30)
    assert any(sentence in err for _, _, err in done), done
    assert all(code > 0 for code, _, _ in done), "killed, because they waited for each other"
    assert not any("Traceback" in err for _, _, err in done)
    told = "ranks 0 and 1 begin with the same mini-batch: divide the data by worker.shard(loader)"
    assert any(told in out + err for _, out, err in done) == (name != "nothing")


def test_two_models_may_be_trained_one_after_the_other(tmp_path: Path) -> None:
    """If this failed, the second run would wait for what the first one has announced."""
    done = start_ranks(MISTAKES, "twice", cwd=tmp_path, seconds=30)
    assert [code for code, _, _ in done] == [0, 0], done
    assert len([*tmp_path.glob("runs/*/summary.json")]) == 2


def test_a_script_that_leaves_with_a_code_has_not_ended_well(tmp_path: Path) -> None:
    """If this failed, the other rank would be told to take equally many steps, and the code be another."""
    (_, _, told), (code, _, _) = start_ranks(MISTAKES, "exits", cwd=tmp_path, seconds=30)
    assert code == 3
    assert "equally many steps" not in told
    assert "rank 0 on" in told
    assert "lost contact with the others at step 5" in told


def test_a_mistake_without_a_launcher_is_a_sentence_with_the_scripts_line(tmp_path: Path) -> None:
    done = run_python(MISTAKES, "unknown", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("paceline: unknown strategy 'spp'; did you mean 'ssp'?")
    assert done.stderr.endswith("(mistakes.py:33 in main)\n")


def model_and_optimizer(rate: float = 0.1) -> tuple[nn.Sequential, torch.optim.SGD]:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    return model, torch.optim.SGD(model.parameters(), lr=rate)


def test_two_optimizers_are_refused(here: None) -> None:
    """As of a generator and a discriminator."""
    model, _ = model_and_optimizer()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.raises(UsageError, match="2 trainable parameters of the model are in no group of the SGD"):
        paceline.distribute(model, first)


def test_a_second_model_is_refused(here: None) -> None:
    paceline.distribute(*model_and_optimizer())
    with pytest.raises(UsageError, match="twice in one process"):
        paceline.distribute(*model_and_optimizer())


def test_a_step_without_a_gradient_is_refused(here: None) -> None:
    model, optimizer = model_and_optimizer()
    worker = paceline.distribute(model, optimizer)
    with worker.no_sync():
        model(torch.randn(3, 4)).sum().backward()
    with pytest.raises(UsageError, match="without a gradient of the whole step"):
        optimizer.step()
    with pytest.raises(UsageError, match="closure"):
        optimizer.step(lambda: 0.0)


@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd:period=2"])
def test_an_optimizer_made_after_distribute_is_refused(strategy: str, here: None) -> None:
    """If this failed, the model would be trained by it alone, and nothing sent, without a word."""
    model, optimizer = model_and_optimizer()
    worker = paceline.distribute(model, optimizer, strategy=strategy)
    other = torch.optim.Adam(model.parameters(), lr=0.1)
    says = r"class Adam, has changed the parameters, and step\(\) of the SGD given to distribute\(\) was not called"
    step(model, other)
    with pytest.raises(UsageError, match=says):
        model(torch.randn(4, 4))
    with pytest.raises(UsageError, match=says):
        worker.close()


def test_a_model_in_ddp_is_refused_also_where_that_is_made_later(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this failed, gradients would be summed twice, and local SGD would be all-reduce, without a word."""
    model, optimizer = model_and_optimizer()
    paceline.distribute(model, optimizer)
    ddp = DistributedDataParallel.__new__(DistributedDataParallel)  # a real one needs a group
    nn.Module.__init__(ddp)
    ddp.module = model
    monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", ddp)
    with pytest.raises(UsageError, match="is in a DistributedDataParallel, which averages gradients too"):
        model(torch.randn(4, 4))


class Wrapper(torch.optim.Optimizer):
    """Steps another optimizer, or skips its step, and has its parameters."""

    def __init__(self, wrapped: torch.optim.Optimizer) -> None:
        super().__init__(wrapped.param_groups, {})
        self.wrapped, self.skips = wrapped, False

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        if not self.skips:
            self.wrapped.step()


def test_a_wrapper_of_the_optimizer_is_not_another_one(here: None) -> None:
    """If this failed, a script that skips a step, or that trains a second model beside, would be refused."""
    model, optimizer = model_and_optimizer()
    worker = paceline.distribute(model, optimizer)
    wrapper, second = Wrapper(optimizer), model_and_optimizer()
    for wrapper.skips in (False, True, False):
        step(model, wrapper)
        step(*second)
    worker.close()


def test_gradients_that_the_model_was_not_called_for_are_refused(here: None) -> None:
    model, optimizer = model_and_optimizer()
    paceline.distribute(model, optimizer)
    with pytest.raises(UsageError, match="without a call of the model"):
        model[0](torch.randn(3, 4)).sum().backward()


def test_a_parameter_that_is_unfrozen_is_refused(here: None) -> None:
    model, optimizer = model_and_optimizer()
    model[1].weight.requires_grad_(False)
    paceline.distribute(model, optimizer)
    model[1].weight.requires_grad_(True)
    model(torch.randn(3, 4)).sum().backward()
    with pytest.raises(UsageError, match="was frozen when distribute"):
        optimizer.step()


def test_a_step_of_lbfgs_is_refused(here: None) -> None:
    model, _ = model_and_optimizer()
    with pytest.raises(UsageError, match="several gradients a step"):
        paceline.distribute(model, torch.optim.LBFGS(model.parameters()))


def test_what_several_learners_cannot_have_is_refused(here: None) -> None:
    model, optimizer = model_and_optimizer()
    paceline.distribute(model, optimizer, strategy="sma:learners=3")
    with pytest.raises(UsageError, match="a mini-batch of 2 rows cannot be divided among 3 learners"):
        model(torch.randn(2, 4))
    model(torch.randn(6, 4)).mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    with pytest.raises(UsageError, match="the other 2 learners' were not"):
        optimizer.step()


def test_outputs_of_learners_that_are_not_rows_are_refused(here: None) -> None:
    class Summed(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs).sum(0)

    model = Summed(4, 3)
    paceline.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy="sma:learners=2")
    with pytest.raises(UsageError, match="3 rows for 2"):
        model(torch.randn(4, 4))


def test_states_of_another_run_are_refused(here: None) -> None:
    model, optimizer = model_and_optimizer()
    worker = paceline.distribute(model, optimizer)
    state = worker.state_dict()
    with pytest.raises(UsageError, match="is of strategy 'sma'"):
        worker.load_state_dict({**state, "strategy": "sma"})
    worker.load_state_dict(state)
    model(torch.randn(3, 4)).sum().backward()
    with pytest.raises(UsageError, match="comes too late"):
        worker.load_state_dict(state)


@pytest.mark.parametrize(
    ("strategy", "fix"),
    [
        (
            "local-sgd:period=1s",
            "give the period in steps, or in a class of your own say SyncPoint.EVERY_STEP",
        ),
        ("fedavg", "divides the data among clients .* or train a job with 'paceline train'"),
    ],
)
def test_strategies_whose_workers_take_different_steps_are_refused(strategy: str, fix: str) -> None:
    """If this failed, two workers would wait for each other, or the advice would be of another strategy."""
    with pytest.raises(UsageError, match=fix):
        check_script(script_settings("script.py", strategy, "identity", (8, 8)), servers=False)


@pytest.mark.parametrize(
    ("strategy", "refused"), [("local-sgd:period=2", True), ("sma:learners=2", True), ("all-reduce", False)]
)
def test_no_replica_is_taken_for_the_central_model(
    strategy: str, refused: bool, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this failed, an evaluation after loading would be of what one worker has, without a word."""
    model, optimizer = model_and_optimizer()
    worker = paceline.distribute(model, optimizer, strategy=strategy)
    step(model, optimizer)
    state = worker.state_dict()
    worker.close()
    monkeypatch.setattr(ScriptProcess, "current", None)
    model, optimizer = model_and_optimizer()
    worker = paceline.distribute(model, optimizer, strategy=strategy)
    with worker.central_model():  # nothing is loaded: all begin with the same
        pass
    worker.load_state_dict(state)
    says = f"of strategy '{strategy}' .*; take a step first"
    with pytest.raises(UsageError, match=says) if refused else nullcontext(), worker.central_model():
        pass
    step(model, optimizer)
    with worker.central_model():
        pass


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(4, 4)).sum().backward()
    optimizer.step()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(11))


def test_workers_get_equal_parts_of_a_stream() -> None:
    loader = DataLoader(Stream(), batch_size=2)
    parts = [torch.cat([*shard(loader, rank, 3, torch.Generator())]).tolist() for rank in range(3)]
    assert parts == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
