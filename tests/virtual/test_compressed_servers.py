"""Codecs with servers in virtual time: they train, both ends agree, bytes are those that are predicted."""

import pytest
import torch
from test_replay import check_same, recorded, repeated, uneven
from torch import nn
from virtual_helpers import Kept, make_cluster, make_job, prepared_of, settings_of, time_only, with_gradients

from paceline.codecs import CODECS
from paceline.costs.stated import stated_costs
from paceline.errors import Diverged
from paceline.runtimes.served_compression import ServerMessages, WorkerMessages
from paceline.runtimes.settings import Cadence
from paceline.runtimes.virtual.shape import JobShape
from paceline.runtimes.virtual.simulate import simulate
from paceline.runtimes.virtual.simulation import Simulation
from paceline.strategies.effects import Peer
from paceline.strategies.messages import Model

SPECS = sorted({*CODECS} - {"identity"})
STRATEGIES = ("ps", "ssp:staleness=1", "async")
OPTIONS = {"iterations": 40, "evaluate": Cadence(10, "steps"), "slow": {2: 2.0}, "servers": 2}


def wide_model() -> nn.Module:
    """With matrices that PowerSGD makes thinner."""
    return nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 2))


def compressed(spec: str, codec: str, **changes):
    return with_gradients(
        make_job(wide_model),
        make_cluster(3, latency=0.01),
        strategy_name=spec,
        codec=codec,
        **(OPTIONS | changes),
    )


@pytest.mark.parametrize("spec", STRATEGIES)
@pytest.mark.parametrize("codec", [*SPECS, "powersgd:rank=1", "int8:bits=2"])
def test_it_trains_and_servers_know_what_workers_have(
    spec: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(3, strategy=spec, codec=codec, **OPTIONS)
    kept, cluster = Kept(), make_cluster(3, latency=0.01)
    costs = stated_costs(cluster, settings.batch_sizes, settings.slow, settings.seed)
    simulation = Simulation(
        prepared_of(settings, make_job(wide_model)), cluster, costs, observer=kept, recorder=kept
    )
    answers = 0

    def compare(self: WorkerMessages, peer: int, message: object, decode=WorkerMessages.decoded) -> object:
        nonlocal answers
        found = decode(self, peer, message)
        server = simulation.nodes[Peer("server", peer)].messages
        assert isinstance(server, ServerMessages)
        assert isinstance(found, Model)
        answers += 1
        assert torch.equal(found.params, server.references[self._me.rank])
        return found

    monkeypatch.setattr(WorkerMessages, "decoded", compare)
    simulate(simulation)
    assert answers >= 3 * 2 * 40
    losses = [row.test_loss for row in kept.rows]
    assert losses[-1] < losses[0]
    assert losses[-1] < 0.65, "two classes, and chance is 0.69"


@pytest.mark.parametrize("spec", STRATEGIES)
@pytest.mark.parametrize("codec", [one for one in (*SPECS, "dgc:warmup=20") if one != "threshold"])
def test_bytes_without_gradients_are_those_with_them(spec: str, codec: str) -> None:
    """What only data decide, the lengths of threshold's messages, cannot be told without."""
    changes = OPTIONS | {"evaluate": Cadence(0)}
    _, true = compressed(spec, codec, **changes)
    shape = JobShape.of(make_job(wide_model))
    cluster = make_cluster(3, latency=0.01)
    _, told = time_only(cluster, shape, strategy_name=spec, codec=codec, **changes)
    for rank in range(3):
        assert [(one.sent, one.received) for one in told.records[rank]] == [
            (one.sent, one.received) for one in true.records[rank]
        ]


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(
    ("spec", "codec"),
    [("async", "int8"), ("ssp:staleness=1", "powersgd:rank=1"), ("async", "top-k:ratio=0.1"), ("ps", "dgc")],
)
def test_a_replay_with_joins_and_deaths_ends_with_the_same_parameters(
    spec: str, codec: str, servers: int
) -> None:
    recording, kept, _ = recorded(uneven(), spec, servers, codec=codec)
    again = repeated(recording)
    check_same(kept, again)
    assert again.logs == recording.logs


def test_without_memory_gradients_are_lost_for_good() -> None:
    """Small elements never reach the servers then; with memory they do."""
    with_memory, without = (
        compressed("ps", f"top-k:ratio=0.02,memory={memory}", iterations=120, evaluate=Cadence(120, "steps"))[
            1
        ]
        for memory in ("error", "none")
    )
    assert with_memory.rows[-1].test_loss < without.rows[-1].test_loss


def test_a_gradient_that_is_not_finite_is_reported_with_rank_step_and_parameter() -> None:
    class Spoiled(nn.Linear):
        def forward(self, inputs):
            outputs = super().forward(inputs)
            outputs.register_hook(lambda grad: grad * float("inf"))
            return outputs

    job = make_job(lambda: nn.Sequential(nn.Linear(6, 8), Spoiled(8, 2)))
    with pytest.raises(Diverged, match=r"rank 0 the gradient of 0.weight has .* elements.* step 1"):
        with_gradients(job, make_cluster(2), strategy_name="ps", codec="top-k")
