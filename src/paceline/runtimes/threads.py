"""With how many threads a worker computes, and how many such workers a host has cores for."""

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
    """What a worker computes with where no option says so: as the user's OMP_NUM_THREADS has it, else 1."""
    text = (
        environ.get(VARIABLE, "").partition(",")[0].strip()
    )  # OpenMP takes a list, one number a nested level
    if not text:
        return USUAL
    if not text.isdecimal() or not int(text):
        raise UsageError(
            f"{VARIABLE}={environ[VARIABLE]} is no number of threads: set it to 1 or more, or unset it"
        )
    return int(text)


def too_many(workers: int, threads: int, cores: int) -> str:
    """That so many workers do not fit a host, as part of a sentence; empty where they do."""
    if workers * threads <= cores:
        return ""
    names = (_counted(workers, "worker"), _counted(threads, "thread"), _counted(cores, "core"))
    return "{} x {} do not fit in {}".format(*names)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"


@dataclass(frozen=True, kw_only=True)
class HostRoom:
    """A host whose step times were measured: they hold for as many workers as compute side by side there."""

    source: str
    """Where the times are from."""
    threads: int
    cores: int
    measured: int = 1
    """Workers that were measured together, who may be more than the cores."""

    @classmethod
    def of_run(cls, folder: RunFolder) -> Self | None:
        """The host of a live run on CPUs; None where the record does not say."""
        config = read_config(folder)
        machinery, together = config.machinery, max(Counter(config.placement.workers).values())
        try:
            cores = read_json(folder.env).get("usable_cores")
        except (DamagedFile, OSError, AttributeError):
            cores = None
        threads = machinery.get("threads")
        if not threads or not cores or machinery.get("device") != "cpu":
            return None
        return cls(source=f"the run {folder.path}", threads=threads, cores=cores, measured=together)

    @classmethod
    def of_profile(cls, profile: Profile) -> Self | None:
        """The machine of a profile; None where it does not say."""
        threads = profile.machine.get("threads")
        cores = profile.machine.get("usable_cores", profile.machine.get("cores"))
        if type(threads) is not int or type(cores) is not int or threads < 1:
            return None
        source, measured = f"profile {profile.name!r}", max(1, len(profile.contention))
        return cls(source=source, threads=threads, cores=cores, measured=measured)

    @property
    def workers(self) -> int:
        """The most workers on such a host that the times hold for."""
        return max(self.cores // self.threads, self.measured)

    def check(self, workers: int, option: str) -> None:
        """Refuse more workers on one host than that."""
        if workers > self.workers:
            raise UsageError(
                f"{option}: {too_many(workers, self.threads, self.cores)} of the host of {self.source}, so its times "
                f"do not hold there; ask for at most {self.workers} on a host, or measure with fewer threads"
            )

    def check_hosts(self, cluster: Cluster, option: str) -> None:
        """The same for every host of a cluster."""
        self.check(max(group.host.workers for group in cluster.groups), option)
