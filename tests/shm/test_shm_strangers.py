"""Whatever somebody else writes to the store of a group, no file is touched, and one sentence says what is wrong."""

import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from crew import run_script
from torch.distributed import HashStore

from paceline.shm import group_store, segment
from paceline.shm.group_store import KEYS, GroupStore, StoreTampered, printable

Facts = dict[str, Any]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    return run_script("shm_strangers.py", tmp_path_factory.mktemp("strangers"))


def test_another_user_cannot_have_a_file_deleted_or_altered(facts: Facts) -> None:
    """Nor can it have memory mapped that is not the group's own."""
    assert facts["before"]
    altered = [name for name, scene in facts["scenes"].items() if scene["files"] != facts["before"]]
    assert altered == []


@pytest.mark.parametrize(
    ("scene", "why"),
    [
        ("an old name", ""),
        ("an old name of a link", ""),
        ("a file", " (it is not memory that this package shares)"),
        ("a file like a segment", " (it is not memory that this package shares)"),
        ("a device", " (it is not memory that this package shares)"),
        ("a pipe", " (it is not memory that this package shares)"),
        ("a strange memfd", " (it is not memory that this package shares)"),
        ("one that can be cut off", " (its size is not sealed)"),
        ("another group's", " (it is the memory of another group)"),
        ("a small one", r" (it has 4,096 bytes where 8,396,800 are expected)"),
        ("nothing", None),
        ("huge", ""),
        ("no JSON", ""),
        ("deep", ""),
    ],
)
def test_a_forged_handle_ends_the_start_with_one_sentence_on_all_ranks(
    facts: Facts, scene: str, why: str | None
) -> None:
    first, second = facts["scenes"][scene]["ranks"]
    assert second["error"] == "StoreTampered", second
    assert first["text"] == second["text"]
    want = "the store holds something other than a handle of shared memory for rank 0 under table/0{}; "
    start, _, detail = want.partition("{}")
    assert second["text"].startswith(start)
    assert second["text"].endswith("; another process may be writing to it")
    if why is not None:
        assert second["text"] == f"{start}{why}{detail}another process may be writing to it"


def test_other_forged_values_end_it_likewise(facts: Facts) -> None:
    for scene, key in (("a member", "member/1"), ("an answer", "mapped/1")):
        first = facts["scenes"][scene]["ranks"][0]
        assert first["error"] == "StoreTampered", first
        assert f"for rank 1 under {key}; another process may be writing to it" in first["text"]


def test_what_strangers_say_is_shown_without_control_characters(facts: Facts) -> None:
    (shown,) = facts["scenes"]["escapes"]["ranks"][0]["value"]["heard"]
    assert shown == " [2J ]0;owned no room; the ranks talk through Gloo instead"
    assert facts["scenes"]["loss"]["ranks"][0]["text"] == "over [2J ]0;owned "


def test_a_thousand_hostile_values_are_read_as_what_they_should_be_or_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No other error than ours leaves the reading code, and nothing gets through that is not of its type and range."""
    monkeypatch.setattr(group_store, "_READING", 0.0)
    file = tmp_path / "thesis"
    file.write_text("years of work")
    chance, refused = random.Random(11), 0
    with file.open("r+b") as opened:
        for _ in range(1000):
            value = hostile(chance, opened.fileno())
            for name in KEYS:
                store = HashStore()
                store.set(f"1/{name}/0", value)
                refused += not heard(GroupStore(store, 0, [7], 5.0), name)
            store.set("2/loss", value)
            assert GroupStore(store, 0, [7], 5.0).loss(0.0).isprintable()
    assert refused > 2250, "of 3,000, as few of them are texts or small numbers"
    assert file.read_text() == "years of work"


def heard(told: GroupStore, key: str) -> bool:
    """Whether the value was taken for what it should be; else one sentence has said so."""
    try:
        check(told.read(key, 0))
    except StoreTampered as error:
        if re.fullmatch(
            r"the store holds .* for rank 7 under \w+/0; another process may be writing to it", str(error)
        ):
            return False
        raise
    return True


def check(read: Any) -> None:
    """What was let through is of the right type and range, and a handle leads to nothing that is mapped."""
    if isinstance(read, segment.Handle):
        assert 0 < read.process <= 2**22
        assert 0 <= read.descriptor <= 2**30
        assert len(read.token) == segment.TOKEN
        with pytest.raises((segment.UntrustedSegment, segment.SharedMemoryUnavailable)):
            segment.attach(read, 9)
    elif isinstance(read, tuple):
        assert [type(one) for one in read] == [int, str]
    else:
        assert isinstance(read, int) or (read.isprintable() and len(read) <= 1000)


def hostile(chance: random.Random, descriptor: int) -> bytes:
    """A value that somebody might try: right and nearly right ones, wrong types, and noise."""
    token = "ab" * segment.TOKEN
    numbers = [
        0,
        -1,
        1,
        3,
        os.getpid(),
        descriptor,
        2**22 + 1,
        2**31,
        2**64,
        10**400,
        0.5,
        True,
        float("nan"),
    ]
    texts = [
        token,
        token[:-1],
        "zz" * 32,
        "",
        "/etc/passwd",
        "../x",
        "\x1b[2J",
        "\0",
        "\ud800",
        "x" * 3000,
        "a" * 5000,
    ]

    def anything(depth: int = 0) -> Any:
        kind = chance.randrange(5 if depth < 2 else 3)
        if kind == 0:
            return chance.choice(numbers)
        if kind == 1:
            return chance.choice(texts)
        if kind == 2:
            return None
        few = [anything(depth + 1) for _ in range(chance.randrange(4))]
        return few if kind == 3 else {str(one)[:20]: one for one in few}

    form = chance.randrange(4)
    if form == 0:
        return chance.randbytes(chance.randrange(200))
    if form == 1:
        return chance.choice(
            [b"[" * 3000, b"9" * 4090, b'"\\ud800"', b"\xff\xfe", b'{"a":' * 500, b"", b"\0" * 9000]
        )
    value = [os.getpid(), descriptor, token] if form == 2 else anything()
    if form == 2 and chance.random() < 0.7:
        value[chance.randrange(3)] = anything()
    return json.dumps(value).encode()


def test_a_text_is_cut_and_stripped_before_it_is_shown() -> None:
    assert printable("a\nb\x1b\x9b\u202e\ud800é") == "a b    é"
    assert len(printable("x" * 10**6)) == 1000
