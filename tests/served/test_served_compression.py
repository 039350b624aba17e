"""Both ends of encoded messages: a server knows what a worker has to the last bit, and nothing is lost for good."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paceline.codecs import CODECS, build_codec
from paceline.codecs.base import Codec
from paceline.codecs.context import Layout
from paceline.codecs.messages import CorruptMessage
from paceline.codecs.reduction import NotFinite
from paceline.runtimes.live.wire.channel import Channel
from paceline.runtimes.live.wire.encoding import AcceptedMessages, pack, unpack
from paceline.runtimes.live.wire.messages import TO_SERVER, TO_WORKER, MessageRefused
from paceline.runtimes.served_compression import ServerMessages, SliceCodec, WorkerMessages
from paceline.strategies.base import Server, Worker, server_slices
from paceline.strategies.messages import Join, Model, Pause, Pull, Push, message_bytes

LAYOUT = Layout(("weight", "bias", "more"), ((12, 10), (12,), (40, 9)))
SPECS = sorted({*CODECS} - {"identity"})
MORE = (
    *("int8:bits=4", "top-k:ratio=0.2", "dgc:warmup=8,ratio=0.05", "powersgd:rank=2", "half:memory=error"),
    *("top-k:ratio=0.2+half", "powersgd:rank=2+half", "dgc+half"),
)
WITH_MEMORY = [
    spec for spec in (*SPECS, *MORE) if build_codec(spec).memory == "error" and not spec.startswith("dgc")
]
"""Those whose memory holds the error and nothing else."""
TOLERANCE = 1e-5


class Pair:
    """A worker and its servers, without a program and without a wire."""

    def __init__(self, spec: str, servers: int = 1, rank: int = 3) -> None:
        elements = LAYOUT.elements
        draw = torch.Generator().manual_seed(1)
        self.truth = torch.randn(elements, generator=draw)
        self.me = Worker(rank, 4, torch.zeros(elements), torch.zeros(elements), torch.empty(0))
        parts = server_slices(torch.arange(elements), servers)
        self.slices = tuple(
            SliceCodec(
                codec=build_codec(spec),
                layout=LAYOUT.between(int(part[0]), int(part[-1]) + 1),
                start=int(part[0]),
                dtype=torch.float32,
                seed=5,
            )
            for part in parts
        )
        self.worker = WorkerMessages(self.me, LAYOUT, self.slices, workers=4)
        self.servers = [
            ServerMessages(Server(number, servers, part, torch.zeros_like(part)), one)
            for number, (one, part) in enumerate(
                zip(self.slices, server_slices(self.truth, servers), strict=True)
            )
        ]
        self.draw = draw

    @property
    def memory(self) -> Tensor:
        return self.me.state.get("codec.memory", torch.zeros(LAYOUT.elements))

    def push(self, grad: Tensor, clock: int, samples: int = 8) -> Tensor:
        """What the servers' programs get of a gradient."""
        found = []
        for number, part in enumerate(server_slices(grad, len(self.servers))):
            message = self.worker.encoded(number, Push(part, clock, clock, samples))
            assert self.slices[number].fits(message)
            found.append(self.servers[number].decoded(self.me.rank, message).grad)
        return torch.cat(found)

    def ask(self, message: Join | Pause | Pull) -> None:
        for server in self.servers:
            assert server.decoded(self.me.rank, message) is message

    def answer(self, version: int) -> tuple[Tensor, list[int]]:
        """The model that the worker's program gets, and the bytes of the messages."""
        found, sizes = [], []
        for number, part in enumerate(server_slices(self.truth, len(self.servers))):
            message = self.servers[number].encoded(self.me.rank, Model(part, version, 0, 0, 0.0))
            sizes.append(message_bytes(message))
            found.append(self.worker.decoded(number, message).params.clone())
        return torch.cat(found), sizes

    def references(self) -> Tensor:
        return torch.cat([server.references[self.me.rank] for server in self.servers])


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("spec", [*SPECS, *MORE])
def test_a_server_knows_what_its_worker_has_to_the_bit(spec: str, servers: int) -> None:
    pair = Pair(spec, servers)
    for version in range(12):
        if version % 5 == 0:
            pair.ask(Pull() if version else Join())
        else:
            pair.push(torch.randn(LAYOUT.elements, generator=pair.draw), version)
        found, _ = pair.answer(version)
        assert torch.equal(found, pair.references())
        if version % 5 == 0:
            assert torch.equal(found, pair.truth), "the answers to Join and Pull are exact"
        pair.truth += 0.1 * torch.randn(LAYOUT.elements, generator=pair.draw)


def test_gradients_and_models_of_one_number_have_different_seeds() -> None:
    """If this failed, the noise of a model would repeat that of the gradient which it answers."""
    (one,), empty = Pair("int8").slices, torch.empty(0)
    push, model = (one.context(message, 3) for message in (Push(empty, 4, 4, 8), Model(empty, 4, 0, 0, 0.0)))
    assert push.round == model.round
    assert push.shared_seed != model.shared_seed
    assert push.own_seed != model.own_seed


@pytest.mark.parametrize("spec", WITH_MEMORY)
def test_what_a_push_leaves_out_stays_in_the_memory(spec: str) -> None:
    pair = Pair(spec, 2)
    for clock in range(5):
        grad = torch.randn(LAYOUT.elements, generator=pair.draw)
        before = pair.memory.clone()
        received = pair.push(grad.clone(), clock)
        torch.testing.assert_close(received + pair.memory, grad + before, rtol=0, atol=TOLERANCE)


def test_a_program_finds_its_gradient_as_it_was() -> None:
    pair = Pair("top-k", 1)
    grad = torch.randn(LAYOUT.elements)
    kept = grad.clone()
    for clock in range(3):
        pair.push(grad, clock)
    assert torch.equal(grad, kept)


@pytest.mark.parametrize("spec", ["top-k:ratio=0.2,memory=none", "dgc:ratio=0.2", "top-k:ratio=0.2"])
def test_what_a_difference_leaves_out_comes_with_the_next_ones(spec: str) -> None:
    """Whatever the codec says of memory: the server sees what is missing."""
    pair = Pair(spec, 2)
    pair.ask(Join())
    pair.answer(0)
    pair.truth += torch.randn(LAYOUT.elements, generator=pair.draw)
    for version in range(1, 8):
        pair.push(torch.zeros(LAYOUT.elements), version)
        found, _ = pair.answer(version)
    torch.testing.assert_close(found, pair.truth, rtol=0, atol=TOLERANCE)


def test_a_model_that_does_not_change_spoils_nothing() -> None:
    """A difference of zeros, as with a learning rate of zero, must not be the last one that PowerSGD can send."""
    pair = Pair("powersgd:rank=2")
    pair.ask(Join())
    pair.answer(0)
    for version in range(1, 4):
        found, _ = pair.answer(version)
        assert torch.equal(found, pair.truth)
    pair.truth += torch.randn(LAYOUT.elements, generator=pair.draw)
    missing = (pair.truth - found).norm()
    found, _ = pair.answer(4)
    assert (pair.truth - found).norm() < 0.9 * missing


def test_only_what_answers_a_push_is_a_difference() -> None:
    pair = Pair("int8")
    whole = 4 * LAYOUT.elements + 64
    sizes = []
    for version, ask in enumerate([Join(), Push, Push, Pause(), Push, Push]):
        if ask is Push:
            pair.push(torch.ones(LAYOUT.elements), version)
        else:
            pair.ask(ask)
        sizes += pair.answer(version)[1]
    assert [size == whole for size in sizes] == [True, False, False, True, False, False]
    pair.servers[0].forget(3)
    assert pair.answer(9)[1] == [whole], "a worker of which nothing is known gets all"


def test_a_model_that_is_not_finite_is_sent_as_it_is() -> None:
    """The worker then reports it, as without a codec; and it may recover."""
    pair = Pair("int8")
    pair.ask(Join())
    pair.answer(0)
    pair.truth[7] = float("inf")
    assert torch.equal(pair.answer(1)[0], pair.truth)
    pair.truth[7] = 0.0
    for version in (2, 3):
        found, sizes = pair.answer(version)
        assert found.isfinite().all()
    assert torch.equal(found, pair.references())
    assert sizes < [4 * LAYOUT.elements]


def test_a_gradient_that_is_not_finite_is_named() -> None:
    pair = Pair("top-k")
    grad = torch.zeros(LAYOUT.elements)
    grad[125] = float("nan")
    with pytest.raises(NotFinite, match="1 of 12 elements of the update of bias are nan"):
        pair.push(grad, 0)


@pytest.mark.parametrize("spec", ["top-k:ratio=0.1", "dgc:ratio=0.1", "powersgd:rank=2", "sign"])
def test_a_push_that_counts_for_nothing_takes_nothing_out_of_the_memory(spec: str) -> None:
    """An epoch's last batch may have no samples for a worker; a server gives its gradient no weight."""
    pair = Pair(spec, 2)
    pair.push(torch.randn(LAYOUT.elements, generator=pair.draw), 0)
    before = {name: tensor.clone() for name, tensor in pair.me.state.items()}
    assert before["codec.memory"].any()
    assert not pair.push(torch.zeros(LAYOUT.elements), 1, samples=0).any()
    assert all(torch.equal(pair.me.state[name], tensor) for name, tensor in before.items())


def test_a_program_may_change_its_parameters_between_two_answers() -> None:
    pair = Pair("half")
    pair.ask(Join())
    pair.me.params.copy_(pair.answer(0)[0])
    pair.me.params += 1
    pair.push(torch.ones(LAYOUT.elements), 0)
    assert torch.equal(pair.answer(1)[0], pair.references())


def accepted(pair: Pair, kinds: frozenset[type]) -> AcceptedMessages:
    return AcceptedMessages(kinds=kinds, shard=torch.zeros(LAYOUT.elements), codec=pair.slices[0])


def read(packet, allowed: AcceptedMessages):
    header, body = packet
    envelope, memory = unpack(header, len(body), allowed, _NOBODY)
    if body:
        memory[:] = body
    return envelope.message


class _Nobody:
    peer, memory = None, None


_NOBODY: Channel = _Nobody()  # type: ignore[assignment]


@pytest.mark.parametrize("spec", [*SPECS, *MORE])
def test_encoded_messages_travel_and_no_others(spec: str) -> None:
    pair = Pair(spec)
    to_server, to_worker = accepted(pair, TO_SERVER), accepted(pair, TO_WORKER)
    pair.ask(Join())
    exact = pair.servers[0].encoded(3, Model(pair.truth, 0, 0, 0, 0.0))
    push = pair.worker.encoded(0, Push(torch.randn(LAYOUT.elements), 4, 0, 1))
    model = pair.servers[0].encoded(3, Model(pair.truth + 1, 1, 0, 0, 0.0))
    assert torch.equal(read(pack(exact), to_worker).params, pair.truth)
    assert torch.equal(read(pack(push), to_server).grad, push.grad)
    assert torch.equal(read(pack(model), to_worker).params, model.params)
    dense = Push(torch.zeros(LAYOUT.elements), 0, 0, 1)
    varies = pair.slices[0].codec.varies
    longer = torch.cat((push.grad, push.grad.new_zeros(8 * LAYOUT.elements if varies else 1)))
    for bad, reason in (
        (dense, "wrong type"),
        (replace(push, grad=longer), "wrong length"),
        (replace(push, grad=torch.zeros(2**29, dtype=torch.uint8)), "too large"),
    ):
        with pytest.raises(MessageRefused, match=reason):
            read(pack(bad), to_server)
    if not varies:
        with pytest.raises(MessageRefused, match="wrong length"):
            read(pack(replace(push, grad=push.grad[:-1])), to_server)
    plain = AcceptedMessages(kinds=TO_SERVER, shard=torch.zeros(LAYOUT.elements))
    with pytest.raises(MessageRefused, match="wrong type"):
        read(pack(push), plain)


@pytest.mark.parametrize("spec", [*SPECS, *MORE])
@given(data=st.data())
def test_hostile_bytes_are_a_gradient_or_refused_and_nothing_else(spec: str, data: st.DataObject) -> None:
    pair = Pair(spec)
    size = pair.worker.encoded(0, Push(torch.randn(LAYOUT.elements), 0, 0, 1)).grad.numel()
    if pair.slices[0].codec.varies:
        size = data.draw(st.integers(0, 8 * LAYOUT.elements))
    raw = data.draw(st.binary(min_size=size, max_size=size)) if size < 500 else None
    if raw is None:
        raw = data.draw(st.randoms(use_true_random=False)).randbytes(size)
    push = Push(torch.tensor(list(raw), dtype=torch.uint8), 0, 0, 1)
    assert pair.slices[0].fits(push) or pair.slices[0].codec.varies
    try:
        received = pair.servers[0].decoded(3, push)
    except CorruptMessage:
        return
    assert received.grad.shape == (LAYOUT.elements,)


def test_every_codec_has_one_that_needs_no_memory() -> None:
    for spec in (*SPECS, *MORE):
        plain: Codec = build_codec(spec).at(2).without_memory()
        assert plain.memory == "none"
        assert not plain.has_momentum
