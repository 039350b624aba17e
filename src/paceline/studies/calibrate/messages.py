"""Messages with a server as training meets them: what a synchronous server adds to the steps of small jobs.

A message on idle cores is quick. In a step the server needs a core as well, which the workers hold; so the jobs are
trained for real, alone and with a server, and the difference counts.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from paceline.clusters.profile import INSIDE, LinkFit, Profile, read_profile, write_profile
from paceline.costs.recorded import typical_step, usual_pace
from paceline.errors import RunFailed
from paceline.jobs.build import traceable_of_job
from paceline.records.folder import RunFolder
from paceline.records.load import disturbance
from paceline.records.summary import recorded_loads
from paceline.runtimes.config import read_run
from paceline.studies.calibrate.device import REMEDY
from paceline.studies.calibrate.link_fit import AveragedStep, ContentionFit, add_links, fit_link

COMMON = {
    "data": "synthetic:shape=1x8x8,train=40000",
    "iterations": "600",
    "threads": "1",
    "evaluate_every": "never",
    "checkpoint_every": "never",
}
JOBS = (
    COMMON | {"model": "mlp:hidden=48", "batch_size": "64"},
    COMMON | {"model": "mlp:hidden=640,layers=2", "batch_size": "16"},
)
AT_ONCE = 8
TRIES = 3

Train = Callable[[Mapping[str, str]], RunFolder]


def add_messages(path: Path, workers: int, train: Train, *, busy: bool = False) -> ContentionFit:
    """Measure messages, add them to the profile ``path``, and return all that it holds of so many workers on a host."""
    profile = read_profile(path)
    profile = add_links(profile, calibrate_messages(profile, [workers], train, busy=busy))
    write_profile(profile, path)
    return ContentionFit(
        workers=workers,
        short=profile.contention_short[workers - 1],
        long=profile.contention[workers - 1],
        links=tuple(link for link in profile.links if link.workers == workers and link.name in INSIDE),
    )


def calibrate_messages(
    profile: Profile, counts: Sequence[int], train: Train, *, busy: bool = False
) -> list[LinkFit]:
    """The link of so many workers with a server on their host, for each of these counts.

    The profile says what contention costs. Trains each job once on one worker and once for each count, and again
    where something else computed meanwhile, unless a ``busy`` machine is accepted.
    """
    steps: dict[int, list[AveragedStep]] = {count: [] for count in counts}
    for job in JOBS:
        alone = _train(train, {**job, "strategy": "all-reduce", "workers": "1"}, busy)
        step = typical_step(alone).step
        gradient = step.data + step.forward + step.backward
        contention = profile.contention_between(gradient)
        with torch.device("meta"):
            model = traceable_of_job(read_run(alone).settings.job).model()
        size = sum(one.nbytes for one in model.parameters())
        for count, found in steps.items():
            beside = gradient * contention[min(count, len(contention)) - 1] + step.apply
            served = _train(train, {**job, "strategy": "ps", "workers": str(count)}, busy)
            added = usual_pace(served, AT_ONCE) - beside
            found.append(AveragedStep(sizes=(size,), added=added, beside=beside))
    return [fit_link("messages", (0,) * count, found) for count, found in steps.items()]


def _train(train: Train, settings: Mapping[str, str], busy: bool) -> RunFolder:
    for _ in range(TRIES):
        run = train(settings)
        disturbed = disturbance(recorded_loads(run), "the measurement")
        if busy or not disturbed:
            return run
    raise RunFailed(f"{disturbed} Messages with a server were not added: {REMEDY}")
