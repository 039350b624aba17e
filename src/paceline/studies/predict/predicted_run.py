"""A run that is about to begin, predicted by the profile of its machine."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from paceline.clusters.profile import INSIDE, Profile, read_profile
from paceline.costs.device import exposed_loading
from paceline.errors import UsageError
from paceline.jobs.job import Job
from paceline.records.folder import environment
from paceline.runtimes.config import Config
from paceline.runtimes.loading import Request, load
from paceline.runtimes.randomness import AllStreams, undisturbed
from paceline.runtimes.settings import Settings
from paceline.strategies import build_strategy
from paceline.studies.predict import basis_of
from paceline.studies.predict.deployment import MEASURED
from paceline.studies.predict.model import PacelineModel, find_model
from paceline.studies.predict.prediction import Basis, PredictionRow
from paceline.studies.predict.request import PredictRequest

BATCHES, PATIENCE = 16, 0.1
"""Mini-batches that are loaded, at most and for no longer than so many seconds, to know how long that takes."""


def predict_run(config: Config, job: Job, path: Path, transport: str) -> tuple[PredictionRow, Basis]:
    """The step of this run by the profile ``path``; a UsageError says why it cannot be predicted.

    ``job`` is the run's, which is neither imported nor built again; a few of its mini-batches are loaded. No random
    number of the run is used up.
    ``transport`` is what its workers' messages go through, as ``Started`` has it.
    """
    profile = read_profile(path, str(torch.__version__))
    _check(config, profile)
    request = _request(config, profile, path, transport)
    with undisturbed(AllStreams()):
        model = find_model(request, subject=job)
        model.check()
        model = _with_data(model, _loading(job, config.settings), job.loader_workers)
        row, basis = model.row(model.strategies[0], config.settings.workers), basis_of(model)
    return row, replace(basis, compute=f"{basis.compute}; {_data_words(job.loader_workers)}")


def _data_words(loaders: int) -> str:
    divided = f", divided among {loaders} loader process{'es' * (loaders > 1)}" if loaders else ""
    return f"data by a few mini-batches{divided}"


def _with_data(model: PacelineModel, seconds: float, loaders: int) -> PacelineModel:
    """The model whose steps wait for their data, of which one process loads a sample in so many seconds."""
    waiting = replace(model, compute=replace(model.compute, data=seconds))
    if not (loaders and seconds):
        return waiting
    step = waiting.step(waiting.setup(model.strategies[0], model.workers[0]))
    load = step.breakdown.data
    waits = exposed_loading(load, loaders, step.seconds - load)
    return replace(model, compute=replace(model.compute, data=seconds * waits / load))


def _loading(job: Job, settings: Settings) -> float:
    """Seconds in which one process loads one sample, by a few mini-batches."""
    size, generator = settings.batch_sizes[0], torch.Generator().manual_seed(settings.seed)
    drawn = (torch.randint(len(job.train), (size,), generator=generator).tolist() for _ in range(BATCHES))
    begun = last = perf_counter()
    times: list[float] = []
    for _ in load(job.train, (Request(indices, settings.seed) for indices in drawn), 0):
        now = perf_counter()
        times.append(now - last)
        if now - begun > PATIENCE:
            break
        last = perf_counter()
    return median(times) / size


def check_machine(profile: Profile, device: str, threads: int) -> None:
    """A UsageError says why workers here, of so many threads each, do not compute as those of the profile."""
    machine = profile.machine
    measured, cpu, here = machine.get("threads", 1), machine.get("cpu"), environment()["cpu"]
    for fine, sentence in (
        (device == "cpu", f"the profile is of a CPU, not of {device}"),
        (
            threads == measured,
            f"the profile is of workers with {measured} threads, and this run has {threads}",
        ),
        (cpu in (None, here), f"the profile is of another machine, with {cpu} in place of {here}"),
    ):
        if not fine:
            raise UsageError(sentence)


def _check(config: Config, profile: Profile) -> None:
    check_machine(profile, config.machinery["device"], config.machinery["threads"])
    settings = config.settings
    several = settings.workers > 1
    for fine, sentence in (
        (len(set(settings.batch_sizes)) == 1, "the workers have mini-batches of different sizes"),
        (not settings.slow_turns, "slow ranks take turns"),
        (not several or settings.buffers == "average", "rank 0's buffers are sent at every step"),
    ):
        if not fine:
            raise UsageError(sentence)


def _request(config: Config, profile: Profile, path: Path, transport: str) -> PredictRequest:
    settings = config.settings
    served = build_strategy(settings.strategy).served
    return PredictRequest(
        job=settings.job,
        profile=path,
        workers=(settings.workers,),
        batch_size=settings.batch_sizes[0],
        strategies=(settings.strategy,),
        collective=settings.collective,
        codecs=(settings.codec,),
        servers=settings.servers if served else 1,
        slow=tuple(sorted(settings.slow.items())) or None,
        **_where(config, profile, "" if served else transport),
    )


def _where(config: Config, profile: Profile, transport: str) -> dict[str, Any]:
    """The request's settings for these hosts, whose links must have been measured."""
    hosts = Counter(config.placement.workers)
    if len(hosts) > 1:
        if len(set(hosts.values())) > 1:
            raise UsageError("the hosts have different numbers of workers")
        if profile.link("network", config.settings.workers) is None:
            raise UsageError(
                "the profile has no network; the task 'links' of 'paceline calibrate', started on each host as "
                "this run was, adds it"
            )
        return {"network": MEASURED, "per_host": max(hosts.values())}
    alone = config.settings.workers == 1 and not config.placement.servers
    if not alone and not any(link.name in INSIDE for link in profile.links):
        raise UsageError(
            "the profile has no links between workers, which are measured with one thread each; make it again with "
            "'paceline calibrate machine'"
        )
    return {"backend": "shm" if transport == "shm" else "gloo"} if transport else {}
