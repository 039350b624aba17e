"""Ranks that die, leave, never come, or ask for different things: nobody hangs, everybody is told the same."""

from typing import Any

import pytest
from crew import run_script

Facts = dict[str, Any]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return run_script("shm_faults.py", tmp_path_factory.mktemp("faults"))


def told(facts: Facts, scene: str, *ranks: int) -> set[tuple[str, str]]:
    found = [facts[scene]["ranks"][rank] for rank in ranks]
    return {(result.get("error", "none"), result.get("text", "none")) for result in found}


@pytest.mark.parametrize(("scene", "survivors"), [("small", (0, 2)), ("big", (0, 2)), ("in place", (0, 2))])
def test_a_kill_in_the_middle_is_told_by_name_within_seconds(
    facts: Facts, scene: str, survivors: tuple[int, ...]
) -> None:
    assert told(facts, scene, *survivors) == {("PeerLost", "rank 1 died (during all_reduce)")}
    assert max(facts[scene]["ranks"][rank]["after"] for rank in survivors) < 3


def test_a_kill_ends_every_way_of_waiting_for_a_message(facts: Facts) -> None:
    assert told(facts, "receiving", 0, 2) == {("PeerLost", "rank 1 died (during recv)")}
    assert told(facts, "receiving", 3) == {("PeerLost", "rank 1 died (during send)")}
    assert max(facts["receiving"]["ranks"][rank]["after"] for rank in (0, 2, 3)) < 3


def test_a_rank_that_ends_is_told(facts: Facts) -> None:
    assert told(facts, "raises", 0, 2) == {("PeerLost", "rank 1 died (during all_reduce)")}


def test_a_store_forms_a_group_again_and_again_also_after_a_death(facts: Facts) -> None:
    """Torch names groups alike: what was said for an earlier one must not be heard by the next."""
    first, _, third = facts["anew"]["ranks"]
    for result in (first, third):
        assert result.get("value", result) == [6.0, 6.0, "rank 1 died (during all_reduce)", 4.0]


def test_a_rank_that_leaves_is_told_at_once_though_it_lives_on(facts: Facts) -> None:
    assert told(facts, "destroys", 0, 2) == {("PeerLost", "rank 1 has left (during all_reduce)")}
    first, left, third = facts["destroys"]["ranks"]
    assert max(first["at"], third["at"]) < left["at"]


def test_a_rank_that_was_interrupted_in_the_middle_never_takes_part_again(facts: Facts) -> None:
    """It cannot know how far it came: going on would mix up two collectives."""
    first, second, third = facts["interrupted"]["ranks"]
    assert first["value"] == "went on"
    assert second["value"] == "this group was closed"
    assert third["text"] == "rank 1 has left (during all_reduce)"


@pytest.mark.parametrize(("moment", "victim"), [("create", 0), ("attach", 1), ("free_memory", 0)])
def test_a_kill_while_the_group_forms_is_told(facts: Facts, moment: str, victim: int) -> None:
    survivors = [rank for rank in range(3) if rank != victim]
    want = ("PeerLost", f"rank {victim} died (during the start of the group)")
    assert told(facts, f"forming, {moment}", *survivors) == {want}
    assert max(facts[f"forming, {moment}"]["ranks"][rank]["after"] for rank in survivors) < 4


def test_ctrl_c_while_the_group_forms_is_told(facts: Facts) -> None:
    first, *others = facts["forming, Ctrl-C"]["ranks"]
    assert first["value"] == "interrupted"
    assert {result["error"] for result in others} == {"PeerLost"}


def test_a_rank_that_never_comes_is_named_when_the_time_is_over(facts: Facts) -> None:
    words = "rank 2 did not arrive within 1 s (during {})"
    assert told(facts, "late, True", 0, 1) == {("PeerLost", words.format("the start of the group"))}
    assert told(facts, "late, False", 0, 1) == {("PeerLost", words.format("all_reduce"))}


def test_nothing_is_left_in_dev_shm_whenever_somebody_is_killed(facts: Facts) -> None:
    """A name that outlives its makers is memory that nobody frees."""
    left = {scene: found["left"] for scene, found in facts.items() if isinstance(found, dict)}
    assert "all die while forming" in left
    assert not any(left.values()), left


def test_the_memory_has_no_name_and_is_for_its_owner_only(facts: Facts) -> None:
    first, second = (result["value"] for result in facts["watched"]["ranks"])
    assert second["rights"] == ["0o600", "0o600"]
    assert second["later"] == ["UntrustedSegment", "UntrustedSegment"], (
        "nobody can join once all have mapped it"
    )
    for seen in (first, second):
        assert len(seen["mapped"]) == 2, "the group's memory, and the tensor's"
        assert all(name.startswith("/memfd:paceline-my_run_7") for name in seen["mapped"]), seen["mapped"]


def test_a_member_cannot_cut_the_memory_off(facts: Facts) -> None:
    """The others would be killed by SIGBUS where they next touch it."""
    first, second = (result["value"] for result in facts["watched"]["ranks"])
    assert second["cut"] == []
    assert first["sum"] == second["sum"] == [2.0, 2.0]


def test_ranks_that_ask_for_different_things_all_hear_the_same_and_can_go_on(facts: Facts) -> None:
    ranks = [result["value"] for result in facts["mistaken"]["ranks"]]
    assert ranks[0] == ranks[1] == ranks[2]
    assert {name: kind for name, (kind, _) in ranks[0].items() if kind != "InvalidCall"} == {}
    texts = {name: text for name, (_, text) in ranks[0].items()}
    assert texts["sizes"] == (
        "the ranks do not ask for the same: rank 0 called all_reduce(10 x float32, sum), "
        "rank 1 all_reduce(11 x float32, sum); "
        "a collective needs the same call with the same sizes and types on every rank"
    )
    assert "operation 'mean' does not work on torch.int32: it has sum," in texts["mean of integers"]
    assert (
        texts["odd type"]
        == texts["odd type later"]
        == (
            "the ranks do not ask for the same: rank 0 called all_reduce(10 x float32, sum), "
            "rank 1 something that shm cannot do; "
            "a collective needs the same call with the same sizes and types on every rank"
        )
    )
    assert texts["odd everywhere"].startswith("shm cannot move float8_e5m2fnuz tensors")
    assert texts["odd message"] == texts["odd answer"] == texts["odd everywhere"]
