"""config.json: what is read back is what was written, or a sentence says why not."""

import json
import random
from dataclasses import replace
from typing import get_type_hints

import pytest

from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec
from paceline.records.files import write_sealed
from paceline.records.folder import RunFolder
from paceline.runtimes.config import LiveMachinery, new_identity, read_config, read_live, write_config
from paceline.runtimes.live.request import LiveOptions
from paceline.runtimes.settings import Settings

SETTINGS = Settings(job=JobSpec(), batch_sizes=(3, 4), slow={1: 2.5}, iterations=7, target_accuracy=0.9)
MACHINERY = {"device": "cpu", "backend": None, "timeout": 300.0, "threads": 1}


def test_of_a_thousand_flipped_bits_none_gives_other_settings_and_none_a_traceback(tmp_path):
    """If this failed, a bad sector would train something else, or end in a traceback."""
    folder = RunFolder(tmp_path)
    write_config(folder, SETTINGS, "live", MACHINERY)
    good, settings, rng = folder.config.read_bytes(), read_live(folder).settings, random.Random(11)
    refused = []
    for _ in range(1000):
        data = bytearray(good)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        folder.config.write_bytes(data)
        try:
            assert read_live(folder).settings == settings
            assert read_live(folder).machinery == MACHINERY
        except UsageError as mistake:
            refused.append(str(mistake))
    assert len(refused) > 800, "a flipped bit between the words may change nothing"
    assert all(sentence.endswith("; use a record that is whole") for sentence in refused)


def test_the_machinery_of_a_live_run_is_all_of_its_options():
    """If this failed, a run could not be resumed with an option that it was started with."""
    assert get_type_hints(LiveMachinery) == get_type_hints(LiveOptions)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('{"schema": 6, "runt', "is not a JSON document: .*"),
        ('{"schema": 6, "runtime": "live", "settings": {}}', "was altered since it was written"),
    ],
)
def test_a_damaged_config_says_to_use_another_record(tmp_path, text, wrong):
    """If this failed, a user would look for another version of paceline, which is not what is wrong."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=f"config.json {wrong}; use a record that is whole$"):
        read_live(RunFolder(tmp_path))


def test_a_run_of_another_paceline_is_named(tmp_path):
    write_sealed(tmp_path / "config.json", {"schema": 7})
    with pytest.raises(UsageError, match="is of schema 7, made by another version of paceline"):
        read_live(RunFolder(tmp_path))


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("runtime", "dream"),
        ("identity", {"run": "x", "settings": "0" * 64}),
        ("identity", None),
        ("settings", []),
        ("settings.batch_sizes", ["3", 4]),
        ("settings.seed", 1.5),
        ("settings.seed", True),
        ("settings.job", {"path": 5}),
        ("settings.slow", {"-1": 2}),
        ("settings.slow", {"9": 2}),
        ("settings.evaluate", "now"),
        ("settings.buffers", "both"),
        ("settings.more", 1),
        ("machinery.threads", "1"),
        ("machinery.shell", "rm"),
        ("placement.workers", [None]),
        ("code", {"file": 1}),
        ("more", 1),
    ],
)
def test_a_document_with_a_right_digest_is_not_believed_either(part, value, tmp_path):
    folder = RunFolder(tmp_path)
    write_config(folder, SETTINGS, "live", MACHINERY)
    document = json.loads(folder.config.read_text())
    del document["digest"]
    *above, last = part.split(".")
    (document[above[0]] if above else document)[last] = value
    write_sealed(folder.config, document)
    with pytest.raises(UsageError, match=r"config.json cannot be read \("):
        read_config(folder)


def test_what_may_change_on_resuming_is_not_part_of_a_runs_identity():
    """If this failed, a run with other --epochs could not use its checkpoints, or one with another seed could."""
    one = new_identity(SETTINGS, run="0" * 16)
    for same in (
        {"iterations": None, "epochs": 9},
        {"target_accuracy": None},
        {"keep": 9},
        {"job": JobSpec(data_dir="/elsewhere")},
    ):
        assert new_identity(replace(SETTINGS, **same), run="0" * 16) == one
    for other in (
        {"seed": 2},
        {"strategy": "local-sgd"},
        {"job": JobSpec(model="mlp")},
        {"batch_sizes": (4, 4)},
    ):
        assert new_identity(replace(SETTINGS, **other), run="0" * 16) != one
