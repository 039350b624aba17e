"""A stopped run made ready for another number of workers, in a new run folder; the global batch stays as it was."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from shutil import copyfile
from typing import Any

import torch
from torch import Tensor

from paceline.codecs import build_codec
from paceline.codecs.state import PREFIX
from paceline.errors import UsageError, say_on_stderr
from paceline.jobs.job import Job
from paceline.records.checkpoints import Checkpoints, Commits
from paceline.records.events import truncate_metrics
from paceline.records.files import write_json
from paceline.records.folder import RunFolder, RunLock, check_parent, create_new, environment, name_of_run
from paceline.runtimes.config import Config, new_identity, read_live, write_config
from paceline.runtimes.live.failures import command
from paceline.runtimes.live.request import check_trust
from paceline.runtimes.prepare import prepare
from paceline.runtimes.replica import first_streams
from paceline.runtimes.settings import Settings
from paceline.strategies import build_strategy

Trees = dict[int, dict[str, Any]]


def with_workers(settings: Settings, workers: int) -> Settings:
    batch = sum(settings.batch_sizes)
    if not 1 <= workers <= batch:
        raise UsageError(
            f"{workers} workers cannot share a global batch of {batch} samples: a run keeps its global batch when it "
            f"resumes, and every worker needs a sample; choose 1 to {batch} workers"
        )
    cuts = [batch * rank // workers for rank in range(workers + 1)]
    sizes = tuple(stop - start for start, stop in pairwise(cuts))
    slow = {rank: factor for rank, factor in settings.slow.items() if rank < workers}
    return replace(settings, batch_sizes=sizes, slow=slow, slow_turns=settings.slow_turns if slow else 0)


def reshard(old: RunFolder, workers: int, *, trust: bool, runs: Path | None = None) -> RunFolder:
    """Make a run folder in ``runs``, or beside the old one, from the newest step that is whole here."""
    config = read_live(old)
    check_trust(config, old, trust=trust)
    many = f"{workers} worker{'' if workers == 1 else 's'}"
    if workers == config.settings.workers:
        same = command("train", resume=old.path)
        raise UsageError(f"{old.path} has {many} already; resume it as it is, with '{same}'")
    parent = runs or old.path.parent
    try:
        check_parent(parent)
    except UsageError as mistake:
        if runs is not None:
            raise
        elsewhere = command("reshard", old.path, workers=workers, runs="FOLDER")
        raise UsageError(
            f"nothing can be written to {parent}, and a folder for {many} is made beside the old one; "
            f"make it elsewhere with '{elsewhere}', and resume that"
        ) from mistake
    if build_strategy(config.settings.strategy).partition(workers).clients:
        raise UsageError(
            f"{old.path} divides its data among clients, whose mini-batches another number of workers would change; "
            f"resume it with its {config.settings.workers} workers"
        )
    settings = with_workers(config.settings, workers)
    with RunLock.own(old, 0, only_read=True):
        new = _make(old, config, settings, parent)
    sizes = " or ".join(map(str, sorted(set(settings.batch_sizes))))
    say_on_stderr(
        f"{new.path} goes on where {old.path} stopped, with {many} x batch {sizes} instead of "
        f"{config.settings.workers}; the old folder stays as it is"
    )
    strategy, codec = build_strategy(settings.strategy), build_codec(settings.codec)
    if workers == 1 and codec.memory == "error" and not strategy.served:
        say_on_stderr(
            "what the error memories hold is not used: one worker sends nothing, and encodes nothing"
        )
    return new


def _make(old: RunFolder, config: Config, settings: Settings, parent: Path) -> RunFolder:
    """What differs between the old workers is averaged by the samples since the workers last agreed."""
    prepared, before = prepare(settings), config.settings.workers
    saved = Checkpoints(old, config.identity, 1)
    kept = Checkpoints(old, config.identity, 1, "server")
    decisive, count, whom = (
        (kept, prepared.servers, "servers") if prepared.servers else (saved, before, "workers")
    )
    step = next(decisive.whole_steps(range(count)), None)
    if step is None:
        raise UsageError(
            f"{old.path} holds no checkpoint that is whole for all {count} {whom}, which another number of workers "
            "needs; where other hosts have the missing files under checkpoints/, copy them here"
        )
    trees = {rank: saved.load(step, rank) for rank in range(before) if saved.is_whole(step, rank)}
    servers = {number: kept.load(step, number) for number in range(prepared.servers)}
    if not trees:
        raise UsageError(
            f"{old.path} holds no worker's checkpoint of step {step}; give it as many workers as it had"
        )
    identity = new_identity(settings)
    made = _spread(trees, settings, prepared.job, step)

    def fill(draft: RunFolder) -> None:
        origin = f"{old.path.name}, step {step}"
        write_config(draft, settings, "live", config.machinery, identity=identity, origin=origin)
        write_json(draft.env, {**environment(), "workers": []})
        if old.metrics.exists():
            copyfile(old.metrics, draft.metrics)
            truncate_metrics(draft.metrics, step)
        for rank, tree in made.items():
            Checkpoints(draft, identity, 1).save(step, rank, tree)
        for number, tree in servers.items():
            server = tree["server"] | {"entries": 0}  # its log begins anew
            Checkpoints(draft, identity, 1, "server").save(step, number, tree | {"server": server})
        Commits(draft, identity, 0).add(step)

    return create_new(parent, name_of_run(old.path.name), fill)


def _spread(trees: Trees, settings: Settings, job: Job, step: int) -> Trees:
    saved = list(trees.values())
    weights = [max(1, tree["worker"]["samples_since_sync"]) for tree in saved]
    replicas = [{**tree["replica"], "rng": None, "loss": None} for tree in saved]  # "noise" is rank 0's
    merged = _mean(replicas, weights)
    state = {  # what a codec keeps is in units of an even share of the mean
        name: _mean(
            [tree["state"][name] for tree in saved], [1] * len(saved) if name.startswith(PREFIX) else weights
        )
        for name in saved[0]["state"]
    }
    losses = [sum(sums) for sums in zip(*(tree["replica"]["loss"] for tree in saved), strict=True)]
    numbers = saved[0]["worker"] | {
        "clock": step,
        "now": max(tree["worker"]["now"] for tree in saved),
        "samples_since_sync": 0,
    }
    made = {}
    for rank in range(settings.workers):
        own = trees.get(rank)
        rng = own["replica"]["rng"] if own else first_streams(job, settings.seed, rank)
        replica = merged | {"rng": rng, "loss": losses if rank == 0 else [0.0, 0]}
        gpu_rng = own["gpu_rng"] if own else None
        made[rank] = saved[0] | {"replica": replica, "worker": numbers, "state": state, "gpu_rng": gpu_rng}
    return made


def _mean(values: Sequence[Any], weights: Sequence[float]) -> Any:
    """The weighted mean of trees of one shape; of leaves that are equal, or no float tensors, it is the first."""
    first = values[0]
    if isinstance(first, dict):
        return {key: _mean([value[key] for value in values], weights) for key in first}
    if not isinstance(first, Tensor) or not first.is_floating_point():
        return first
    if all(torch.equal(first, value) for value in values):
        return first
    total = sum(weights)
    return torch.stack([value * (weight / total) for value, weight in zip(values, weights, strict=True)]).sum(
        0
    )
