"""ps, ssp and async in a script's own loop: servers take its optimizer's steps, as its groups and schedulers say."""

import json
from pathlib import Path

import pytest
import torch
from served_script import batches, build
from torch import nn

from command import run_paceline
from loop.pairs import run_ranks
from paceline.errors import UsageError
from paceline.loop.replica import LoopReplica
from paceline.loop.served import ServedModel, check_groups, describe, group_settings, make_shard
from paceline.records.files import from_document, to_document
from paceline.runtimes.flat import own_memory
from paceline.runtimes.served_compression import slice_bounds

NAMES_SERVERS = """
import torch, paceline
model = torch.nn.Linear(2, 1)
paceline.distribute(model, torch.optim.SGD(model.parameters()), strategy="ssp")
"""
SCRIPT = str(Path(__file__).parent / "served_script.py")


def by_hand(kind: str) -> list[torch.Tensor]:
    """One process that has the mean gradient of both workers."""
    model, optimizer, scheduler = build(kind)
    for both in zip(batches(0), batches(1), strict=True):
        optimizer.zero_grad()
        for batch in both:
            (model(batch).pow(2).mean() / 2).backward()
        optimizer.step()
        scheduler.step()
    return list(model.parameters())


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ("--strategy ssp:staleness=0", "sgd"),
        ("--strategy ps --servers 2", "adam"),
        ("--strategy ps", "own"),
    ],
)
def test_servers_end_with_the_parameters_of_the_mean_gradient(
    options: str, kind: str, tmp_path: Path
) -> None:
    """With two groups, a scheduler, batch norm, and a model that differs on rank 1 before it joins."""
    run_paceline("run", *options.split(), SCRIPT, kind, str(tmp_path / "out"), cwd=tmp_path)
    expected = by_hand(kind)
    for rank in "01":
        for mine, theirs in zip(torch.load(tmp_path / f"out-{rank}"), expected, strict=True):
            assert (mine - theirs).abs().max().item() <= 1e-6


@pytest.mark.parametrize(("strategy", "steps"), [("ssp:staleness=1", 5), ("async", 0)])
def test_workers_may_end_after_different_numbers_of_steps(strategy: str, steps: int, tmp_path: Path) -> None:
    """If this failed, a worker with less data, or with none, would hold the others back for ever."""
    words = [
        "--strategy",
        strategy,
        "--codec",
        "int8",
        SCRIPT,
        "sgd",
        str(tmp_path / "out"),
        "12",
        str(steps),
    ]
    run_paceline("run", *words, cwd=tmp_path)
    if steps:
        one, other = (torch.load(tmp_path / f"out-{rank}") for rank in "01")
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))
    (folder,) = (tmp_path / "runs").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    assert [one["steps"] for one in summary["totals"]] == [12, steps]
    assert summary["ending"] == "budget"


def test_one_of_torchruns_processes_is_the_server(tmp_path: Path) -> None:
    """If this failed, what docs/your-script.md says of torchrun would lead nowhere."""
    words = ("-m", "paceline", "run", "--strategy", "ps", SCRIPT, "sgd", str(tmp_path / "out"))
    shown = run_ranks(*words, cwd=tmp_path, workers=3)
    assert "2 workers x batch 8, ps over shared memory" in shown[0]
    for mine, theirs in zip(torch.load(tmp_path / "out-1"), by_hand("sgd"), strict=True):
        assert (mine - theirs).abs().max().item() <= 1e-6


def test_servers_of_a_script_that_never_joins_end_with_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    done = run_paceline("run", "--strategy", "ps", "script.py", cwd=tmp_path)
    assert "without a call of paceline.distribute" in done.stderr
    (tmp_path / "script.py").write_text(NAMES_SERVERS)
    done = run_paceline("run", "--workers", "1", "script.py", cwd=tmp_path, check=2)
    assert "start the script with 'paceline run --strategy ssp script.py'" in done.stderr


def test_slices_of_an_optimizer_do_what_the_whole_one_does() -> None:
    """If this failed, several servers would train another model than one."""
    model, optimizer, _ = build("adam")
    described = describe(LoopReplica(model, optimizer, 0, 1, own_memory), "identity", (8,))
    elements = described.layout.elements
    grad = torch.randn(elements, generator=torch.Generator().manual_seed(1))
    ended = []
    for servers in (1, 3):
        shards = [make_shard(described, rank, servers) for rank in range(servers)]
        for _ in range(3):
            for shard, (start, stop) in zip(shards, slice_bounds(elements, servers), strict=True):
                shard.grad.copy_(grad[start:stop])
                shard.follow([{**one, "lr": 0.3} for one in group_settings(optimizer)])
                shard.apply(0.0)
        ended.append(torch.cat([shard.params for shard in shards]))
    assert torch.equal(*ended)
    assert ended[0].abs().min() > 0


def test_a_server_has_channels_where_the_script_has_them() -> None:
    """If this failed, an optimizer that looks at rows and columns would take other steps on a server."""
    model = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    replica = LoopReplica(model, torch.optim.SGD(model.parameters(), lr=1.0), 0, 1, own_memory)
    described = describe(replica, "identity", (8,))
    shard = make_shard(from_document(to_document(described), ServedModel), 0, 1)
    shard.params.copy_(replica.flat.params)
    weight, _ = shard._optimizer._optimizer.param_groups[0]["params"]
    assert torch.equal(weight, model.weight)
    assert weight.stride() == weight.grad.stride() == model.weight.stride()


def test_what_servers_cannot_be_told_is_refused() -> None:
    class Inside(torch.optim.SGD):
        pass

    model = nn.Linear(2, 1)
    for optimizer, why in (
        (Inside(model.parameters(), lr=0.1), "defined inside of something else"),
        (torch.optim.SGD([{"params": model.parameters(), "mask": torch.ones(2)}], lr=0.1), "setting mask"),
    ):
        with pytest.raises(UsageError, match=why):
            describe(LoopReplica(model, optimizer, 0, 1, own_memory), "identity", (1,))


def test_settings_that_no_worker_sends_are_dropped() -> None:
    assert check_groups('[{"lr": 0.1}]', 1) == [{"lr": 0.1}]
    for document in ("", "[" * 100_000, "{}", "[]", "[1]", '[{"lr": "x"}]', '[{"lr": 1}, {"lr": 1}]'):
        assert check_groups(document, 1) is None
