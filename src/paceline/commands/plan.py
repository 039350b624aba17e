"""The commands that follow a plan: train as its first row says, and find out what it does not know."""

import shlex
from typing import TYPE_CHECKING

from paceline.codecs import NO_CODEC
from paceline.jobs.spec import JobSpec

if TYPE_CHECKING:
    from paceline.studies.plan import PlanRequest, TrainingPlan
    from paceline.studies.plan.candidates import Candidate

PLACEHOLDER = "my_job.py:build"
"""Stands for a job of the user's own, where only a model was named."""
ADDRESS, SECRET = "ADDRESS", "secret"
STUDIED_WORKERS = 8
"""Workers of a study at most: all of them are simulated with true gradients on one machine."""


def commands(plan: "TrainingPlan", request: "PlanRequest") -> dict[str, str]:
    """What each is for, as a sentence without its end, and the command."""
    first = plan.first
    own = f"; {PLACEHOLDER} stands for your job, this model with your data" if request.job is None else ""
    where = ""
    if first.hosts > 1:
        ranks = "1" if first.hosts == 2 else f"1 to {first.hosts - 1}"
        where = (
            f" on each of {first.hosts} hosts, with -nr {ranks} on the others ({ADDRESS} is that of host 0, and "
            f"{SECRET} a file that all have)"
        )
    found = {f"To train as row 1 says{where}{own}": shlex.join(["paceline", *train_words(first, request)])}
    unknowns = {unknown for one in plan.best for unknown in one.unknowns}
    study = shlex.join(["paceline", *convergence_words(plan, request)])
    if unknowns & {"strategy", "codec"}:
        found["To find out how many more samples they need; then plan with --convergence FOLDER"] = study
    elif unknowns:
        usual = max(1, round(request.reference / study_workers(first)))
        said = f"a global batch of {first.global_batch:,} needs; compare with --batch-size {usual}"
        found[f"To find out how many samples {said}"] = study
    return found


def train_words(one: "Candidate", request: "PlanRequest") -> list[str]:
    words = ["train", *_job_words(request)]
    if one.hosts > 1:
        words += ["-n", str(one.hosts), "-np", str(one.workers // one.hosts)]
        words += ["-a", ADDRESS, "-p", "29500", "-nr", "0", "--secret-file", SECRET]
    else:
        words += ["-np", str(one.workers)]
    offer = next(offer for offer in request.offers if offer.label == one.hardware)
    if offer.on_gpus:
        words += ["--device", "cuda"]
    if offer.threads is not None:
        words += ["--threads", str(offer.threads)]
    if request.precision is not None:
        words += ["--precision", request.precision]
    words += ["--strategy", one.strategy]
    if one.codec != NO_CODEC:
        words += ["--codec", one.codec]
    if one.servers > 1:
        words += ["--servers", str(one.servers)]
    length = ["-i", str(one.steps)]
    if request.epochs is not None and one.factor == 1:
        length = ["--epochs", str(request.epochs)]
    return [*words, "--batch-size", str(one.batch), *length]


def study_workers(one: "Candidate") -> int:
    return max(2, min(STUDIED_WORKERS, one.workers))


def convergence_words(plan: "TrainingPlan", request: "PlanRequest") -> list[str]:
    """A study of the pairs in the table, after plain all-reduce, with a global batch like that of the first row."""
    first = plan.first
    workers = study_workers(first)
    words = ["bench", "convergence", *_job_words(request), "--workers", str(workers)]
    words += ["--batch-size", str(max(1, first.global_batch // workers))]
    for option, values in (
        ("--strategy", ["all-reduce", *(one.strategy for one in plan.best)]),
        ("--codec", [NO_CODEC, *(one.codec for one in plan.best)]),
    ):
        for value in dict.fromkeys(values):
            words += [option, value]
    return words if request.epochs is None else [*words, "--epochs", str(request.epochs)]


def _job_words(request: "PlanRequest") -> list[str]:
    if request.job is None or request.job.path is not None:
        return ["--job", PLACEHOLDER if request.job is None else str(request.job.path)]
    words = []
    for name in ("data", "data_dir", "model", "optimizer"):
        value = getattr(request.job, name)
        if value != getattr(JobSpec, name):
            words += [f"--{name.replace('_', '-')}", value]
    return words
