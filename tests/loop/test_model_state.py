"""What a script does to its model's parameters and buffers between two calls of it, and how it has tied them."""

from collections.abc import Callable
from copy import deepcopy
from io import BytesIO
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import paceline
from paceline.errors import UsageError
from paceline.loop.process import ScriptProcess
from paceline.loop.replica import LoopReplica
from paceline.loop.steps import LoopSteps
from paceline.runtimes.buffers import FlatBuffers, flat_buffers
from paceline.runtimes.flat import Flat, check_model

pytestmark = pytest.mark.usefixtures("here")


class Centred(nn.Module):
    """Keeps a running mean, written to by ``update``."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.how = how
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        if how == "shared":
            self.inner.register_buffer("also", self.mean)
        self.known = [self.mean]

    def forward(self, inputs: Tensor) -> Tensor:
        found = self.inner(inputs)
        with torch.no_grad():
            mean = 0.1 * found.mean(0)
            if self.how == "assigned":
                self.mean = 0.9 * self.mean + mean
                self.calls = self.calls + 1
            else:
                own = self.inner.also if self.how == "shared" else self.known[0]
                own.mul_(0.9).add_(mean)
        return found - self.mean


def train(model: nn.Module, steps: int, *, distributed: bool = True) -> LoopReplica | None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if distributed:
        paceline.distribute(model, optimizer)
    torch.manual_seed(1)
    for _ in range(steps):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return replica() if distributed else None


def replica() -> LoopReplica:
    steps = ScriptProcess.here().joined
    assert isinstance(steps, LoopSteps)
    return steps.replica


@pytest.mark.parametrize("how", ["shared", "aliased", "assigned"])
def test_buffers_are_tied_as_the_script_has_tied_them(how: str) -> None:
    """If this failed, one worker would not train as the script alone."""
    alone = Centred(how)
    model = deepcopy(alone)
    own = model.mean
    train(alone, 3, distributed=False)
    train(model, 3)
    assert how == "assigned" or model.mean is model.known[0] is own
    assert alone.mean.any()
    assert all(map(torch.equal, alone.state_dict().values(), model.state_dict().values()))


def test_a_shared_buffer_is_counted_and_named_once() -> None:
    """If this failed, a run would average, save and predict its elements twice."""
    models = [Centred("shared") for _ in range(2)]
    counted = flat_buffers(models[0])
    buffers = FlatBuffers(models)
    assert counted == flat_buffers(models[0]) == buffers.flat.shape[1] == 4
    assert list(buffers.named) == ["mean", "calls"]
    assert buffers.names == [["mean", "inner.also"], ["calls"]]
    buffers.flat[1] += 1
    assert models[1].inner.also.tolist() == [1] * 4


def test_a_buffer_that_is_assigned_anew_is_in_the_central_model() -> None:
    """If this failed, the central model would have each rank's own, or what was there before the first step."""
    model = Centred("assigned")
    found = train(model, 3)
    assert found is not None
    assert torch.equal(found.buffers, model.mean)  # what a strategy's program reads
    assert found.named_buffers.named["calls"] == 3
    model.mean = own = model.mean + 1
    found.check_attached()
    assert torch.equal(found.buffers, own)
    before = own.clone()
    with found.standing_in(found.flat.params.clone(), torch.full((4,), 7.0)):
        assert model.mean.tolist() == [7] * 4
        model(torch.ones(2, 4))
    assert model.mean.tolist() == before.tolist()
    assert model.mean.data_ptr() == found.buffers.data_ptr()


def test_buffers_may_change_places() -> None:
    """If this failed, a model that keeps what a buffer was before would find it overwritten."""
    model = nn.Module()
    for name, value in (("now", 1.0), ("before", 0.0)):
        model.register_buffer(name, torch.full((2,), value))
    buffers, kept = FlatBuffers([model]), model.now
    model.before, model.now = model.now, model.now + 1
    buffers.check()
    assert buffers.flat.tolist() == [2, 2, 1, 1]
    assert model.before is kept
    model.before, model.now = model.now, model.before
    buffers.check()
    model.now += 4
    assert buffers.flat.tolist() == [5, 5, 2, 2]
    model.before = model.now
    buffers.check()
    assert buffers.flat.tolist() == [5, 5, 5, 5]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (torch.zeros(5), r"float32 of shape \(5,\) now"),
        (torch.zeros(4).double(), "float64 of shape"),
        (None, "was removed"),
    ],
)
def test_a_buffer_that_cannot_be_averaged_any_more_is_refused(other: Tensor | None, named: str) -> None:
    """If this failed, the central model would have what the buffer was before."""
    model = nn.Sequential(nn.Linear(4, 4), Centred("aliased"))
    found = train(model, 1)
    model[1].mean = other
    assert found is not None
    found.named_buffers.reattach()
    with pytest.raises(UsageError, match=rf"buffer 1\.mean of the model .*{named}"):
        found.check_attached()


def _tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight.data = model[0].weight.data
    return model


def _frozen() -> nn.Module:
    model = _tied()
    model[1].weight.requires_grad_(False)
    return model


def _part() -> nn.Module:
    model = _tied()
    model[1].weight.data = model[0].weight.data[1:3]
    return model


def _in_a_buffer() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Module())
    model[1].register_buffer("weight", model[0].weight.data)
    return model


@pytest.mark.parametrize(
    ("make", "instead"),
    [
        (_tied, r"model\.1\.weight = model\.0\.weight"),
        (_frozen, r"model\.1\.weight = model\.0\.weight"),
        (_part, r"model\.1\.weight\.data\.clone"),
        (_in_a_buffer, r"model\.1\.weight\.data\.clone"),
    ],
)
def test_parameters_in_the_same_memory_are_refused_by_name(
    make: Callable[[], nn.Module], instead: str
) -> None:
    """If this failed, they would be trained apart from each other."""
    with pytest.raises(UsageError, match=rf"0\.weight and 1\.weight of the model are tied .* {instead}"):
        train(make(), 0)


def test_parameters_that_are_columns_of_one_matrix_are_not_in_the_same_memory() -> None:
    whole = torch.randn(4, 8)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for one, own in zip(model, whole.chunk(2, dim=1), strict=True):
        one.weight.data = own
    check_model(model)
    assert Flat(model.parameters()).offsets == (0, 16, 20, 36, 40)


def test_a_lazy_model_is_refused_until_it_has_its_shapes() -> None:
    """If this failed, the script would end in a traceback of torch."""
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())
    with pytest.raises(UsageError, match=r"0\.weight of the model has no shape yet, .* run one mini-batch"):
        train(model, 0)
    model(torch.ones(2, 4))
    train(model, 1)


def _replace(model: nn.Module) -> None:
    for one in model.parameters():
        one.data = one.data + 1


def _load_vector(model: nn.Module) -> None:
    vector_to_parameters(parameters_to_vector(model.parameters()).detach() + 1, model.parameters())


@pytest.mark.parametrize("change", [_replace, _load_vector])
@pytest.mark.parametrize("learners", [1, 2])
def test_parameters_whose_data_are_replaced_stay_in_the_run(
    change: Callable[[nn.Module], None], learners: int
) -> None:
    """If this failed, they would never be averaged, and servers would train without them."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    paceline.distribute(model, optimizer, strategy="all-reduce" if learners == 1 else "sma:learners=2")
    found = replica()
    before = found.flat.param_rows.clone()
    change(model)
    with pytest.raises(
        UsageError, match=r"data of parameter 0\.weight were replaced .* before central_model"
    ):
        found.check_attached()
    found.reattach()
    assert torch.equal(found.flat.param_rows[0], before[0] + 1)
    assert torch.equal(found.flat.param_rows[1:], before[1:])
    found.flat.param_rows[0] = 3.0
    assert all((one == 3).all() for one in model.parameters())
    found.reattach()
    found.check_attached()


def test_parameters_may_exchange_their_data_and_not_share_them() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    train(model, 1)
    found, one, other = replica(), model[0].weight, model[1].weight
    values = [one.tolist(), other.tolist()]
    one.data, other.data = other.data, one.data
    found.reattach()
    assert [other.tolist(), one.tolist()] == values
    assert found.flat.moved() == []
    other.data = one.data
    with pytest.raises(UsageError, match="tied by their data"):
        found.reattach()


def test_memory_that_is_shared_with_other_processes_is_the_same_memory() -> None:
    """If this failed, a model whose ``share_memory()`` was called would count as replaced in every step."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    train(model, 1)
    model.share_memory()
    found = replica()
    found.check_attached()
    assert found.flat.moved() == []
    assert model[0].weight.data_ptr() == found.flat.params.data_ptr()


def _assign(model: nn.Module) -> None:
    model.load_state_dict({name: one.clone() for name, one in model.state_dict().items()}, assign=True)


def _exchange_layer(model: Any) -> None:
    model[0] = nn.Linear(4, 4)


@pytest.mark.parametrize("change", [_assign, _exchange_layer])
def test_other_parameters_than_those_of_distribute_are_refused(change: Callable[[nn.Module], None]) -> None:
    """If this failed, the optimizer would train what the model does not have any more."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    train(model, 1)
    change(model)
    with pytest.raises(UsageError, match=r"parameter 0\.weight is not the object .* assign=True"):
        replica().reattach()


def test_a_model_may_lose_a_layer_and_gain_one_that_is_frozen() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    train(model, 1)
    model[1] = nn.Linear(4, 4).requires_grad_(False)
    replica().reattach()
    assert [id(one) for one in replica().frozen] == [id(one) for one in model[1].parameters()]


def test_a_model_that_is_converted_is_refused() -> None:
    """If this failed, sums of parameters would fail, or be of what they were before."""
    model = nn.Linear(4, 1)
    train(model, 1)
    model.double()
    with pytest.raises(UsageError, match=r"parameter weight was torch\.float32 .* before distribute"):
        replica().reattach()


def test_a_state_dict_gives_the_model_s_own_tensors_and_a_part_of_it_is_saved_in_copies() -> None:
    """If this failed, what loads into a state_dict in place would change nothing, as torch.distributed.checkpoint."""
    model: Any = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 2))
    train_none = torch.optim.SGD(model.parameters(), lr=0.1)
    paceline.distribute(model, train_none)
    with torch.no_grad():
        model.state_dict()["1.bias"].fill_(5)
    assert model[1].bias.tolist() == [5, 5]
    file = BytesIO()
    torch.save({name: one.clone() for name, one in model[1].state_dict().items()}, file)
    assert file.tell() < 5000
