"""Live runs with servers and codecs: as they are simulated, to the last bit and byte, repeated and resumed."""

import contextlib
import io
import json
from pathlib import Path

import pytest
import torch

from command import run_json
from paceline.cli.main import main
from paceline.records.folder import RunFolder
from paceline.records.tensors import read_tensors


def model(cwd: Path, document: dict) -> dict[str, torch.Tensor]:
    return read_tensors(cwd / document["run"]["folder"] / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def traffic(cwd: Path, document: dict) -> list[list[tuple[int, int]]]:
    """Bytes that each worker sent and received, step by step and at sync points."""
    folder = RunFolder(cwd / document["run"]["folder"])
    records = (
        [json.loads(line) for line in folder.events(rank).read_text().splitlines()] for rank in range(2)
    )
    moved = ([(one.get("sent", 0), one.get("received", 0)) for one in found] for found in records)
    return [[one for one in found if one != (0, 0)] for found in moved]


@pytest.mark.parametrize(
    ("codec", "servers"),
    [("int8", "2"), ("top-k:ratio=0.05", "2"), ("powersgd:rank=2", "1"), ("threshold", "1")],
)
def test_a_live_run_is_the_simulated_one_to_the_bit_and_byte(tmp_path, codec: str, servers: str) -> None:
    options = ("--strategy", "ps", "--codec", codec, "--servers", servers, "-i", "25", "--threads", "1")
    live = run_json("train", *options, cwd=tmp_path)
    virtual = run_json("simulate", *options[:-2], cwd=tmp_path)
    assert same(model(tmp_path, live), model(tmp_path, virtual))
    assert traffic(tmp_path, live) == traffic(tmp_path, virtual)


@pytest.mark.parametrize(
    ("spec", "codec"),
    [("async", "int8"), ("async", "top-k:ratio=0.05"), ("ssp:staleness=1", "powersgd:rank=2")],
)
def test_an_asynchronous_run_with_a_codec_can_be_repeated(tmp_path, spec: str, codec: str) -> None:
    options = ("--strategy", spec, "--codec", codec, "--servers", "2", "--slow", "1=2", "--epochs", "3")
    document = run_json("train", *options, "--optimizer", "sgd:lr=0.2,momentum=0", cwd=tmp_path)
    assert document["rows"][-1]["test_loss"] < 2.0, "ten classes, and chance is 2.3"
    out = io.StringIO()
    with contextlib.chdir(tmp_path), contextlib.redirect_stdout(out):
        assert main(["simulate", "--replay", document["run"]["folder"]]) == 0
    assert "equal to the last bit" in out.getvalue()


@pytest.mark.parametrize(
    ("codec", "servers"), [("top-k:ratio=0.05", "1"), ("powersgd:rank=2", "1"), ("int8:memory=error", "2")]
)
def test_a_resumed_run_is_the_one_that_was_never_stopped_memory_included(
    tmp_path, codec: str, servers: str
) -> None:
    every = ("--evaluate-every", "20 steps", "--checkpoint-every", "20 steps")
    options = ("--strategy", "ps", "--codec", codec, "--servers", servers, *every)
    stopped = run_json("train", *options, "-i", "20", "--threads", "1", cwd=tmp_path)
    resumed = run_json("train", "--resume", stopped["run"]["folder"], "-i", "40", cwd=tmp_path)
    assert resumed["run"]["first_step"] == 20
    straight = run_json("simulate", *options, "-i", "40", cwd=tmp_path)
    assert same(model(tmp_path, resumed), model(tmp_path, straight))
