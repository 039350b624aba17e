"""Where there is too little shared memory, a sentence says so and everything works without."""

import os
import subprocess
from typing import Any

import pytest
from crew import run_script


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("a mount namespace needs root and a system that makes one")
    return run_script("shm_room.py", tmp_path_factory.mktemp("room"), before=("unshare", "-m"))


def heard(facts: dict[str, Any], scene: str) -> list[str]:
    return [text for result in facts[scene] for text in result["value"]["heard"]]


@pytest.mark.parametrize("scene", ["tiny", "tiny of three", "read only", "elsewhere"])
def test_without_shared_memory_gloo_gives_the_same_results(facts: dict[str, Any], scene: str) -> None:
    assert [result.get("value", result)["found"] for result in facts[scene]] == [{}] * len(facts[scene])


def test_one_sentence_says_how_much_room_is_needed(facts: dict[str, Any]) -> None:
    (text,) = heard(facts, "tiny")
    assert text.startswith("UserWarning: /dev/shm has 0 MB free and ")
    assert text.endswith(
        "MB are needed; give it more (in a container: --shm-size) to use shared memory; "
        "the ranks talk through Gloo instead"
    )
    (text,) = heard(facts, "elsewhere")
    assert text.startswith("UserWarning: shared memory needs Linux 5.3 or later on x86-64; the ranks talk")
    (text,) = heard(facts, "read only")
    assert text.startswith("UserWarning: /dev/shm cannot be used (Read-only file system)")


def test_a_tensor_too_big_to_share_is_an_ordinary_one_and_sums_stay_right(facts: dict[str, Any]) -> None:
    for result in facts["crowded"]:
        assert result["value"]["found"] == [6.0, 6.0, 6.0]
    (text,) = heard(facts, "crowded")
    assert "40.0 MB are needed" in text
    assert text.endswith("sums go through slots instead")


def test_a_run_notes_it_once_and_shows_what_it_really_talks_over(facts: dict[str, Any]) -> None:
    for scene, transport, says in (
        ("live", "gloo", "the ranks talk through Gloo instead"),
        ("live, crowded", "shm", "sums go through slots instead"),
    ):
        first, second = (result["value"]["found"] for result in facts[scene])
        assert [first["transport"], second["transport"]] == [transport, transport]
        (note,) = first["notes"]
        assert note.endswith(says)
        assert second["notes"] == heard(facts, scene) == []
