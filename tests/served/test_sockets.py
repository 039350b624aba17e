"""A server's socket and workers' sockets on loopback: what is sent arrives, and who goes is noticed."""

import subprocess
import sys
import time

import pytest
import torch
from served_transport import LENGTH, SECRET, a_server, a_worker, flat_memory

from paceline.errors import UsageError
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.server.server_socket import MAX_WAITING, ServerSocket
from paceline.runtimes.live.wire.messages import Contribution, Hello, Refusal, Reply, RequestRank, Result
from paceline.runtimes.live.wire.shared_flat import SharedFlat
from paceline.runtimes.live.worker import server_comm
from paceline.runtimes.live.worker.guard import lost_peer
from paceline.runtimes.live.worker.server_comm import ServerClient, ServerLost
from paceline.strategies.base import server_slices
from paceline.strategies.effects import Peer
from paceline.strategies.messages import Join, Model, Pause, Pull, Push


@pytest.mark.parametrize("shared", [True, False])
def test_gradients_and_models_arrive_the_same_through_memory_and_network(shared: bool) -> None:
    with a_server() as server, a_worker(server, shared=shared) as (worker, params, grad):
        for step in range(3):
            grad.copy_(torch.arange(LENGTH) * 0.5 + step)
            worker.send(0, Push(grad, step, step, 32))
            parcel = server.receive(5)
            assert parcel is not None
            assert (parcel.sender, parcel.stop, parcel.depth) == (Peer("worker", 0), False, 1)
            assert torch.equal(parcel.message.grad, grad)
            model = torch.arange(LENGTH) * 0.25 - step
            assert server.send(0, Model(model, step, 1, 2, 0.5))
            kept = model.clone()
            model.zero_()  # a server may change what it has sent at once
            arrival = worker.receive(5)
            assert (arrival.sender, arrival.stop) == (Peer("server", 0), False)
            assert arrival.message.params.data_ptr() == params.data_ptr(), "received by way of a copy"
            assert torch.equal(params, kept)


def test_each_server_has_its_part() -> None:
    with a_server(servers=2) as first, a_server(rank=1, servers=2) as second:
        for shared in (True, False):
            with a_worker(first, second, shared=shared) as (worker, params, grad):
                grad.copy_(torch.arange(LENGTH))
                for number, part in enumerate(server_slices(grad, 2)):
                    worker.send(number, Push(part, 0, 0, 1))
                for number, server in enumerate([first, second]):
                    parcel = server.receive(5)
                    assert parcel is not None
                    assert torch.equal(parcel.message.grad, server_slices(grad, 2)[number])
                    server.send(0, Model(parcel.message.grad + 1, 0, 0, 0, 0.0))
                assert {worker.receive(5).sender.rank for _ in range(2)} == {0, 1}
                assert torch.equal(params, grad + 1)
            first.forget(0)
            second.forget(0)


def test_other_messages_travel_beside() -> None:
    with a_server() as server, a_worker(server, shared=True) as (worker, params, _):
        buffers = torch.arange(50.0)
        worker.send(0, Contribution("sum", 0, buffers))
        parcel = server.receive(5)
        assert parcel is not None
        assert torch.equal(parcel.message.tensor, buffers)
        server.send(0, Result((0,), buffers * 2), stop=True)
        arrival = worker.receive(5)
        assert arrival.stop
        assert torch.equal(arrival.message.tensor, buffers * 2)
        assert params.eq(0).all(), "a result of a collective must not land in the parameters"


def test_the_depth_counts_what_waits() -> None:
    with a_server() as server, a_worker(server) as (one, _, grad), a_worker(server, rank=1) as (other, *_):
        one.send(0, Push(grad, 0, 0, 1))
        other.send(0, Pause())
        other.send(0, Contribution("gather", document="x"))
        assert server.receive(5) is not None
        time.sleep(0.3)
        parcels = [server.receive(1), server.receive(1)]
        assert [parcel.depth for parcel in parcels if parcel] == [2, 1]
        assert server.receive(0.05) is None


def test_a_worker_that_is_not_known_is_told_so() -> None:
    """Without an answer it would wait until its patience ends, and nobody would know why."""
    memory, _, grad = flat_memory()
    memory.seal()
    with a_server() as server, ServerClient(SECRET, [server.endpoint], memory) as worker:
        for message in (Push(grad, 0, 0, 1), Join(), Pull()):
            worker.send(0, message)
            assert server.receive(0.3) is None
            assert isinstance(worker.receive(5).message, Refusal)
        assert server.refused == {"unknown worker": 3}


def test_a_worker_that_was_given_up_is_not_known_any_more() -> None:
    with a_server() as server, a_worker(server) as (worker, *_):
        worker.send(0, Pause())
        worker.send(0, Pull())
        assert server.receive(5) is not None
        time.sleep(0.2)
        server.heard(0)
        server.forget(0)
        assert server.receive(0.2) is None, "what it had said before was kept"
        assert not server.send(0, Reply("1"))
        assert server.heard(0) is None


def test_a_flood_is_bounded_and_the_others_are_served() -> None:
    with a_server() as server, a_worker(server) as (loud, _, grad), a_worker(server, rank=1) as (calm, *_):
        for clock in range(4 * MAX_WAITING):
            loud.send(0, Push(grad, clock, 0, 1))
            server.heard(0)
        calm.send(0, Pause())
        parcels = []
        while len(parcels) < 2 * MAX_WAITING and (parcel := server.receive(0.5)) is not None:
            parcels.append(parcel)
        assert any(parcel.sender.rank == 1 for parcel in parcels)
        assert max(parcel.depth for parcel in parcels) <= MAX_WAITING + 1
        assert server.refused["too many"] > 0


def test_a_server_never_waits_for_a_worker_that_does_not_read() -> None:
    with a_server() as server, a_worker(server):
        model = Model(torch.zeros(LENGTH), 0, 0, 0, 0.0)
        began = time.monotonic()
        sent = 0
        while sent < 200 and server.send(0, model):
            sent += 1
        assert sent < 200, "more than 200 MB were queued for a worker that does not read"
        assert time.monotonic() - began < 5


def test_a_worker_is_heard_while_it_lives() -> None:
    with a_server() as server:
        with a_worker(server) as (worker, *_):
            worker.start_heartbeat(0)
            with worker._channels[0]._sending:  # busy with a long message
                time.sleep(1.2)
                assert time.monotonic() - server.heard(0) < 1
        time.sleep(0.2)
        server.heard(0)
        time.sleep(1.2)
        assert time.monotonic() - server.heard(0) > 1
        assert not server.send(0, Reply("1")), "its connection is gone"


def test_a_server_that_ends_is_lost_after_its_last_words() -> None:
    server = a_server()
    with a_worker(server) as (worker, *_):
        server.send(0, Reply("7"))
        server.close()
        assert worker.receive(5).message == Reply("7")
        began = time.monotonic()
        with pytest.raises(ServerLost, match=r"server 0 at tcp://127.0.0.1:\d+ is lost") as lost:
            worker.receive(30)
        assert time.monotonic() - began < 5
        assert lost_peer(lost.value)
        with pytest.raises(ServerLost):
            worker.send(0, Pause())


def test_a_servers_last_words_arrive_although_the_worker_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this failed, a worker that computes while its server ends would lose what it was sent last."""
    monkeypatch.setattr(server_comm, "BEAT", 0.002)
    for _ in range(5):
        server = a_server()
        with a_worker(server) as (worker, *_):
            worker.start_heartbeat(0)
            time.sleep(0.05)
            server.send(0, Result((0,), torch.zeros(50_000)))
            server.close()
            time.sleep(0.1)
            assert worker.receive(5).message.tensor.numel() == 50_000


KILLED = """
import sys
from served_transport import a_server
with a_server() as server:
    print(server.endpoint, flush=True)
    parcel = server.receive(20)
    print("heard", flush=True)
    server.receive(60)
"""


def test_a_killed_server_is_lost_in_seconds() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, cwd="tests/served"
    )
    try:
        assert process.stdout is not None
        endpoint = process.stdout.readline().strip()
        with ServerClient(SECRET, [endpoint], SharedFlat()) as worker:
            worker.send(0, Hello(0))
            assert process.stdout.readline() == "heard\n"
            process.kill()
            began = time.monotonic()
            with pytest.raises(ServerLost):
                worker.receive(30)
            assert time.monotonic() - began < 5
    finally:
        process.kill()
        process.communicate()


def test_nobody_answering_is_a_timeout() -> None:
    with a_server() as server, a_worker(server) as (worker, *_), pytest.raises(ServerLost, match=r"0.3 s"):
        worker.receive(0.3)


def test_a_wrong_secret_is_the_users_mistake() -> None:
    with a_server() as server:
        with pytest.raises(
            UsageError, match="does not take this process's secret; give every host the same secret file"
        ):
            ServerClient(Secret.new(), [server.endpoint], SharedFlat())
        until = time.monotonic() + 5
        while not server.refused["wrong key"] and time.monotonic() < until:
            time.sleep(0.01)
        assert server.refused == {"wrong key": 1}


def test_a_server_listens_on_other_addresses_too() -> None:
    """On loopback of the new protocol, and on no address that is not asked for."""

    with ServerSocket(SECRET, "::1", torch.empty(1), 0, 1) as server:
        assert server.endpoint.startswith("tcp://[::1]:")
        with ServerClient(SECRET, [server.endpoint], SharedFlat()) as worker:
            worker.send(0, RequestRank())
            parcel = server.receive(5)
            assert parcel is not None
            assert (parcel.sender.rank, parcel.message) == (-1, RequestRank())
            server.reply(parcel.connection, Refusal("full"))
            assert worker.receive(5).message == Refusal("full")
