"""Who is a worker and who a server, on one host and on several, by our own launcher and by torchrun's variables."""

from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UsageError
from paceline.runtimes.live.launcher.launch import environments
from paceline.runtimes.live.launcher.processes import LaunchPlan
from paceline.runtimes.live.process_info import ProcessInfo, local_servers


def plain_places(sizes: list[int], launch: Path | None) -> list[ProcessInfo]:
    """Every process of nodes with so many processes, as a launcher counts them that knows of no servers."""
    firsts = [0, *accumulate(sizes)]
    return [
        ProcessInfo(
            rank=firsts[node] + local,
            workers=sum(sizes),
            local_rank=local,
            local_workers=size,
            node_rank=node,
            nodes=len(sizes),
            launch=launch,
        )
        for node, size in enumerate(sizes)
        for local in range(size)
    ]


def check_whole(places: list[ProcessInfo], servers: int) -> None:
    workers = [place for place in places if place.role == "worker"]
    serving = [place for place in places if place.role == "server"]
    assert [place.rank for place in workers] == list(range(len(places) - servers)), "ranks count node by node"
    assert sorted(place.rank for place in serving) == list(range(servers))
    assert all(place.node_rank == place.rank % place.nodes for place in serving)
    assert {(place.workers, place.servers) for place in places} == {(len(workers), servers)}
    for group in (workers, serving):
        for node in {place.node_rank for place in group}:
            here = [place for place in group if place.node_rank == node]
            assert [place.local_rank for place in here] == list(range(len(here)))
            assert {place.local_workers for place in here} == {len(here)}


@given(
    nodes=st.integers(1, 4),
    workers=st.integers(1, 4),
    servers=st.integers(1, 6),
)
def test_our_own_launcher_adds_servers_to_as_many_workers_a_node(
    nodes: int, workers: int, servers: int
) -> None:
    """If this failed, two processes would take the same place, or none would."""
    sizes = [workers + len(local_servers(node, nodes, servers)) for node in range(nodes)]
    places = [place.with_servers(servers) for place in plain_places(sizes, Path("launch"))]
    check_whole(places, servers)
    assert all(place.local_workers == workers for place in places if place.role == "worker")


@given(nodes=st.integers(1, 4), size=st.integers(1, 5), servers=st.integers(1, 6))
def test_under_torchrun_the_last_processes_of_a_node_are_its_servers(
    nodes: int, size: int, servers: int
) -> None:
    """If this failed, a run under another launcher would miss a server or train with one worker twice."""
    if servers >= nodes * size:
        with pytest.raises(UsageError, match="leaves no worker"):
            plain_places([size] * nodes, None)[0].with_servers(servers)
        return
    check_whole([place.with_servers(servers) for place in plain_places([size] * nodes, None)], servers)


def test_our_own_launcher_tells_each_process_by_its_variables(tmp_path: Path) -> None:
    """If this failed, a server that our launcher starts would train."""
    plan = LaunchPlan(workers=2, servers=1, resume=tmp_path / "run", again={"secret_file": tmp_path})
    environs = environments(plan, 29500, tmp_path, tmp_path / "secret", {})
    places = [ProcessInfo.from_environment(environ) for environ in environs]
    assert [(place.role, place.rank, place.workers) for place in places if place] == [
        ("worker", 0, 2),
        ("worker", 1, 2),
        ("server", 0, 2),
    ]
    assert places[2] is not None
    assert (places[2].secret_file, places[2].resume) == (tmp_path / "secret", tmp_path / "run")
    assert places[2].again == {"secret_file": str(tmp_path)}
    assert [environ["RANK"] for environ in environs] == ["0", "1", "2"]


def test_ranks_dealt_out_to_hosts_in_turn_are_refused_where_there_are_servers() -> None:
    """If this failed, two processes would both be server 0 under a launcher that deals ranks out cyclically."""
    dealt = ProcessInfo(rank=1, workers=4, local_rank=0, local_workers=2, node_rank=1, nodes=2)
    with pytest.raises(UsageError, match="must count ranks host by host"):
        dealt.with_servers(1)
    assert dealt.with_servers(0) == dealt


def test_a_host_with_fewer_processes_than_servers_is_refused() -> None:
    """If this failed, a worker would get a negative rank."""
    crowded = ProcessInfo(
        rank=0, workers=4, local_rank=0, local_workers=1, node_rank=0, nodes=2, launch=Path("x")
    )
    with pytest.raises(UsageError, match="LOCAL_WORLD_SIZE=1 is too small for the 2 servers"):
        crowded.with_servers(3)
