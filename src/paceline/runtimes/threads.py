"""With how many threads a worker computes, and how many such workers fit on a host."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from paceline.clusters.cluster import Cluster
from paceline.clusters.profile import Profile
from paceline.errors import UsageError
from paceline.records.files import DamagedFile, read_json
from paceline.records.folder import RunFolder
from paceline.runtimes.config import read_config

USUAL = 1
"""Threads of a worker, however many workers there are: so that one worker can be compared with two."""
VARIABLE = "OMP_NUM_THREADS"


def usual_threads(environ: Mapping[str, str] = os.environ) -> int:
    """The threads of a worker unless an option sets them: the user's OMP_NUM_THREADS, else 1."""
    text = environ.get(VARIABLE, "").partition(",")[0].strip()  # OpenMP takes a list, one a nested level
    if not text:
        return USUAL
    if not text.isdecimal() or not int(text):
        raise UsageError(
            f"{VARIABLE}={environ[VARIABLE]} is not a number of threads: set it to 1 or more, or unset it"
        )
    return int(text)


def too_many(workers: int, threads: int, cores: int) -> str:
    """Part of a sentence: these workers do not fit on a host. Empty where they do."""
    if workers * threads <= cores:
        return ""
    parts = ((workers, "worker"), (threads, "thread"), (cores, "core"))
    names = [f"{count} {what}{'s' if count > 1 else ''}" for count, what in parts]
    return "{} x {} do not fit in {}".format(*names)


@dataclass(frozen=True, kw_only=True)
class HostCapacity:
    """A host whose step times were measured: they hold for as many workers as fit on its cores."""

    source: str
    threads: int
    cores: int
    measured: int = 1
    """Workers that were measured at the same time; they may need more than the cores."""

    @classmethod
    def of_run(cls, folder: RunFolder) -> Self | None:
        config = read_config(folder)
        try:
            cores = read_json(folder.env).get("usable_cores")
        except (DamagedFile, OSError, AttributeError):
            cores = None
        threads = config.machinery.get("threads")
        if not threads or not cores or config.machinery.get("device") != "cpu":
            return None
        measured = max(Counter(config.placement.workers).values())
        return cls(source=f"the run {folder.path}", threads=threads, cores=cores, measured=measured)

    @classmethod
    def of_profile(cls, profile: Profile) -> Self | None:
        threads = profile.machine.get("threads")
        cores = profile.machine.get("usable_cores", profile.machine.get("cores"))
        if type(threads) is not int or type(cores) is not int or threads < 1:
            return None
        source, measured = f"profile {profile.name!r}", max(1, len(profile.contention))
        return cls(source=source, threads=threads, cores=cores, measured=measured)

    @property
    def workers(self) -> int:
        return max(self.cores // self.threads, self.measured)

    def check(self, workers: int, option: str) -> None:
        if workers > self.workers:
            raise UsageError(
                f"{option}: {too_many(workers, self.threads, self.cores)} of the host of {self.source}, so its times "
                f"do not hold there; ask for at most {self.workers} on a host, or measure with fewer threads"
            )

    def check_hosts(self, cluster: Cluster, option: str) -> None:
        self.check(max(group.host.workers for group in cluster.groups), option)
