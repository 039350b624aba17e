import json
import math
import os
import re
from datetime import UTC, datetime

import pytest

from paceline.errors import UsageError
from paceline.records.files import DamagedFile, read_json, write_json
from paceline.records.folder import (
    RunFolder,
    check_folder_name,
    check_parent,
    create,
    create_new,
    environment,
    new_folder_name,
)

NOON = datetime(2026, 11, 15, 18, 42, 7, tzinfo=UTC)


def nothing(folder):
    pass


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("digits", "20261115-184207-digits"),
        ("my_jobs.vision:build", "20261115-184207-my_jobs.vision-build"),
        ("../../etc/passwd", "20261115-184207-etc-passwd"),
        ("", "20261115-184207-run"),
        ("x" * 200, "20261115-184207-" + "x" * 40),
    ],
)
def test_a_folder_says_when_and_what_and_stays_in_its_place(name, expected):
    told = new_folder_name(name, NOON)
    assert re.fullmatch(re.escape(expected) + "-[a-z0-9]{4}", told)
    assert check_folder_name(told) == told


def test_two_runs_of_one_second_do_not_share_a_folder(tmp_path):
    names = {create_new(tmp_path / "runs", "digits", nothing).path.name for _ in range(20)}
    assert len(names) == 20
    assert sorted(names) == sorted(path.name for path in (tmp_path / "runs").iterdir()), "drafts stay"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "/etc",
        "a/b",
        "20261115-184207-x/../../y-abcd",
        ".20261115-184207-x-abcd",
        5,
        None,
        "x" * 300,
    ],
)
def test_a_name_from_elsewhere_is_only_ever_one_folder_of_ours(name):
    """If this failed, another process could have files written wherever it likes."""
    with pytest.raises(UsageError, match="is not the name of a run folder"):
        check_folder_name(name)


def test_a_folder_is_there_whole_or_not_at_all(tmp_path):
    """If this failed, two runs could share a folder, or a crash leave one that nobody can read."""

    def fill(folder):
        folder.config.write_text("mine")

    name = new_folder_name("x", NOON)
    folder = create(tmp_path, name, fill)
    with pytest.raises(FileExistsError):
        create(tmp_path, name, lambda folder: folder.config.write_text("theirs"))
    assert folder.config.read_text() == "mine"

    def full(folder):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        create(tmp_path, new_folder_name("x", NOON), full)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_files_of_spans_are_found_by_rank_in_order(tmp_path):
    folder = RunFolder(tmp_path)
    for rank in (10, 2, 0):
        folder.events(rank).parent.mkdir(exist_ok=True)
        folder.events(rank).touch()
    (folder.events(0).parent / "rank-x.jsonl").touch()
    assert list(folder.event_files().items()) == [(rank, folder.events(rank)) for rank in (0, 2, 10)]


def test_documents_are_plain_json_and_a_damaged_one_is_named(tmp_path):
    path = tmp_path / "summary.json"
    write_json(path, {"loss": math.nan, "list": (1, math.inf), "text": "µ"})
    assert read_json(path) == {"loss": None, "list": [1, None], "text": "µ"}
    path.write_text('{"loss": ')
    with pytest.raises(DamagedFile, match=r"summary.json is not a JSON document"):
        read_json(path)


def test_the_environment_tells_the_machine_and_no_secret(monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "hunter2-secret")
    env = environment()
    assert {"python", "torch", "paceline", "platform", "host", "cpu", "cores", "memory_bytes"} <= env.keys()
    assert env["cores"] == os.cpu_count()
    assert env["memory_bytes"] > 2**20
    assert env["torch"].startswith("2.")
    assert "hunter2" not in json.dumps(env)


@pytest.mark.parametrize("place", ["/proc/x", "/proc/x/y", "n" * 300])
def test_a_place_where_no_folder_can_be_made_is_refused_before_anything_runs(tmp_path, place):
    """Permissions say that root may write anywhere, so that this would be an OSError after minutes."""
    with pytest.raises(UsageError, match=r"nothing can be written to .* \(.*\); choose another place"):
        check_parent(tmp_path / place)


def test_a_place_where_a_folder_can_be_made_stays_as_it_was(tmp_path):
    check_parent(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())
