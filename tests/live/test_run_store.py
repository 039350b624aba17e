"""The run's store: torch's operations, limits, secrets, and what is made of values that others wrote."""

import json
import os
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo, Store

from command import run_python
from paceline.errors import RunFailed, UsageError
from paceline.runtimes.live import store_server, timeouts
from paceline.runtimes.live.failures import CompleteSteps, Failure, read_failure
from paceline.runtimes.live.launcher import peers
from paceline.runtimes.live.launcher.peers import LauncherGroup
from paceline.runtimes.live.launcher.processes import LaunchPlan
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.run_store import MemberStore, RunStore, port_number
from paceline.runtimes.live.secret import Secret, agree, agreed_file, run_secret
from paceline.runtimes.live.store_server import (
    LONGEST_KEY,
    LONGEST_VALUE,
    Op,
    Refused,
    StoreRequest,
    StoreServer,
    unpack_request,
)
from paceline.runtimes.live.wire.channel import PROLOGUE, Packet, connect
from paceline.runtimes.live.wire.listener import MOST_UNPROVEN
from paceline.runtimes.live.worker.guard import lost_peer
from ports import free_ports

SECRET, OTHER = Secret(b"a secret of the tests"), Secret(b"another secret of them")
SOON = timedelta(seconds=0.3)


@pytest.fixture
def server() -> Iterator[StoreServer]:
    server = StoreServer(SECRET, "127.0.0.1", 0)
    yield server
    server.close()


@pytest.fixture
def store(server: StoreServer) -> Iterator[RunStore]:
    store = RunStore("127.0.0.1", server.port, SECRET, timedelta(seconds=20))
    yield store
    store.close()


def scenario(store: Store) -> list[object]:
    """What a store answers to the operations that torch and paceline use."""
    store.set("a", "1")
    store.set("b", b"\x00\xff")
    return [
        store.get("a"),
        store.get("b"),
        store.add("n", 5),
        store.add("n", -7),
        store.get("n"),
        store.check(["a", "n"]),
        store.check(["a", "none"]),
        store.compare_set("c", "", "first"),
        store.compare_set("c", "", "second"),
        store.compare_set("c", "first", "third"),
        store.compare_set("unset", "x", "y"),
        store.check(["unset"]),
        store.delete_key("a"),
        store.delete_key("a"),
        store.wait(["b", "c"]),
    ]


def test_it_answers_as_torchs_own_store_does(store: RunStore) -> None:
    """If this failed, torch would form groups that are wrong, or none."""
    assert scenario(store) == scenario(dist.HashStore())


def test_a_key_is_waited_for_and_a_wait_ends(store: RunStore) -> None:
    """If this failed, workers that start at different times would not find each other, or wait for ever."""
    other = store.clone()
    threading.Timer(0.2, lambda: other.set("late", "here")).start()
    assert store.get("late") == b"here"
    store.set_timeout(SOON)
    with pytest.raises(dist.DistStoreError, match="wait timeout") as raised:
        store.get("never")
    assert lost_peer(raised.value)
    assert store.check(["late"]), "an answer that comes late is not taken for another's"
    other.set("never", "")
    assert store.peek(["late", "never"]) == (b"here", b"")


def test_a_store_that_is_held_up_is_not_lost(
    server: StoreServer, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this failed, a host that is suspended for a while would lose all others, and keep them waiting."""
    store.set("a", "")
    goes_on = threading.Event()
    with monkeypatch.context() as held_up:
        held_up.setattr(server, "_answer", lambda *_: goes_on.wait(20))
        store.set_timeout(timedelta(seconds=0.05))
        for _ in range(20):
            began = time.monotonic()
            with pytest.raises(dist.DistStoreError, match="no answer to set k"):
                store.set("k", "x" * (LONGEST_VALUE - 9))
            assert time.monotonic() - began < 5
    store.set_timeout(timedelta(seconds=20))
    goes_on.set()
    assert len(store.get("k")) == LONGEST_VALUE - 9


def test_a_silent_host_takes_no_time_of_the_others(
    server: StoreServer, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this failed, the steps that hosts of a higher rank have told would be left out on a slow network."""
    for rank in (0, 2):
        store.set(f"steps-{rank}", msgspec.json.encode(CompleteSteps(whole=(rank,))))
    answer = server._answer
    monkeypatch.setattr(server, "_answer", lambda *words: (time.sleep(0.1), answer(*words)))
    group = LauncherGroup.__new__(LauncherGroup)
    group._plan = LaunchPlan(nodes=4, node_rank=3, address="127.0.0.1", secret_file=Path("secret"))
    group._store, group._heard = store, {}
    assert [one.whole for one in group.exchange_steps(CompleteSteps(), None, 0.3)] == [(0,), (2,)]
    assert group.unanswered == {1}


def test_torch_forms_a_group_over_it(server: StoreServer) -> None:
    """If this failed, no run without servers would start."""
    stores = [RunStore("127.0.0.1", server.port, SECRET) for _ in range(2)]

    def form(rank: int) -> None:
        groups[rank] = ProcessGroupGloo(PrefixStore("torch", stores[rank]), rank, 2, timedelta(seconds=20))

    groups: dict[int, ProcessGroupGloo] = {}
    threads = [threading.Thread(target=form, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(groups) == [0, 1]
    for each in stores:
        each.close()


def test_a_store_that_has_gone_is_noticed_at_once(server: StoreServer, store: RunStore) -> None:
    """If this failed, workers would wait for minutes for a launcher that is dead."""
    store.set("a", "1")
    began = time.monotonic()
    closing = threading.Timer(0.2, server.close)
    closing.start()
    with pytest.raises(dist.DistNetworkError) as raised:
        store.get("never")
    closing.join()
    assert lost_peer(raised.value)
    assert time.monotonic() - began < 5


def test_a_wrong_secret_is_the_users_mistake_and_counted(server: StoreServer) -> None:
    """If this failed, a stranger could read and write, or a user with the wrong file would wait in vain."""
    stranger = RunStore("127.0.0.1", server.port, OTHER)
    with pytest.raises(
        UsageError, match="does not take this process's secret; give every host the same secret file"
    ):
        stranger.set("stop/asked", "")
    stranger.close()
    deadline = time.monotonic() + 5
    while server.refused["wrong key"] < 1:  # the server's thread may be behind
        assert time.monotonic() < deadline, server.refused
        time.sleep(0.01)
    assert "connections without the run's secret" in server.refusals()


def test_strangers_who_send_much_and_stall_are_bounded_and_members_stay(server: StoreServer) -> None:
    """If this failed, a stranger could take all descriptors of the process that keeps the store, and end the run."""
    members = [RunStore("127.0.0.1", server.port, SECRET) for _ in range(5)]
    for number, member in enumerate(members):
        member.set(f"before-{number}", "")
    began = len([*Path("/proc/self/fd").iterdir()])
    strangers = []
    for _ in range(2 * MOST_UNPROVEN):
        strangers.append(socket.create_connection(("127.0.0.1", server.port)))
        strangers[-1].sendall(PROLOGUE + bytes(47))  # a byte is missing for ever
    late = RunStore("127.0.0.1", server.port, SECRET)
    assert late.check([f"before-{number}" for number in range(5)]), "it is accepted after all strangers"
    deadline = time.monotonic() + 3  # before their time to prove themselves is over
    while (taken := len([*Path("/proc/self/fd").iterdir()]) - began - len(strangers)) > MOST_UNPROVEN + 5:
        assert time.monotonic() < deadline, f"{taken} connections without a proof are open"
        time.sleep(0.02)
    for number, member in enumerate(members):
        member.set(f"after-{number}", "")
    assert late.check([f"after-{number}" for number in range(5)])
    for each in (*strangers, *members, late):
        each.close()
    assert server.refused["stranger"] >= MOST_UNPROVEN - 5


def test_more_members_than_may_be_unproven_stay(server: StoreServer) -> None:
    """If this failed, a run of many processes would be taken for strangers and cut off."""
    members = [RunStore("127.0.0.1", server.port, SECRET) for _ in range(MOST_UNPROVEN + 20)]
    for _ in range(2):
        for number, member in enumerate(members):
            member.set(str(number), "")
    for member in members:
        member.close()
    assert server.refusals() == ""


def test_limits_hold_for_members_too(
    server: StoreServer, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this failed, a defect in one worker could fill the launcher's memory."""
    for key, value in (("k" * (LONGEST_KEY + 1), b""), ("", b""), ("k", bytes(LONGEST_VALUE + 1))):
        with pytest.raises(Refused):
            store.set(key, value)
    monkeypatch.setattr(store_server, "MOST_BYTES", 3000)
    store.set("a", bytes(2000))
    with pytest.raises(ValueError, match="the store is full"):
        store.set("b", bytes(2000))
    store.set("a", b"less")
    store.set("b", bytes(2000))
    monkeypatch.setattr(store_server, "MOST_KEYS", 2)
    with pytest.raises(ValueError, match="the store is full"):
        store.set("c", "")
    with pytest.raises(ValueError, match="not a number"):
        store.add("a", 1)


def test_malformed_requests_of_a_member_are_counted_and_survived(
    server: StoreServer, store: RunStore
) -> None:
    """If this failed, one bad frame would end the store and the run with it."""
    member = connect(f"tcp://127.0.0.1:{server.port}", SECRET.key("store"))
    good = StoreRequest(1, Op.SET, (b"k",), (b"v",)).pack()
    packed = msgspec.msgpack.encode
    bad = [b"", os.urandom(13), good[:-1], b"x" * 5000, packed([1, 99]), packed([1, Op.SET, [b"k"], []])]
    bad += [packed([1, Op.READ, [b"k"], [], float("nan")]), packed([1, Op.SET, ["k"], [1]])]
    for message in bad:
        member.send(Packet(message, memoryview(b"")), most=1)
    while server.refused.total() < len(bad):
        time.sleep(0.01)
    member.close()
    assert not store.check(["k"])
    assert server.refusals() == f"refused: {len(bad)} malformed requests"


@given(message=st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_request_or_refused(message: bytes) -> None:
    """If this failed, some bytes would raise what the store does not expect."""
    try:
        request = unpack_request(message)
    except Refused:
        return
    assert unpack_request(request.pack()) == request


@pytest.mark.parametrize("value", [b"", b"0", b"65536", b"-1", b"1e3", b"9" * 2000, "²".encode()])
def test_a_port_is_a_number(value: bytes) -> None:
    with pytest.raises(RunFailed):
        port_number(value)


def test_a_failure_from_another_host_is_text_and_nothing_else() -> None:
    """If this failed, what another host tells could steer the terminal or end the launcher with a traceback."""
    failure = Failure(
        rank=1, host="b", kind="error", message="bad\x1b[31m\x9b label\u202e", traceback="a\nb\x07", at=1.0
    )
    read = read_failure(failure.to_json())
    assert read is not None
    assert (read.message, read.traceback) == ("bad [31m  label ", "a\nb ")
    good = json.loads(failure.to_json())
    for change in (
        {"rank": "1"},
        {"rank": -1},
        {"kind": "stranger"},
        {"kind": ["error"]},
        {"step": True},
        {"at": float("nan")},
        {"message": None},
        {"run": 3},
    ):
        assert read_failure(json.dumps({**good, **change}).encode()) is None
    for text in (b"", b"[]", b"3", b"\xff", b"[" * 100_000, b'{"rank": 1}'):
        assert read_failure(text) is None
    assert read_failure(json.dumps({**good, "message": "x" * 10**6}).encode()).message == "x" * 4096  # type: ignore[union-attr]


def test_processes_of_one_host_agree_on_a_secret_that_nobody_else_reads(tmp_path: Path) -> None:
    """If this failed, torchrun on one host would need a file from the user, or show the secret to others."""
    found = [agree(tmp_path / "agreed") for _ in range(3)]
    assert found[0] == found[1] == found[2]
    assert [path.name for path in tmp_path.iterdir()] == ["agreed"]
    assert stat.S_IMODE((tmp_path / "agreed").stat().st_mode) == 0o600


@pytest.mark.parametrize("trap", ["open", "link", "owner"])
def test_a_file_that_others_have_a_hand_in_is_refused(tmp_path: Path, trap: str) -> None:
    """If this failed, a stranger could lay the file out beforehand and know the secret."""
    file, other = tmp_path / "agreed", tmp_path / "elsewhere"
    Secret.new().write(other if trap == "link" else file)
    match trap:
        case "open":
            file.chmod(0o644)
        case "link":
            file.symlink_to(other)
        case "owner":
            if os.geteuid() != 0:
                pytest.skip("to give a file away needs root")
            os.chown(file, 65534, 65534)
    with pytest.raises(UsageError, match="is not a file of this user alone"):
        agree(file)


def test_no_other_user_can_take_the_name_of_the_agreed_file_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this failed, anybody who makes folders in /tmp could keep all runs under torchrun from starting."""
    runtime, home = tmp_path / "runtime", tmp_path / "home"
    for folder in (runtime, home):
        folder.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert agreed_file(1).parent == runtime
    runtime.chmod(0o777)
    assert agreed_file(1).parent.parent == home / ".cache" / "paceline"
    assert stat.S_IMODE(agreed_file(1).parent.stat().st_mode) == 0o700
    home.chmod(0o777)
    assert agreed_file(1).parent == Path(tempfile.gettempdir())


def test_an_agreed_secret_of_killed_processes_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this failed, every run that is killed while it starts would leave a secret for ever."""
    runtime, script = tmp_path / "runtime", tmp_path / "killed.py"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    place = ProcessInfo(rank=0, workers=2, local_workers=2, port=1)
    script.write_text(
        "import os, signal\n"
        "from paceline.runtimes.live.secret import run_secret\n"
        "from paceline.runtimes.live.process_info import ProcessInfo\n"
        "worker = os.fork()\n"
        "if not worker:\n"
        "    with run_secret(ProcessInfo(workers=2, local_workers=2, port=2)):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "assert os.waitpid(worker, 0)[1] == signal.SIGKILL\n"
    )
    assert run_python(str(script)).returncode == 0
    (left,) = runtime.iterdir()
    elsewhere = runtime / f"paceline-ranks-{os.geteuid()}-1-99999999-1-1"
    elsewhere.touch(mode=0o600)
    with run_secret(place), run_secret(replace(place, rank=1)):
        assert not left.exists()
        assert len(list(runtime.iterdir())) == 2, "one that is in use stays"
    assert list(runtime.iterdir()) == [elsewhere], "its parent may live in another PID namespace"


def test_an_agreed_secret_is_removed_when_all_have_it_or_one_fails() -> None:
    place = ProcessInfo(rank=0, workers=2, local_workers=2, port=free_ports(1)[0])
    with run_secret(place):
        assert agreed_file(place.port).exists()
    assert not agreed_file(place.port).exists()
    with pytest.raises(ZeroDivisionError), run_secret(place):
        raise ZeroDivisionError
    assert not agreed_file(place.port).exists()
    with (
        pytest.raises(UsageError, match="a run on 2 hosts needs a secret file"),
        run_secret(ProcessInfo(nodes=2)),
    ):
        pass


def test_launchers_go_on_showing_that_they_are_there_after_the_store_was_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If this failed, a store that is full for a moment would make this host count as lost."""
    monkeypatch.setattr(timeouts, "BEAT", 0.05)
    plan = LaunchPlan(nodes=2, address="127.0.0.1", port=free_ports(1)[0], secret_file=Path("secret"))
    groups = [peers.LauncherGroup(replace(plan, node_rank=rank), SECRET, lambda _: None) for rank in (0, 1)]
    threads = [threading.Thread(target=group.gather) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    store = groups[0]._store
    monkeypatch.setattr(store_server, "MOST_BYTES", 0)
    time.sleep(0.2)
    before = store.get("alive-1")
    time.sleep(0.3)
    assert store.get("alive-1") == before, "there was no room"
    monkeypatch.setattr(store_server, "MOST_BYTES", 3000)
    deadline = time.monotonic() + 10
    while store.get("alive-1") == before:
        assert time.monotonic() < deadline, "the beats have ended"
        time.sleep(0.02)
    for group in reversed(groups):
        group.leave()


def test_whoever_has_no_secret_cannot_take_a_seat() -> None:
    """If this failed, whoever starts with --node-rank 1 first would train as that rank."""
    port, ends = free_ports(1)[0], {}

    def start(name: str, node_rank: int, secret: Secret) -> None:
        try:
            plan = LaunchPlan(
                address="127.0.0.1",
                port=port,
                node_rank=node_rank,
                nodes=2,
                workers=1,
                wait=20.0,
                secret_file=Path("secret"),
            )
            meeting = LauncherGroup(plan, secret, said.append)
            meeting.gather()
            meeting.leave()
            ends[name] = "met"
        except UsageError as mistake:
            ends[name] = str(mistake)

    said: list[str] = []
    first = threading.Thread(target=start, args=("first", 0, SECRET))
    first.start()
    start("stranger", 1, OTHER)
    start("second", 1, SECRET)
    first.join(20)
    assert (ends["first"], ends["second"]) == ("met", "met")
    assert "does not take this process's secret" in ends["stranger"]
    assert any("refused: 1 connections without the run's secret" in line for line in said)


def test_a_port_of_another_launcher_that_is_in_use_is_named() -> None:
    """If this failed, rank 0 would be said to have lost a peer."""
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        info = ProcessInfo(rank=0, workers=2, local_workers=2, port=port)
        with pytest.raises(UsageError, match=f"port {port} of .* is in use; set MASTER_PORT to a free port"):
            MemberStore(info, timedelta(seconds=5))
