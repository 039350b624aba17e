"""What a launch refuses before anything starts, and where a worker finds itself."""

import socket
import subprocess
import threading
from pathlib import Path

import pytest

from paceline.cli.train import ResumeOptions, train
from paceline.errors import RunFailed, UsageError
from paceline.runtimes.live.addresses import interface_towards
from paceline.runtimes.live.launcher.launch import environments, paceline_command
from paceline.runtimes.live.launcher.peers import LauncherGroup
from paceline.runtimes.live.launcher.processes import LaunchPlan
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.secret import Secret
from ports import free_ports
from run_folders import saved_run

SECRET, FILE = Secret(b"a secret of the tests"), Path("secret")
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29500",
}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workers": 0}, "0 workers are too few"),
        ({"nodes": 0}, "0 nodes are too few"),
        ({"nodes": 2, "address": "127.0.0.1"}, "2 nodes needs a secret file"),
        ({"nodes": 2, "address": "127.0.0.1", "node_rank": 2}, "ranks are 0 to 1"),
        ({"nodes": 2, "address": "127.0.0.1", "node_rank": -1}, "node rank -1"),
        ({"nodes": 2}, "needs an address"),
        ({"port": 65536}, "65536 is not a port"),
        ({"port": 0}, "0 is not a port"),
    ],
)
def test_a_bad_plan_is_refused(settings: dict[str, int], words: str) -> None:
    """If this failed, a typing error would hang a cluster."""
    with pytest.raises(UsageError, match=words):
        LaunchPlan(**settings)  # type: ignore[arg-type]


def test_a_port_in_use_is_refused_by_name() -> None:
    """If this failed, the store of another run would be joined, or torch would print a page."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        plan = LaunchPlan(nodes=2, address="127.0.0.1", port=port, secret_file=FILE)
        with pytest.raises(UsageError, match=f"port {port} on 127.0.0.1 is in use; choose another port"):
            LauncherGroup(plan, SECRET, print)


@pytest.mark.parametrize(
    ("address", "words"),
    [("no-such-host.invalid", "does not resolve"), ("192.0.2.1", "is not an address of")],
)
def test_an_address_that_cannot_be_listened_on_is_refused(address: str, words: str) -> None:
    """If this failed, every host would wait for the others in vain."""
    with pytest.raises(UsageError, match=words):
        LauncherGroup(LaunchPlan(nodes=2, address=address, port=29511, secret_file=FILE), SECRET, print)


def test_a_name_that_means_loopback_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this failed, node rank 0 would listen where no other host can reach it."""
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 29511))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    with pytest.raises(UsageError, match=r"node-a means 127\.0\.1\.1 on this host"):
        LauncherGroup(LaunchPlan(nodes=2, address="node-a", port=29511, secret_file=FILE), SECRET, print)


def test_workers_get_the_interface_and_one_thread_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    """If this failed, Gloo would listen at the address of the host's name, and threads fight for cores."""
    assert interface_towards("127.0.0.1", 29500) == "lo"
    found = environments(LaunchPlan(workers=2), 29500, tmp_path, FILE, {})[0]
    assert (found["GLOO_SOCKET_IFNAME"], found["OMP_NUM_THREADS"]) == ("lo", "1")
    own = {"GLOO_SOCKET_IFNAME": "eth9", "OMP_NUM_THREADS": "4"}
    found = environments(LaunchPlan(workers=2), 29500, tmp_path, FILE, own)[1]
    assert {name: found[name] for name in own} == own
    assert environments(LaunchPlan(workers=1), 29500, tmp_path, FILE, {})[0]["OMP_NUM_THREADS"] == "1"


def test_a_place_is_read_from_torchruns_variables() -> None:
    """If this failed, 'torchrun -m paceline train' would run every worker alone."""
    place = ProcessInfo.from_environment(TORCHRUN)
    assert place is not None
    assert (place.rank, place.workers, place.local_rank, place.local_workers) == (3, 4, 1, 2)
    assert (place.node_rank, place.nodes, place.address, place.port) == (1, 2, "node-a", 29500)
    assert place.launch is None
    assert ProcessInfo.from_environment({"WORLD_SIZE": "4"}) is None


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("RANK", "x", "RANK=x is not a number"),
        ("RANK", "4", "RANK=4 lies outside WORLD_SIZE=4"),
        ("WORLD_SIZE", "-1", "WORLD_SIZE=-1"),
        ("MASTER_ADDR", "", "MASTER_ADDR is not"),
        ("LOCAL_RANK", "2", "LOCAL_RANK=2"),
    ],
)
def test_malformed_variables_are_the_users_to_fix(name: str, value: str, words: str) -> None:
    """If this failed, a broken batch script would end in a traceback."""
    with pytest.raises(UsageError, match=words):
        ProcessInfo.from_environment({**TORCHRUN, name: value})


def meet(wait: float, port: int, *settings: dict[str, int]) -> list[BaseException | None]:
    """Let several launchers meet in threads, and return what each one raised."""
    ends: list[BaseException | None] = [None] * len(settings)

    def one(index: int, mine: dict[str, int]) -> None:
        try:
            usual = {"nodes": 2, "workers": 1, "port": port}
            plan = LaunchPlan(address="127.0.0.1", wait=wait, secret_file=FILE, **{**usual, **mine})
            meeting = LauncherGroup(plan, SECRET, lambda _: None)
            meeting.gather()
            meeting.leave()
        except (UsageError, RunFailed) as error:
            ends[index] = error

    threads = [threading.Thread(target=one, args=pair) for pair in enumerate(settings)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


@pytest.fixture
def port() -> int:
    """A port that nobody listens on."""
    return free_ports(1)[0]


def test_launchers_that_agree_meet(port: int) -> None:
    """If this failed, no run on several hosts would start."""
    assert meet(20, port, {"node_rank": 0}, {"node_rank": 1}) == [None, None]


def test_launchers_that_disagree_say_so_on_every_host(port: int) -> None:
    """If this failed, hosts with different options would hang in their first collective."""
    ends = meet(20, port, {"node_rank": 0}, {"node_rank": 1, "workers": 3})
    assert all(isinstance(end, UsageError) and "the number of workers is 3" in str(end) for end in ends)


def test_waiting_in_vain_ends_and_names_who_is_missing(port: int) -> None:
    """If this failed, a host that never comes would be waited for without a word."""
    (early,) = meet(0.3, port, {"node_rank": 1})
    assert f"node rank 0 did not answer at 127.0.0.1, port {port}, within 0.3 s" in str(early)
    (alone,) = meet(0.3, port, {"node_rank": 0})
    assert "node rank 1 of 2 did not answer at 127.0.0.1" in str(alone)


def test_a_worker_imports_nothing_from_the_folder_that_it_runs_in(tmp_path: Path) -> None:
    """If this failed, a run folder from somebody else could run anything in whoever resumes it from inside."""
    (tmp_path / "cyclopts.py").write_text("open('was-here', 'w')")
    done = subprocess.run(paceline_command(["--version"]), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "was-here").exists()


def test_a_trusted_run_is_told_how_it_goes_on_with_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this failed, the Resume line of a job in its run folder would be refused when it is typed."""
    folder, plans = saved_run(tmp_path / "run", 4), []
    monkeypatch.setattr(
        "paceline.runtimes.live.launcher.launch.launch", lambda _, plan, **__: plans.append(plan) or 0
    )
    monkeypatch.delenv("RANK", raising=False)
    for trust in (False, True):
        assert train(resume=ResumeOptions(resume=folder.path, trust=trust)) == 0
    assert [plan.settings for plan in plans] == [{}, {"trust": True}]
    assert {plan.resume for plan in plans} == {folder.path}
