"""The examples that a user copies: each under four strategies, with two workers and alone."""

import random
import re
import shlex
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed import checkpoint as dcp

import paceline
from command import run_paceline
from loop.pairs import run_in_turn
from paceline.loop.process import ScriptProcess
from paceline.records.folder import RunFolder
from paceline.records.summary import read_summary

EXAMPLES = Path(__file__).parents[2] / "examples"
STRATEGIES = (
    "all-reduce",
    "local-sgd:period=4",
    "diloco:period=8,overlap=4",
    "post-local:switch=10,period=4",
)
LEARNS = {
    "plain_loop": ("accuracy", 0.5),
    "mixed_precision": ("accuracy", 0.3),
    "language_model": ("perplexity", 60.0),
    "uneven_data": ("accuracy", 0.4),
    "checkpoints": ("accuracy", 0.5),
}
"""What each shows after an epoch, and what it has learnt by then."""


def script(name: str, *options: object) -> str:
    return shlex.join([str(EXAMPLES / f"{name}.py"), *map(str, options)])


@pytest.mark.parametrize("name", LEARNS)
def test_an_example_learns_under_every_strategy(name: str, tmp_path: Path) -> None:
    own = {one: ("--checkpoints", tmp_path / f"checkpoints-{place}") for place, one in enumerate(STRATEGIES)}
    scripts = [
        script(name, "--epochs", 1, "--strategy", one, *(own[one] if name == "checkpoints" else ()))
        for one in STRATEGIES
    ]
    for out in run_in_turn(scripts, tmp_path)[0]:
        assert_learnt(name, out)


@pytest.mark.parametrize("name", LEARNS)
def test_an_example_learns_with_servers(name: str, tmp_path: Path) -> None:
    words = ("run", "--strategy", "ssp:staleness=2", *shlex.split(script(name)))
    done = run_paceline(*words, "--epochs", "1", cwd=tmp_path)
    assert_learnt(name, done.stdout)
    (folder,) = (tmp_path / "runs").iterdir()
    summary = read_summary(RunFolder(folder))  # also where a step has several mini-batches
    assert summary.steps == round(fmean(one.steps for one in summary.totals)) > 0
    if name == "checkpoints":  # with what the servers do not begin with
        again = run_paceline(*words, "--epochs", "2", cwd=tmp_path)
        assert re.findall(r"^epoch \d", again.stdout, re.M) == ["epoch 2"]
        assert again.stderr.count("a new AdamW: its state, such as momentum, was theirs") == 1


def assert_learnt(name: str, out: str) -> None:
    shows, bound = LEARNS[name]
    found = re.search(rf"epoch 1: .*{shows} ([\d.]+)", out)
    assert found, out
    value = float(found[1])
    assert value < bound if shows == "perplexity" else value > bound, out


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (1, ("--strategy", "all-reduce")),
        (2, ("--strategy", "all-reduce", "--codec", "top-k:ratio=0.1")),
        (2, ("--strategy", "diloco:period=8,overlap=4")),
    ],
)
def test_a_script_that_is_started_again_goes_on_as_if_it_had_never_stopped(
    workers: int, options: tuple[str, ...], tmp_path: Path
) -> None:
    """With shuffled data, dropout, batch norm and a schedule."""
    folders = ("--checkpoints", tmp_path / "through"), ("--checkpoints", tmp_path / "stopped")
    through, stopped, resumed = run_in_turn(
        [
            script("checkpoints", "--epochs", 2, *folders[0], *options),
            script("checkpoints", "--epochs", 1, *folders[1], *options),
            script("checkpoints", "--epochs", 2, *folders[1], *options),
        ],
        tmp_path,
        workers,
    )[0]
    lines = [re.findall(r"^epoch .*$", out, re.M) for out in (through, stopped, resumed)]
    assert len(lines[0]) == 2
    assert lines[0] == lines[1] + lines[2]


def test_distributed_checkpoints_have_the_workers_state(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whose length nobody knows before it is loaded; data sets draw from the streams of torch, Python and numpy."""
    monkeypatch.chdir(tmp_path)

    def trained(steps: int, *, load: bool) -> list[torch.Tensor]:
        monkeypatch.setattr(ScriptProcess, "current", None)
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        worker = paceline.distribute(model, optimizer, strategy="diloco:period=3")
        name = f"worker-{worker.rank}"
        if load:
            parts = {"model": model.state_dict(), name: worker}
            dcp.load(parts, checkpoint_id=tmp_path / "saved")
            model.load_state_dict(parts["model"])
        for _ in range(steps):
            model(torch.randn(3, 4) + random.gauss() + np.random.normal()).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        if steps == 5:
            dcp.save({"model": model.state_dict(), name: worker}, checkpoint_id=tmp_path / "saved")
        process = ScriptProcess.current
        assert process is not None
        process.close(failed=False)
        return [one.detach().clone() for one in model.parameters()]

    through, _, resumed = trained(9, load=False), trained(5, load=False), trained(4, load=True)
    assert all(torch.equal(*pair) for pair in zip(through, resumed, strict=True))


def test_two_workers_go_on_from_one_distributed_checkpoint(tmp_path: Path) -> None:
    """If this failed, the ranks' states would be written over each other, or taken for one."""
    pair = str(Path(__file__).parent / "checkpoint_pair.py")
    parts = ((0, 8, "through"), (0, 5, "half"), (5, 8, "resumed"))
    run_in_turn(
        [shlex.join([pair, str(first), str(last), "saved", out]) for first, last, out in parts], tmp_path
    )
    through, resumed = (
        [torch.load(tmp_path / f"{out}-{rank}") for rank in "01"] for out in ("through", "resumed")
    )
    assert all(torch.equal(*pair) for pair in zip(through, resumed, strict=True))
    assert not torch.equal(*through), "between averages workers differ"
