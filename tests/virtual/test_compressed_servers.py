"""Codecs with servers in virtual time: they train, both ends agree, bytes are those that are predicted."""

import pytest
import torch
from test_replay import check_same, recorded, repeated, uneven
from torch import nn
from virtual_helpers import Kept, make_cluster, make_job, time_only, with_gradients

from paceline.codecs import CODECS
from paceline.errors import Diverged
from paceline.runtimes.served_compression import ServerMessages, WorkerMessages
from paceline.runtimes.settings import Cadence
from paceline.runtimes.virtual.shape import JobShape
from paceline.strategies.messages import Model

SPECS = sorted({*CODECS} - {"identity"})
STRATEGIES = ("ps", "ssp:staleness=1", "async")
OPTIONS = {"iterations": 24, "slow": {2: 2.0}, "servers": 2}
EVERY = Cadence(8, "steps")


def wide_model() -> nn.Module:
    """With matrices that PowerSGD makes thinner."""
    return nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 2))


JOB = make_job(wide_model)


def compressed(spec: str, codec: str, **changes) -> Kept:
    cluster = make_cluster(3, latency=0.01)
    return with_gradients(JOB, cluster, strategy_name=spec, codec=codec, **(OPTIONS | changes))[1]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every model that a worker gets from now on: whether the server knows it to the last bit."""
    found, servers = [], {}
    encode, decode = ServerMessages.encoded, WorkerMessages.decoded

    def encoded(self: ServerMessages, peer: int, message: Model) -> Model:
        sent = encode(self, peer, message)
        servers[self._me.rank, peer, message.version] = self.references[peer].clone()
        return sent

    def decoded(self: WorkerMessages, peer: int, message: Model) -> Model:
        received = decode(self, peer, message)
        expected = servers[peer, self._me.rank, message.version]
        if not expected.is_meta:
            found.append(torch.equal(received.params, expected))
        return received

    monkeypatch.setattr(ServerMessages, "encoded", encoded)
    monkeypatch.setattr(WorkerMessages, "decoded", decoded)
    return found


def moved(kept: Kept) -> list[list[tuple[int, int]]]:
    """Bytes that each worker sent and received in its steps."""
    return [[(one.sent, one.received) for one in steps if one.is_step] for steps in kept.records.values()]


@pytest.mark.parametrize("spec", STRATEGIES)
@pytest.mark.parametrize("codec", [*SPECS, "powersgd:rank=1", "int8:bits=2", "dgc:warmup=16"])
def test_it_trains_servers_know_what_workers_have_and_bytes_are_known_before(
    spec: str, codec: str, compared: list[bool]
) -> None:
    kept = compressed(spec, codec, evaluate=EVERY)
    assert len(compared) > 3 * 2 * 24
    assert all(compared)
    losses = [row.test_loss for row in kept.rows]
    assert losses[-1] < losses[0]
    if codec != "threshold":  # only data decide how long its messages are
        cluster = make_cluster(3, latency=0.01)
        options = {"strategy_name": spec, "codec": codec, "checkpoint": EVERY}
        _, told = time_only(cluster, JobShape.of(JOB), **options, **OPTIONS)
        assert moved(told) == moved(kept)


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
    options = {"iterations": 60, "evaluate": Cadence(60, "steps")}
    with_memory, without = (
        compressed("ps", f"top-k:ratio=0.02,memory={memory}", **options) for memory in ("error", "none")
    )
    assert with_memory.rows[-1].test_loss < without.rows[-1].test_loss


def test_a_gradient_that_is_not_finite_is_reported_with_rank_step_and_parameter() -> None:
    class Spoiled(nn.Linear):
        def forward(self, inputs):
            outputs = super().forward(inputs)
            outputs.register_hook(lambda grad: grad * float("inf"))
            return outputs

    job = make_job(lambda: nn.Sequential(nn.Linear(6, 8), Spoiled(8, 2)))
    with pytest.raises(Diverged, match=r"of the update of 0.weight are .* on rank 0 in step 1"):
        with_gradients(job, make_cluster(2), strategy_name="ps", codec="top-k")
