"""A job whose batches are loaded once: every step gets its first batch again, so that data costs next to nothing."""

from dataclasses import replace

from paceline.jobs.build import build_job
from paceline.jobs.data import RepeatedData
from paceline.jobs.job import Job
from paceline.jobs.spec import JobSpec

SOURCE = '''"""The job of this study, with every worker's first batch in place of all later ones."""

from paceline.jobs.repeated import build_repeated
from paceline.jobs.spec import JobSpec


def build():
    return build_repeated({spec!r})
'''


def build_repeated(spec: JobSpec) -> Job:
    """The job with the same batch at every step, taken in the worker itself; what it learns means nothing."""
    job = build_job(spec)
    return replace(job, train=RepeatedData(job.train), loader_workers=0)
