import json
import math
import os
from datetime import UTC, datetime

import pytest

from paceline.records.create import create, environment, new_folder_name
from paceline.records.files import DamagedFile, read_json, write_json
from paceline.records.folder import RunFolder

NOON = datetime(2026, 11, 15, 18, 42, 7, tzinfo=UTC)


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
    assert new_folder_name(name, NOON) == expected


def test_two_runs_of_one_second_do_not_share_a_folder(tmp_path):
    names = [create(tmp_path / "runs", "digits", NOON).path.name for _ in range(3)]
    assert names == [f"20261115-184207-digits{end}" for end in ("", "-2", "-3")]


def test_files_of_spans_are_found_by_rank_in_order(tmp_path):
    folder = RunFolder(tmp_path)
    for rank in (10, 2, 0):
        folder.events(rank).parent.mkdir(exist_ok=True)
        folder.events(rank).touch()
    (folder.events(0).parent / "rank-x.jsonl").touch()
    assert list(folder.event_files().items()) == [(rank, folder.events(rank)) for rank in (0, 2, 10)]


def test_documents_are_plain_json_and_a_damaged_one_is_named(tmp_path):
    path = tmp_path / "new" / "summary.json"
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
