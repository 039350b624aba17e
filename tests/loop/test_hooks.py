"""What torch calls while a script trains, in one process: the other worker is made up, or there is none."""

import math
from collections.abc import Callable
from copy import deepcopy
from io import BytesIO
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import paceline
from paceline.errors import RunFailed, UsageError
from paceline.jobs.optimizers import has_stepped
from paceline.loop.learners import RowBlocks
from paceline.loop.mini_batch import FirstBatch, find_equal
from paceline.loop.process import ScriptProcess
from paceline.loop.replica import LoopReplica
from paceline.loop.steps import LoopSteps
from paceline.records.events import read_events
from paceline.records.folder import RunFolder
from paceline.records.summary import read_summary
from paceline.runtimes.buffers import flat_buffers
from paceline.runtimes.flat import own_memory
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.runtimes.live.worker.records import RunRecords


class WithZeros(SoloComm):
    """Rank 0 of two workers: the gradients of the other are zeros, and it exchanges the same documents."""

    workers, members, alone = 2, (0, 1), False

    def __init__(self) -> None:
        self.sums = 0

    def sum(self, tensor: Tensor) -> None:
        self.sums += 1

    def start_sum(self, tensor: Tensor, done: Callable[[], None]) -> Callable[[], object]:
        self.sums += 1
        done()
        return lambda: None

    def exchange(self, document: Any) -> list[Any]:
        return super().exchange(document) * 2


@pytest.fixture
def pair(here: None, monkeypatch: pytest.MonkeyPatch) -> WithZeros:
    comm = WithZeros()
    monkeypatch.setattr(LoopSteps, "_join_group", lambda _: comm)
    ScriptProcess.here().info = ProcessInfo(workers=2, local_workers=1)
    return comm


def of_two_buckets() -> nn.Sequential:
    """Of which the second layer's gradient is reduced while backward goes on."""
    return nn.Sequential(nn.Linear(4, 512), nn.Linear(512, 520))


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_gradient_that_is_not_to_be_reduced_is_left_alone(pair: WithZeros) -> None:
    """If this failed, the first step of a worker that trains apart would have a part of its gradient summed."""
    model = of_two_buckets()
    optimizer = sgd(model)
    paceline.distribute(model, optimizer, strategy="post-local:switch=3,period=100")
    inputs = torch.randn(3, 4)
    for step in range(5):
        loss = model(inputs).pow(2).mean()
        expected = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        before = pair.sums
        loss.backward()
        share = 1 if step >= 3 else 1 / 2
        for one, grad in zip(model.parameters(), expected, strict=True):
            assert torch.allclose(one.grad, share * grad)
        assert pair.sums - before == (0 if step >= 3 else 2)
        optimizer.step()
        optimizer.zero_grad()


def test_after_close_a_script_trains_on_alone(pair: WithZeros) -> None:
    """If this failed, fine-tuning after the run would sum gradients in a group that is closed."""
    model = of_two_buckets()
    optimizer = sgd(model)
    with paceline.distribute(model, optimizer) as worker:
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    before = pair.sums
    with worker.no_sync():
        model(torch.randn(3, 4)).sum().backward()
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    assert pair.sums == before
    assert not any(one._post_accumulate_grad_hooks for one in model.parameters())


def test_a_layer_that_is_checkpointed_twice_is_refused_before_its_sum_is_wrong(pair: WithZeros) -> None:
    """If this failed, the gradient of its second use would be added to a sum that is under way."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.twice = nn.Linear(4, 512), nn.Linear(512, 512)

        def forward(self, inputs: Tensor) -> Tensor:
            found = self.first(inputs)
            for _ in range(2):
                found = checkpoint(self.twice, found, use_reentrant=True)
            return found

    model = Twice()
    optimizer = sgd(model)
    paceline.distribute(model, optimizer)
    with pytest.raises(UsageError, match=r"shape \(512.*another gradient .* use_reentrant=False"):
        model(torch.randn(3, 4)).sum().backward()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, call: Callable[[Tensor], Tensor]) -> None:
    call(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("strategy", ["all-reduce", "sma:learners=2"])
def test_a_model_that_is_not_called_to_train_is_refused_in_every_step(strategy: str, here: None) -> None:
    """If this failed, a forgotten model.train() would leave learners where they are, and count no samples."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.0), nn.Linear(8, 2))
    optimizer = sgd(model)
    paceline.distribute(model, optimizer, strategy=strategy)
    wrong = r"without a call of the model that trains it .* model\(\.\.\.\) itself, after model\.train\(\)"
    for _ in range(2):
        model.eval()
        with pytest.raises(UsageError, match=wrong):
            train(model, optimizer, model)
        model.train()
        with pytest.raises(UsageError, match=wrong):
            train(model, optimizer, model[0])
        model[1].eval()  # as frozen batch norm is
        train(model, optimizer, model)


def test_sparse_gradients_are_refused_by_name(here: None) -> None:
    """If this failed, the script would end in a traceback of torch."""
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1))
    paceline.distribute(model, sgd(model))
    with pytest.raises(UsageError, match=r"gradient of 0\.weight is sparse, .* leave sparse=True out"):
        model(torch.tensor([1, 2])).sum().backward()


def test_a_closure_that_is_none_is_none(here: None) -> None:
    """As schedulers and wrappers of optimizers pass it on."""
    model = nn.Linear(4, 1)
    optimizer = sgd(model)
    paceline.distribute(model, optimizer)
    for arguments, named in (((None,), {}), ((), {"closure": None})):
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step(*arguments, **named)


def test_momentum_is_not_added_by_the_optimizer_and_by_the_codec(here: None) -> None:
    """If this failed, a script would train with momentum on momentum, which ``paceline train`` refuses."""
    model = nn.Linear(4, 1)
    with pytest.raises(UsageError, match="the SGD has momentum too"):
        paceline.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), codec="dgc")
    paceline.distribute(model, sgd(model), codec="dgc")


def test_statistics_of_a_model_of_doubles_are_averaged(pair: WithZeros) -> None:
    """If this failed, the central model would have rank 0's own, and predictions would not count them."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).double()
    optimizer = sgd(model)
    paceline.distribute(model, optimizer)
    train(model, optimizer, lambda batch: model(batch.double()))
    steps = ScriptProcess.here().joined
    assert isinstance(steps, LoopSteps)
    _, buffers = steps.central()
    assert buffers.dtype == torch.float64
    assert torch.allclose(buffers, torch.cat([model[1].running_mean, model[1].running_var]))
    assert flat_buffers(model) == len(buffers) == 16


def test_models_that_differ_are_refused(pair: WithZeros, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this failed, a rank with another model would get parts of rank 0's, or none would get on."""

    def other_has_more(document: Any) -> list[Any]:
        more = document if isinstance(document, dict) else [*document[:-1], 7]
        return [document, more]

    monkeypatch.setattr(pair, "exchange", other_has_more)
    model = nn.Linear(4, 1)
    with pytest.raises(
        UsageError, match=r"5 trained elements and 0 others on rank 0 and .* 7 others on rank 1"
    ):
        paceline.distribute(model, sgd(model))


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(6).view(2, 3), torch.ones(2, 3, dtype=torch.bfloat16).t(), torch.ones(2, dtype=torch.bool)],
)
def test_mini_batches_are_told_apart(tensor: Tensor) -> None:
    same, other = FirstBatch.of(tensor), FirstBatch.of(~tensor if tensor.dtype == torch.bool else tensor + 1)
    assert same.samples == len(tensor)
    assert find_equal([other, same, FirstBatch.of(tensor.clone())]) == (1, 2)
    assert find_equal([other, same]) is None
    nothing = FirstBatch.of(tensor[:0])
    assert find_equal([nothing, nothing, FirstBatch(), FirstBatch()]) is None


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_one_worker_computes_the_bits_of_the_script_alone(form: torch.memory_format, here: None) -> None:
    """Of a convolution, whose kernel depends on the strides of its weights."""
    alone = nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 4, 3))
    alone = alone.to(memory_format=form)
    model = deepcopy(alone)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in (alone, model)]
    paceline.distribute(model, optimizers[1])
    for _ in range(3):
        images = torch.randn(2, 8, 12, 12)
        outputs = [one(images) for one in (alone, model)]
        assert outputs[1].stride() == outputs[0].stride()
        for output, optimizer in zip(outputs, optimizers, strict=True):
            output.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all(map(torch.equal, alone.state_dict().values(), model.state_dict().values()))


@pytest.mark.usefixtures("here")
def test_the_loss_of_a_script_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """0 would look as if it had learned everything."""
    told: list[float] = []
    monkeypatch.setattr(RunRecords, "stepped", lambda _, progress, samples, loss, seconds: told.append(loss))
    model = nn.Linear(4, 1)
    optimizer = sgd(model)
    paceline.distribute(model, optimizer)
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
    assert len(told) == 1
    assert math.isnan(told[0])


@pytest.mark.usefixtures("here")
def test_a_backward_that_fails_may_be_tried_again() -> None:
    """As where a mini-batch does not fit the memory, and half of it does."""

    def fail(_: Tensor) -> None:
        raise MemoryError("too large")

    model = nn.Linear(4, 1)
    optimizer = sgd(model)
    paceline.distribute(model, optimizer)
    before = model.weight.clone()
    outputs = model(torch.ones(8, 4))
    outputs.register_hook(fail)
    with pytest.raises(MemoryError):
        outputs.sum().backward()
    optimizer.zero_grad()
    model(torch.ones(4, 4)).sum().backward()
    optimizer.step()
    assert torch.allclose(model.weight, before - 0.1 * 4)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("join", [paceline.distribute, paceline.watch])
def test_a_whole_model_is_saved_and_copied_without_its_hooks(join: Callable[..., object]) -> None:
    """As a script does that keeps an average of its parameters, or that saves the model and not its state."""

    def train(one: nn.Linear) -> None:
        one(torch.ones(8, 4)).sum().backward()

    model, file = nn.Linear(4, 1), BytesIO()
    optimizer = sgd(model)
    join(model, optimizer)
    train(model)
    with torch.no_grad():
        model.eval()(torch.ones(8, 4))
    model.train()
    torch.save(model, file)
    assert b"paceline" not in file.getvalue()
    for one in (deepcopy(model), torch.load(BytesIO(file.getvalue()), weights_only=False)):
        train(one)
    optimizer.step()
    process = ScriptProcess.here()
    process.close(failed=False)
    (path,) = process.runs.iterdir()
    (totals,) = read_summary(RunFolder(path)).totals
    assert (totals.steps, totals.samples) == (1, 8)


@pytest.mark.usefixtures("here")
def test_no_sync_within_no_sync_ends_with_the_outer_one() -> None:
    model = nn.Linear(4, 1)
    optimizer = sgd(model)
    worker = paceline.distribute(model, optimizer)
    with worker.no_sync():
        with worker.no_sync():
            pass
        model(torch.ones(8, 4)).sum().backward()
    with pytest.raises(UsageError, match="without a gradient of the whole step"):
        optimizer.step()


def test_a_worker_that_is_closed_again_ends_nothing_else(here: None) -> None:
    model, other = nn.Linear(4, 1), nn.Linear(4, 1)
    first = paceline.distribute(model, sgd(model))
    first.close()
    paceline.distribute(other, sgd(other))
    first.close()
    assert ScriptProcess.here().joined is not None


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("join", [paceline.distribute, paceline.watch])
def test_an_evaluation_before_the_optimizers_step_leaves_the_step_its_parts(
    join: Callable[..., object],
) -> None:
    model = nn.Linear(4, 1)
    optimizer = sgd(model)
    join(model, optimizer)
    for _ in range(3):
        model(torch.ones(8, 4)).sum().backward()
        with torch.no_grad():
            model(torch.ones(8, 4))
        optimizer.step()
    process = ScriptProcess.here()
    process.close(failed=False)
    (path,) = process.runs.iterdir()
    steps = [one for one in read_events(RunFolder(path).events(0)) if one.is_step]
    assert len(steps) == 3
    assert all({"forward", "backward", "apply"} <= {span.kind for span in one.spans} for one in steps)


def test_gradients_that_a_script_puts_in_place_of_its_own_are_those_that_are_sent() -> None:
    """If this failed, servers would apply what the script has clipped away."""
    model = nn.Linear(4, 1)
    replica = LoopReplica(model, sgd(model), 0, 2, own_memory)
    model(torch.ones(8, 4)).sum().backward()
    assert model.weight.grad is not None
    model.weight.grad, model.bias.grad = model.weight.grad.clamp(max=3), None
    replica.take_gradients()
    assert replica.flat.grad.tolist() == [3, 3, 3, 3, 0]
    assert model.weight.grad is replica.grads[0][0]


def test_all_learners_are_in_the_modes_of_the_scripts_model_and_frozen_with_it() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    learners = [model, deepcopy(model)]
    model[1].eval()
    model[0].bias.requires_grad_(False)
    RowBlocks(learners).follow(model)
    assert [one.training for one in learners[1].modules()] == [True, True, False]
    assert [one.requires_grad for one in learners[1].parameters()] == [True, False, True, True]


def test_what_ends_a_script_is_known_also_in_a_child_of_multiprocessing(here: None) -> None:
    process = ScriptProcess.here()
    assert not process._has_failed()
    for error, failed in ((ValueError(), True), (SystemExit(0), False), (SystemExit(3), True)):
        try:
            raise error
        except BaseException:
            assert process._has_failed() == failed


def test_another_optimizer_beside_the_model_is_told(
    pair: WithZeros, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a discriminator, which each worker would train by itself without a word."""
    model, beside = nn.Linear(4, 1), nn.Linear(4, 1)
    paceline.distribute(model, sgd(model))
    other = torch.optim.Adam(beside.parameters())
    for _ in range(2):
        beside(torch.ones(8, 4)).sum().backward()
        other.step()
    assert capsys.readouterr().err.count("class Adam trains parameters that are not in the model") == 1


def test_an_optimizer_that_makes_its_state_at_once_has_not_stepped() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adagrad(model.parameters())
    assert not has_stepped(optimizer)
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
    assert has_stepped(optimizer)
    assert not has_stepped(sgd(model))


def test_a_backward_that_fails_in_the_middle_is_not_taken_for_something_else(pair: WithZeros) -> None:
    """The other worker waits for the rest of its gradients."""

    def fail(_: Tensor) -> None:
        raise MemoryError("too large")

    model = of_two_buckets()
    paceline.distribute(model, sgd(model))
    model[0].register_forward_hook(lambda _, __, output: output.register_hook(fail) and None)
    with pytest.raises(MemoryError):
        model(torch.randn(3, 4)).sum().backward()
    assert pair.sums == 1
    with pytest.raises(RunFailed, match="when some of its gradients were on their way already"):
        model(torch.randn(3, 4))
